"""A study of three runs and one table whose results tests write themselves."""

import numpy as np
from result_files import write_evaluation, write_training

from pipeline.report.tables.fill import fill_table, judge_study
from pipeline.results.records import write_record
from pipeline.study.resolve.entries import Graph, StudyEntry

A, B, C = "supervised-vit-toy-e1-s0-aaaaaa", "mjp-vit-toy-e1-s0-bbbbbb", "mjp-vit-toy-e1-s0-cccccc"


def column(label, eval=None, metric=None, delta=None, against=None, decimals=1, tolerance=None, run=None):
    source = {"eval": eval, "metric": metric, "run": run, "delta": delta, "against": against}
    return {"label": label, **source, "direction": "up", "decimals": decimals, "tolerance": tolerance}


COLUMNS = {
    "params_m": column("Parameters (M)", "train", "params_m", tolerance=0.5),
    "top1": column("Top-1 (%)", "classify", "top1", tolerance=0.3),
    "delta": column("Against A", delta="top1", against="a", tolerance=0.4),
    "diff_norm": column("Diff. Norm.", "consistency", "diff_norm", decimals=2),
}
ROWS = {
    "toy.t1.a": (A, True, {"params_m": 22, "top1": 79.8, "delta": None, "diff_norm": 16.21}),
    "toy.t1.b": (B, True, {"params_m": 22, "top1": 80.5, "delta": 0.7, "diff_norm": 8.96}),
    "toy.t1.c": (C, False, {"params_m": 22, "top1": 77.5, "delta": -2.3, "diff_norm": None}),
}


def name_of(evaluation: str, run: str) -> str:
    return f"{evaluation}-{run[-6:]}"


def cells_of(run: str) -> dict[str, dict]:
    sources = {
        "params_m": f"runs/{run}/train.json",
        "top1": f"evals/{name_of('classify', run)}/result.json",
        "diff_norm": f"evals/{name_of('consistency', run)}/result.json",
    }
    return {key: {"sources": [source], "metric": key} for key, source in sources.items()}


def toy_graph() -> Graph:
    """Three runs, one table, one study; the paper's numbers can be expected."""
    about = {
        "config": {"method": {"name": "toy", "fidelity": "paper"}},
        "data": "toy",
        "init": None,
        "studies": ["toy"],
    }
    runs = {name: {**about, "label": f"Run {name[-6:]}"} for name in (A, B, C)}
    rows = {
        key: {
            "label": f"Row {key[-1].upper()}",
            "runs": {"": [run]},
            "cells": cells_of(run),
            "headline": headline,
            "expected": numbers,
        }
        for key, (run, headline, numbers) in ROWS.items()
    }
    table = {
        "study": "toy",
        "study_title": "Toy study",
        "label": "Table 1",
        "title": "Toys",
        "note": "Its note.",
        "columns": dict(COLUMNS),
        "rows": rows,
    }
    claims = {
        "toy.c1": {"statement": "B beats A", "type": "directional", "holds": ["toy.t1.b:top1 > toy.t1.a:top1"]},
        "toy.c2": {"statement": "C beats A", "type": "directional", "holds": ["toy.t1.c:top1 > toy.t1.a:top1"]},
        "toy.c3": {"statement": "A beats all", "type": "exact", "holds": ["toy.t1.b:delta < 0", "toy.t1.c:delta < 0"]},
    }
    evals = {
        name_of(key, run): {
            "fragment": key,
            "file": key,
            "config": {},
            "subjects": {"model": run},
            "data": {},
            "job": f"{run}-quick",
        }
        for key in ("classify", "consistency")
        for run in (A, B, C)
    }
    return Graph.model_validate(
        {
            "scale": "toy",
            "note": "The scale's note.",
            "comparable": True,
            "runs": runs,
            "evals": evals,
            "tables": {"toy.t1": table},
            "claims": {"toy": claims},
        }
    )


def measure(graph: Graph) -> Graph:
    """Write the results of a training and of all evaluations of every run."""
    for run, params, top1, diff_norm in ((A, 22.05, 79.84, 17.456), (B, 22.2, 80.16, 8.0), (C, 22.2, 77.0, 9.0)):
        write_training(graph, run, {"params_m": params})
        write_eval(graph, run, classify={"top1": top1, "top5": 95.0}, consistency={"diff_norm": diff_norm})
    return graph


def add_images(graph: Graph) -> Graph:
    """Add values per image, without which the first claim has no verdict, and a remark on the last claim."""
    images = np.arange(200) % 5 > 0
    for run, top1 in ((A, images), (B, images | (np.arange(200) % 25 == 0)), (C, images)):
        values = 100.0 * top1
        about = {"errors": {"top1": 2.9}, "count": 200, "images": "the same"}
        write_evaluation(graph, name_of("classify", run), {"top1": values.mean()}, {"top1": values}, **about)
    graph.stories["toy"] = StudyEntry(title="Toy study", main_claim="toy.c1")
    graph.claims["toy"]["toy.c3"].remarks["toy"] = "C was never run."
    return graph


def write_eval(graph, run, **evals):
    for key, metrics in evals.items():
        write_evaluation(graph, name_of(key, run), metrics)


def result_of(graph, run, evaluation="classify"):
    return graph.results.evaluation(name_of(evaluation, run)).result


def cell(graph, row, key, selection="all"):
    filled = fill_table(graph, "toy.t1", selection).model_dump()
    return next(r for r in filled["rows"] if r["id"] == f"toy.t1.{row}")["cells"][key]


def draw(graph, selection):
    for key in graph.tables:
        write_record(graph.results.table(key, selection), fill_table(graph, key, selection))
    for study in graph.studies():
        write_record(graph.results.claims(study, selection), judge_study(graph, study, selection))
