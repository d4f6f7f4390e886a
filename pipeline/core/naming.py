"""How things may be named that become files, folders or targets; Snakemake's wildcards have the same patterns."""

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

from pipeline.core.config import names, shown

NAME = r"[A-Za-z0-9][A-Za-z0-9_-]*"  # of models, data sets, runs and jobs
PLAIN_NAME = r"[a-z0-9_]+"  # of studies and scales
ALLOWED = {NAME: "letters, digits, _ and -, a letter or digit first", PLAIN_NAME: "a to z, digits and _"}
# Rules of the workflow, beside which a study would be a second rule of that name.
RULES = (
    *("all", "demo", "headline", "prepare_data", "train_run", "evaluate"),
    *("draw_table", "draw_figure", "judge_claims", "write_report"),
)
KINDS = {"study": PLAIN_NAME, "scale": PLAIN_NAME} | dict.fromkeys(["method", "model", "data", "eval", "recipe"], NAME)


def file_name_problems(configs: Path) -> list[str]:
    """One line for each file of configs whose name would break a file name or a target."""
    files = [(kind, name) for kind in KINDS for name in names(configs / kind)]
    problems = {file: name_problem(file[1], KINDS[file[0]]) for file in files}
    problems |= {("study", name): "a rule of the workflow has this name" for name in RULES if ("study", name) in files}
    problems |= {("study", "headline"): "a report has this name"} if ("study", "headline") in files else {}
    return [
        f"{shown(configs / kind / f'{name}.yaml')}: file name: found {name!r}; {problem}; rename the file"
        for (kind, name), problem in problems.items()
        if problem
    ]


def name_problem(name: str, pattern: str = NAME) -> str:
    """What is allowed for a name, and a name near it; empty for a good one."""
    if re.fullmatch(pattern, name):
        return ""
    near = re.sub("[^A-Za-z0-9_-]", "_", name).lstrip("_-") or "mine"
    near = near.lower().replace("-", "_") if pattern == PLAIN_NAME else near
    return f"expected {ALLOWED[pattern]}, such as {near!r}"


def _checked(name: str) -> str:
    if problem := name_problem(name):
        raise ValueError(problem)
    return name


Name = Annotated[str, AfterValidator(_checked)]
