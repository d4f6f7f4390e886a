"""A report's worth of content: three tables, a figure of every kind, eleven runs, nine claims."""

import io
import json
import math
import re
import wave

from PIL import Image

from pipeline.report.collect import Content
from pipeline.report.records import EvaluationSummary, FilledTable, JudgedStudy, RunSummary
from pipeline.report.site.page import write_report, write_single
from pipeline.study.resolve.entries import StudyEntry

TOP1 = {"id": "top1", "label": "Top-1 (%)", "direction": "up", "decimals": 1}
CONSISTENCY = {"id": "consistency", "label": "Consistency (%)", "direction": "up", "decimals": 1}
DIFF_NORM = {"id": "diff_norm", "label": "Diff. norm", "direction": "down", "decimals": 2}
ATTACKS = [
    {"id": name, "label": label, "direction": way, "decimals": 3}
    for name, label, way in [
        ("mse", "MSE", "up"),
        ("psnr", "PSNR", "down"),
        ("ssim", "SSIM", "down"),
        ("lpips", "LPIPS", "up"),
        ("fft", "FFT 2D", "up"),
        ("accuracy", "Attack accuracy", "down"),
    ]
]
ATTACKS_AT = [(column["id"], at) for at, column in enumerate(ATTACKS, start=1)]
LABELS = [
    "DeiT-S",
    "DeiT-S, no position embedding",
    "DeiT-S + JP",
    "DeiT-S + IDX-JP",
    "DeiT-S + MJP",
    "Swin-T",
    "Swin-T + MJP",
    "DropPos, sigma 0",
    "DropPos, sigma 1",
    "DropPos, sigma 2",
    "DropPos, no attentive reconstruction",
]


def run_name(index: int) -> str:
    return f"{'mjp' if index < 7 else 'droppos'}-vit_demo-fashion_mnist-e6-s0-{0x3FA9C1 + 4919 * index:06x}"


def provenance(index: int, metric: str) -> dict:
    return {
        "file": f"results/demo/runs/{run_name(index)}/classify.json",
        "metric": metric,
        "commit": f"{0x9D1F3A77 + index:x}c0ffee",
        "config_fingerprint": f"{0x3FA9C1 + 4919 * index:06x}",
        "data_fingerprint": "b7c2e004",
        "seed": 0,
        "device": "cpu, 2 threads",
        "wall_s": 51.0 + 3.7 * index,
        "versions": {"torch": "2.14.1", "timm": "1.0.30", "python": "3.11.9"},
    }


def cell(index: int, metric: str, ours: float | None, paper: float | None, **changes) -> dict:
    both = ours is not None and paper is not None
    verdict = "not run" if ours is None else "not comparable" if both else "no paper value"
    made = {
        "ours": ours,
        "values": [] if ours is None else [ours],
        "error": None if ours is None else 1.25,
        "n": 0 if ours is None else 1,
        "count": None if ours is None else 1000,
        "run": run_name(index),
        "paper": paper,
        "difference": round(ours - paper, 4) if both else None,
        "tolerance": None,
        "verdict": verdict,
        "reason": "needs ImageNet-1K, which this scale does not have" if ours is None else "",
        "provenance": None if ours is None else provenance(index, metric),
    }
    return made | changes


def row(table: str, index: int, cells: dict) -> dict:
    about = {"id": f"{table}.{index}", "label": LABELS[index], "runs": {"": [run_name(index)]}}
    return about | {"fidelity": "released" if index == 3 else "corrected", "cells": cells}


def make_tables() -> list[dict]:
    accuracy = accuracy_rows()
    privacy = [
        row(
            "mjp.t4",
            index,
            {name: cell(index, name, 0.1013 * (index + at), 0.0927 * at) for name, at in ATTACKS_AT},
        )
        for index in (0, 1, 4)
    ]
    smoothing = [
        row("droppos.t5", index, {"top1": cell(index, "top1", 71 + index / 7, 82 + index / 10)})
        for index in (7, 8, 9, 10)
    ]
    shuffled, inverted = "Accuracy and consistency under patch shuffling", "Gradient inversion attacks"
    return [
        make_table("mjp.t1", shuffled, [TOP1, CONSISTENCY, DIFF_NORM], accuracy, "Fashion-MNIST, not ImageNet-1K."),
        make_table("mjp.t4", inverted, ATTACKS, privacy, ""),
        make_table("droppos.t5", "Position smoothing", [TOP1], smoothing, "100 epochs in the paper, 6 here."),
    ]


def make_table(name: str, title: str, columns: list, rows: list, note: str) -> dict:
    study, label = name.split(".t")
    about = {
        "id": name,
        "study": study,
        "study_title": f"The {study} study",
        "label": f"Table {label}",
        "title": title,
        "scale": "demo",
    }
    return about | {
        "comparable": False,
        "scale_note": "What the scale is.",
        "note": note,
        "columns": [dict(column) for column in columns],
        "rows": rows,
    }


def accuracy_rows() -> list[dict]:
    top1 = [74.1, 70.3, 72.4, 73.0, 74.6, None, None]
    paper = [79.8, 76.0, 79.1, 79.4, 80.5, 81.3, 81.3]
    consistency = [60.2, 100.0, 88.8, 84.1, 83.9, None, None]
    rows = [
        row(
            "mjp.t1",
            index,
            {
                "top1": cell(index, "top1", top1[index], paper[index]),
                "consistency": cell(index, "consistency", consistency[index], 64.3 + index),
                "diff_norm": cell(index, "diff_norm", None if index == 5 else 3.14 + index / 10, None),
            },
        )
        for index in range(7)
    ]
    exact = {"paper": 100.0, "difference": 0.0, "tolerance": 0.3, "verdict": "match"}
    rows[1]["cells"]["consistency"] |= exact
    rows[4]["cells"]["consistency"] |= {"verdict": "differs", "tolerance": 0.3, "reason": "images are 28 px"}
    return rows


CLAIMS = """
mjp | true | exact | Without position embeddings, the patches have no order. | mjp.t1.1:consistency == 100
mjp | true | directional | MJP raises the accuracy of its backbone. | mjp.t1.4:top1 > mjp.t1.0:top1
mjp | true | scale | MJP raises consistency. | mjp.t1.4:consistency - mjp.t1.0:consistency > 20
mjp | not run yet | directional | So it does for hierarchical transformers. | mjp.t1.6:top1 >= mjp.t1.5:top1
mjp | false | directional | MJP hampers attacks. | mjp.t4.4:mse > mjp.t4.0:mse | mjp.t4.4:psnr < mjp.t4.0:psnr
mjp | within noise | directional | Index embeddings help. | mjp.t1.3:top1 > mjp.t1.2:top1
mjp | not run yet | cost | MJP costs at most 2 % of training time. | mjp.t1.4:wall_s <= 1.02 * mjp.t1.0:wall_s
droppos | true | directional | Smoothing the position targets helps. | droppos.t5.8:top1 > droppos.t5.7:top1
droppos | false | directional | Attentive reconstruction helps. | droppos.t5.9:top1 > droppos.t5.10:top1
"""


def make_claims() -> list[dict]:
    values = {
        f"{r['id']}:{name}": c["ours"] for t in make_tables() for r in t["rows"] for name, c in r["cells"].items()
    }
    studies = {name: {"study": name, "scale": "demo", "claims": []} for name in ("mjp", "droppos")}
    for line in CLAIMS.strip().splitlines():
        study, verdict, kind, statement, *texts = line.split(" | ")
        claims = studies[study]["claims"]
        cells = [{name: values.get(name) for name in re.findall(r"[\w.]+:\w+", text)} for text in texts]
        predicates = [
            {"text": text, "verdict": verdict, "cells": found} for text, found in zip(texts, cells, strict=True)
        ]
        reason = "a cell it needs was not run" if verdict == "not run yet" else "decided by 1,000 images"
        about = {"id": f"{study}.c{len(claims) + 1:02d}", "statement": statement, "type": kind}
        claims.append(about | {"verdict": verdict, "reason": reason, "predicates": predicates})
    return list(studies.values())


def make_figures() -> list[dict]:
    """A figure of each kind; the curves are those of the first runs, the pictures those that `read_picture` gives."""
    etas = [0.0, 0.25, 0.5, 0.9]
    lines = figure("mjp.f3", "lines", {"y_label": "top-1 (%)", "levels": ["1"]}, etas, (0, 1, 4))
    bars = figure("mjp.f4", "bars", {"x_from": "rows"}, etas[:2], (0, 1))
    heat = figure("droppos.f2", "heatmap", {}, etas, (7, 8, 9))
    shots = figure("droppos.f3", "pictures", {}, [*etas, 1.0], (7, 8))
    for line in shots["rows"]:
        for key, place in line["cells"].items():
            file = f"evals/{line['id']}-{key}.{'wav' if key == 'at_100' else 'png'}"
            place |= {"ours": None, "paper": None, "difference": None, "picture": file}
    curves = figure("mjp.f6", "curves", {"curve": "val_top1"}, [], (0, 1, 2))
    return [lines, bars, curves, heat, shots]


def figure(name: str, kind: str, about: dict, xs: list[float], rows: tuple[int, ...]) -> dict:
    columns = [{"id": f"at_{100 * x:.0f}", "label": f"at {x}", "decimals": 1, "x": x} for x in xs]
    lines = [
        row(
            name,
            index,
            {c["id"]: cell(index, "position", 20 + 3 * index - 9 * c["x"], 25.0 + index) for c in columns},
        )
        for index in rows
    ]
    table = make_table(name.replace(".f", ".t"), f"A figure of {kind}", columns, lines, "")
    return table | {"id": name, "label": f"Figure {name[-1]}", "figure": {"kind": kind, "x_label": "eta", **about}}


def read_picture(name: str) -> bytes:
    """A sound; or a picture whose colour depends on its name: a small one, or for row 8 a whole sheet."""
    content = io.BytesIO()
    if name.endswith(".wav"):
        return tone(1.5)
    size = (700, 300) if "droppos.f3.8" in name else (28, 28)
    Image.new("RGB", size, (37 * len(name) % 256, ord(name[-5]), 90)).save(content, "PNG")
    return content.getvalue()


def tone(seconds: float, rate: int = 8000) -> bytes:
    """A WAV of 16 bits."""
    content = io.BytesIO()
    heights = [round(9000 * math.sin(440 * math.tau * moment / rate)) for moment in range(round(rate * seconds))]
    with wave.open(content, "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", "not compressed"))
        file.writeframes(b"".join(height.to_bytes(2, "little", signed=True) for height in heights))
    return content.getvalue()


def reader(folder):
    """Files of the scale: metrics of the runs in this folder, and pictures."""

    def read(name: str) -> bytes:
        if name.startswith("runs/"):
            return (folder / f"{name.split('/')[1]}.jsonl").read_bytes()
        return read_picture(name)

    return read


def write_metrics(path, index: int, steps: int = 240) -> None:
    lines = []
    for step in range(1, steps + 1):
        loss = 0.55 + 0.03 * index + 1.75 * math.exp(-step / 50) + 0.09 * math.sin(step * (1 + index) / 3)
        lines.append({"step": step, "epoch": step / 40, "loss": loss, "lr": 0.001, "grad_norm": 1.2})
        if step % 40 == 0:
            lines.append(
                {
                    "step": step,
                    "epoch": step / 40,
                    "val_top1": 75 - index - 40 * math.exp(-step / 45),
                    "val_loss": 0.8,
                }
            )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def make_runs(folder) -> list[dict]:
    runs = []
    for index, label in enumerate(LABELS):
        file = folder / f"{run_name(index)}.jsonl"
        if index != 6:
            write_metrics(file, index)
        config = f"task: classify\nmodel: vit_demo\noptim: {{global_batch: 128}}\nshuffle_ratio: 0.{index}\n"
        summary = {"top1": 74.1 - index, "wall_s": 51.0 + 700.5 * index}
        made = {"name": run_name(index), "label": label, "metrics_file": str(file), "summary": summary}
        made["studies"] = [run_name(index).split("-")[0]]
        runs.append(made | {"provenance": provenance(index, "top1"), "config": config})
    return runs


def make_evaluations() -> list[dict]:
    """One of the first run, and one of no run."""
    about = {"config": {"name": "knn", "k": 20}, "errors": {"knn_last": 1.5}, "reasons": {}, "files": {}}
    about |= {"metrics": {"knn_last": 61.25}, "provenance": {"commit": "beefc0de", "seed": 0}, "label": "knn"}
    names = {"knn-3fa9c1d2": {"": run_name(0)}, "cost-5e1f00d1": {}}
    return [
        {"name": name, "subjects": subjects, "file": f"results/demo/evals/{name}/result.json", **about}
        for name, subjects in names.items()
    ]


STORIES = {
    "mjp": StudyEntry(title="The mjp study", about="Patches are shuffled.", main_claim="mjp.c02"),
    "droppos": StudyEntry(title="The droppos study"),
}


def content(tables, claims, runs, evaluations=()) -> Content:
    """The given JSON as records."""
    parts = (FilledTable, tables), (JudgedStudy, claims), (RunSummary, runs), (EvaluationSummary, evaluations)
    return Content(*([kind(**part) for part in given] for kind, given in parts), STORIES)


def whole_content(folder) -> Content:
    return content([*make_tables(), *make_figures()], make_claims(), make_runs(folder), make_evaluations())


def write_single_page(folder):
    made = whole_content(folder)
    return write_single(made, folder / "report.html", "Patchwork at demo scale", "demo", reader(folder))


def write_site(folder):
    """The first page of a site, which lies beside the folder `report`."""
    made = whole_content(folder)
    return write_report(made, folder / "report.html", "Patchwork at demo scale", "demo", reader(folder))[0]


def same_columns_table():
    table = make_tables()[0]
    other = {"id": "top1_l", "label": "Top-5 (%)", "direction": "up", "decimals": 1, "same_as": "Top-1 (%)"}
    table["columns"].insert(1, other)
    for line in table["rows"]:
        line["cells"]["top1_l"] = line["cells"]["top1"] | {"paper": 93.7}
    return table


def words_of(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def part_of(page: str, start: str, end: str) -> str:
    return page[page.index(start) :].split(end)[0]
