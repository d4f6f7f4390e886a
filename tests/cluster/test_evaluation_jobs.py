"""Evaluations and data through `--profile slurm`: each job asks the queue for what it needs."""

import shutil
from dataclasses import dataclass

import pytest
import yaml
from bench import Trial, copy_for, write_yaml
from project import Project

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
    site = trial.write_site(**SLURM)
    jobs = [f"{trial.paths.name}-quick", *(name for name in graph.eval_jobs if name.startswith("jigsaw_pictures-"))]
    files = [f"results/demo/evals/{job}.json" for job in jobs]
    files += [f"results/demo/data/{part}/manifest.json" for part in PARTS]
    options = ["--profile", "slurm", "--config", "scale=demo", f"site={site}"]
    result = project.run("snakemake", *files, *options, "--slurm-init-seconds-before-status-checks", "3")
    assert result.returncode == 0, result.stdout + result.stderr
    assert all((project.root / file).exists() for file in files)
    lines = cluster.run("squeue", "--noheader", "--states=all", "--format=%k|%Z|%P|%b|%m|%l|%T").splitlines()
    found = [line.replace("gres/", "gres:").split("|") for line in lines]  # versions of SLURM write it either way
    ours = [(comment, Asked(*rest)) for comment, folder, *rest in found if folder == str(project.root)]
    assert len(ours) == len(files), ours
    return {job: next(each for comment, each in ours if comment.endswith(job)) for job in [*jobs, *PARTS]}


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
