"""A small study for sweeps: a plain run, a pretraining, and a finetuning that starts from it."""

from pipeline.study.resolve.entries import Graph
from pipeline.sweep.study import SweepRequest, sweep_of

RUN = {"method": "supervised", "model": "deit_s", "data": "imagenet1k"}
STUDY = {
    "common": {"optim": {"epochs": 4, "global_batch": 50, "micro_batch": 50, "base_lr": 0.003}},
    "runs": {
        "plain": {**RUN, "label": "Plain"},
        "pre": {**RUN, "label": "Pretraining", "method": "mp3", "set": {"model": {"pos_embed": "none"}}},
        "tuned": {**RUN, "label": "Tuned", "init": "pre", "set": {"optim": {"weight_decay": 0.3}}},
    },
    "tables": {
        "t1": {
            "label": "Table 1",
            "title": "Plain and tuned",
            "columns": {
                "top1": {"label": "Top-1 (%)", "eval": "classify", "metric": "top1", "direction": "up"},
                "val": {"label": "Validation", "eval": "train", "metric": "val_top1", "direction": "up"},
            },
            "rows": {"plain": {"label": "Plain", "run": "plain"}, "tuned": {"label": "Tuned", "run": "tuned"}},
        }
    },
    "claims": {
        "c1": {"statement": "It helps", "type": "directional", "holds": ["mine.t1.tuned:top1 > mine.t1.plain:top1"]}
    },
}
LR = "optim.base_lr=1e-4,3e-4,1e-3"


def swept(target: str, *over: str, **options):
    return sweep_of(SweepRequest(target, [*over], **{"scale": "demo", **options}))


def configs_of(graph: Graph, table: str, row: str) -> list[dict]:
    """The configs of the runs of a row, seed by seed."""
    return [graph.runs[name].config for name in graph.tables[table].rows[f"{table}.{row}"].run_names()]


def files(project) -> dict[str, str]:
    return {path.name: path.read_text() for path in (project.configs / "study").iterdir()}
