"""Evaluations and data through `--profile slurm`: each job asks the queue for what it needs."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
import yaml
from bench import Trial, copy_for, write_yaml
from patience import wait_until
from project import Project

from slurm import Cluster

pytestmark = pytest.mark.slow

FIGURE = {
    "label": "Figure 1",
    "title": "Shuffled images",
    "kind": "pictures",
    "columns": {"shuffled": {"label": "shuffled", "eval": "jigsaw_pictures", "file": "shuffled.png"}},
    "rows": {"all": {"label": "images", "paper": False}},
}
CORRUPTIONS = {
    "label": "Table 2",
    "title": "Corrupted images",
    "columns": {"error": {"label": "error", "eval": "corruptions", "metric": "error"}},
    "rows": {"s0": {"label": "seed 0", "run": "s0", "paper": False}},
}
PARTS = ["fashion_mnist_c-fog", "fashion_mnist_c-contrast"]  # of fifteen
PICTURES = {"name": "jigsaw_pictures", "data": {"images": "fashion_mnist"}, "patches": 7}
SLURM = {"partition": "main", "cpu_partition": "grace", "gres": "gpu", "memory_gb": 3}


@dataclass(frozen=True)
class Asked:
    """What a job asked the queue for, in squeue's words."""

    partition: str
    gres: str
    memory: str
    limit: str
    state: str


@pytest.fixture(scope="module")
def project(cluster, undisturbed, tmp_path_factory) -> Project:
    """A copy in which everything is trained and nothing evaluated; one evaluation there needs no GPU and no run."""
    project = copy_for(cluster, undisturbed, tmp_path_factory.mktemp("evaluations") / "clone")
    shutil.rmtree(project.root / "results/demo/evals")
    study = project.root / "configs/study/tiny.yaml"
    content = yaml.safe_load(study.read_text())
    content["tables"]["t2"], content["figures"] = CORRUPTIONS, {"f1": FIGURE}
    write_yaml(study, content)
    configs = project.root / "configs/eval"
    write_yaml(configs / "jigsaw_pictures.yaml", {**PICTURES, "needs": {"gpu": False, "hours": 0.4}})
    write_yaml(
        configs / "corruptions.yaml",
        {"name": "corruptions", "group": "robustness", "data": {"corrupted": "fashion_mnist_c"}},
    )
    write_yaml(configs / "classify.yaml", {"name": "classify", "needs": {"memory_gb": 2, "hours": 1.9}})
    return project


@pytest.fixture(scope="module")
def asked(cluster, project) -> dict[str, Asked]:
    """Job -> what it asked for, of the evaluation of a run, of the one without, and of two parts of a set."""
    graph = project.graph("demo")
    trial = Trial(project, cluster, next(iter(graph.runs)))
    trial.pace(0)
    site = trial.write_site(**SLURM, options={"begin": "now+1hour"})
    jobs = [f"{trial.paths.name}-quick", *(name for name in graph.eval_jobs if name.startswith("jigsaw_pictures-"))]
    names = [*jobs, *PARTS]
    files = [f"results/demo/evals/{job}.json" for job in jobs]
    files += [f"results/demo/data/{part}/manifest.json" for part in PARTS]
    options = ["--profile", "slurm", "--config", "scale=demo", f"site={site}"]
    options += ["--slurm-init-seconds-before-status-checks", "3"]
    with ThreadPoolExecutor() as pool:
        first = pool.submit(project.run, "snakemake", *files, *options)
        try:
            wait_until(lambda: first.done() or len(submitted(cluster, project)) == len(files), str)
            # As another Snakemake would, or a user: a job whose log cannot be opened does not start.
            shutil.rmtree(project.root / f"results/slurm-logs/rule_evaluate/demo_{jobs[0]}")
        finally:
            wait_until(lambda: release(cluster, project) or first.done(), str, every_s=1)
    result = first.result()
    assert result.returncode == 0, result.stdout + result.stderr
    assert all((project.root / file).exists() for file in files)
    (again,) = [line for line in result.stderr.splitlines() if "submitting it again" in line]
    assert "could not start on n1 (JobLaunchFailure), as when its log cannot be opened" in again and jobs[0] in again
    # One job was submitted twice: its second submission counts.
    last = {job: [each for comment, each in submitted(cluster, project) if comment.endswith(job)][-1] for job in names}
    assert len(submitted(cluster, project)) == len(files) + 1
    return last


def submitted(cluster: Cluster, project: Project) -> list[tuple[str, Asked]]:
    """Comment and request of every job from this project, in the order of submission."""
    columns = "--format=%i|%k|%Z|%P|%b|%m|%l|%T"
    lines = cluster.run("squeue", "--noheader", "--states=all", "--sort=i", columns).splitlines()
    found = [line.replace("gres/", "gres:").split("|") for line in lines]  # versions of SLURM write it either way
    return [(comment, Asked(*rest)) for _, comment, folder, *rest in found if folder == str(project.root)]


def release(cluster: Cluster, project: Project) -> None:
    """Let every job from this project start that waits."""
    lines = cluster.run("squeue", "--noheader", "--states=PENDING", "--format=%i|%Z").splitlines()
    for job, folder in (line.split("|") for line in lines):
        if folder == str(project.root):
            cluster.release(job)


def test_evaluation__that_needs_no_gpu__goes_to_the_cpu_partition_without_gres(asked):
    (job,) = [name for name in asked if name.startswith("jigsaw_pictures-")]
    # Half an hour: its own 0.4 hours, and 0.1 to start.
    assert asked[job] == Asked("grace", "N/A", "3000M", "30:00", "COMPLETED")


def test_evaluation__that_needs_a_gpu_and_memory__gets_both_and_its_hours(asked):
    (job,) = [name for name in asked if name.endswith("-quick")]
    assert asked[job] == Asked("main", "gres:gpu:1", "2000M", "2:00:00", "COMPLETED")


def test_picture__computed_in_the_queue__is_the_one_of_this_machine(project, asked):
    (job,) = [name for name in asked if name.startswith("jigsaw_pictures-")]
    picture = project.root / "results/demo/evals" / job / "shuffled.png"
    before = picture.read_bytes()
    picture.unlink()
    done = project.run("python", "-m", "pipeline", "evaluate", "--job", job)
    assert done.returncode == 0, done.stderr
    assert picture.read_bytes() == before


def test_parts_of_a_set__are_prepared_by_a_job_each(project, asked):
    assert len([name for name in project.graph("demo").data if name.startswith("fashion_mnist_c-")]) == 15
    assert [asked[part] for part in PARTS] == [Asked("grace", "N/A", "3000M", "1:00:00", "COMPLETED")] * len(PARTS)
