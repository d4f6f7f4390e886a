"""How long a large study takes before anything is trained, and once everything is: time and memory by number of runs.

    python benchmarks/graph.py                    1,000, 3,000 and 10,000 runs with three evaluations each
    python benchmarks/graph.py --runs 500 1500    other numbers

A study is generated at scale demo (a learning rate for every ten runs, ten seeds each) in a copy of this project. Each
step is a process of its own: resolve the study, read the graph that was kept, or what one job needs of it, ask what
must be made, and Snakemake's dry run. Then all results are written as the tests write them, without training, and the
last two are run again.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("Snakefile", "configs", "pipeline", "workflow")
SEEDS = 10
EVALUATIONS = {"classify": "top1", "consistency": "consistency", "calibration": "ece"}
LOAD = "from pipeline.study.resolve.graph import load_graph; graph = load_graph('demo')"
# A job reads only its own entries; here that is the first job of the file.
LOAD_FOR_JOB = (
    "from pipeline.results import results_of; from pipeline.study.resolve.graph import load_for_job; "
    "lines = results_of('demo').graph.open(); next(line for line in lines if line.startswith('\"eval_jobs\"')); "
    "load_for_job('demo', next(lines).split('\"')[1])"
)
ASK = (
    f"{LOAD}; from pipeline.freshness.remake import open_freshness; from pipeline.site import load_site; "
    "freshness = open_freshness(graph, load_site()); print(len(freshness.stale(['report/all.html']))); "
    "freshness.digests.keep()"
)
# Writing 100,000 files is quick where none of them has to survive a power cut.
FINISH = (
    f"import os; os.fsync = lambda file: None; {LOAD}; "
    "from result_files import finish; finish(graph, ['report/all.html'])"
)
DRY_RUN = ("-m", "snakemake", "-n", "--quiet", "all", "--profile", "workflow/profiles/default")
WRITE = "write all results"
STEPS = {
    "resolve the studies": ("-c", LOAD),
    "read the resolved studies": ("-c", LOAD),
    "read the entries of one job": ("-c", LOAD_FOR_JOB),
    "list what to do, nothing finished": ("-c", ASK),
    "`snakemake -n`, nothing finished": DRY_RUN,
    WRITE: ("-c", FINISH),
    "list what to do, everything finished": ("-c", ASK),
    "list what to do, a second time": ("-c", ASK),
    "`snakemake -n`, everything finished": DRY_RUN,
}


@dataclass(frozen=True)
class Cost:
    """What one process took: seconds of a core, which other processes do not change, and memory."""

    seconds: float
    peak_mib: float

    def __str__(self) -> str:
        return f"{self.seconds:.1f} s, {self.peak_mib:.0f} MiB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, nargs="+", default=[1000, 3000, 10000], help="multiples of ten")
    costs = {}
    for num_runs in parser.parse_args().runs:
        with tempfile.TemporaryDirectory() as folder:
            costs[num_runs] = measure(Path(folder) / "project", num_runs)
    print(table(costs))


def measure(root: Path, num_runs: int) -> dict[str, Cost]:
    """Every step for a study of this size, in a copy of the project at `root`."""
    copy_project(root)
    (root / "configs/study/many.yaml").write_text(yaml.safe_dump(study(num_runs), sort_keys=False))
    costs = {}
    for step, command in STEPS.items():
        costs[step] = time_command(root, command)
        print(f"{num_runs} runs: {step}: {costs[step]}", file=sys.stderr, flush=True)
    return {step: cost for step, cost in costs.items() if step != WRITE}


def copy_project(root: Path) -> None:
    """Without its studies and results."""
    root.mkdir(parents=True)
    for name in PARTS:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, root / name)
    for path in (root / "configs/study").glob("*.yaml"):
        path.unlink()


def study(num_runs: int) -> dict:
    """Ten seeds of each value of one axis, and one table that shows three evaluations of every run."""
    if num_runs % SEEDS:
        raise SystemExit(f"--runs: found {num_runs}, expected a multiple of {SEEDS}")
    rates = {f"v{number}": {"set": {"optim": {"base_lr": 1e-3 + 1e-7 * number}}} for number in range(num_runs // SEEDS)}
    columns = {name: {"label": name, "eval": name, "metric": metric} for name, metric in EVALUATIONS.items()}
    return {
        "title": "Many runs",
        "scales": ["demo"],
        "seeds": SEEDS,
        "axes": {"rate": rates},
        "common": {"optim": {"epochs": 4, "global_batch": 50, "micro_batch": 50, "lr_batch": 50}},
        "runs": {
            "r_*": {"label": "ViT *", "method": "supervised", "model": "deit_s", "data": "imagenet1k", "over": ["rate"]}
        },
        "tables": {
            "t1": {
                "label": "Table 1",
                "title": "All of them",
                "columns": {key: {**column, "direction": "up"} for key, column in columns.items()},
                "rows": {"r-*": {"along": ["rate"], "run": "r_*"}},
            }
        },
    }


def time_command(root: Path, command: tuple[str, ...]) -> Cost:
    """Run Python with these arguments in a project; its peak memory is that of its largest process."""
    path = os.pathsep.join([str(root), str(ROOT / "tests")])
    environment = {**os.environ, "PYTHONPATH": path, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen([sys.executable, *command], cwd=root, env=environment, stdout=said, stderr=said)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        if process.returncode:
            raise SystemExit(f"{' '.join(command)} failed:\n{said.read()[-5000:]}")
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def table(costs: dict[int, dict[str, Cost]]) -> str:
    """Markdown: a line for each step, a column for each number of runs."""
    head = ["step", *(f"{num_runs:,} runs" for num_runs in costs)]
    lines = [head, ["---"] * len(head)]
    lines += [[step, *(str(found[step]) for found in costs.values())] for step in next(iter(costs.values()))]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    main()
