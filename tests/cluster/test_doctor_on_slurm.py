"""The doctor on a real cluster: all is well; each mistake of a site file gets a cross and a remedy, all in one go."""

import re
from pathlib import Path

import pytest
from bench import SLURM, copy_for, write_yaml

from pipeline.doctor import cluster as checks
from pipeline.doctor.finding import Subject
from pipeline.doctor.job import try_job
from pipeline.launch.slurm import scancel
from pipeline.site import Site, Slurm
from pipeline.study.resolve.entries import Graph

pytestmark = pytest.mark.slow
ON_GPUS = {**SLURM, "gres": "gpu"}


def doctor(project, site: dict, *arguments: str):
    write_yaml(project.root / "mine.yaml", site)
    return project.run("python", "-m", "pipeline", "doctor", "--site", "mine.yaml", *arguments)


def marked(text: str, mark: str) -> list[str]:
    return re.findall(rf"^{mark} (\w[\w ]*?)  ", text, re.MULTILINE)


@pytest.fixture
def patient(cluster, tmp_path, monkeypatch):
    """Makes a patient with these wishes, on a machine that has the cluster's commands."""
    monkeypatch.setenv("PATH", cluster.env["PATH"])
    monkeypatch.setattr("pipeline.results.RESULTS", tmp_path)

    def make(processes: int = 1, **slurm: object) -> Subject:
        site = Site(device="cpu", processes=processes, slurm=Slurm(**{**ON_GPUS, **slurm}))
        return Subject(Graph(scale="demo", note="", comparable=False), site, "mine.yaml")

    (tmp_path / "demo").mkdir()
    return make


def test_doctor__site_that_fits_the_cluster__is_content_and_leaves_nothing(cluster, template, tmp_path):
    project = copy_for(cluster, template, tmp_path / "clone")
    result = doctor(project, {"device": "cpu", "processes": 2, "slurm": ON_GPUS})
    assert result.returncode == 0, result.stdout + result.stderr
    assert marked(result.stdout, "\N{BALLOT X}") == []
    assert re.search(r"test job +job \d+ ran on n[12] and found the project and \S+python", result.stdout)
    assert re.search(r"locks +a lock of this machine holds on n[12], too", result.stdout)
    assert "2 CPUs, 2 GB, 2 gpu a node; partition main has 2 such nodes" in result.stdout
    assert "0 failed" in result.stdout and result.stdout.endswith("this site can run this scale\n")
    assert [*(project.root / "results/demo").glob("*doctor*")] == []


def test_doctor__site_with_many_mistakes__names_each_with_its_remedy(cluster_with_accounting, template, tmp_path):
    project = copy_for(cluster_with_accounting, template, tmp_path / "clone")
    slurm = {**SLURM, "partition": "gpus", "cpu_partition": "cpus", "account": "nobody", "poll_s": 1500}
    site = {"data": {"fashion_mnist": "/nowhere"}, "tracking_uri": "http://127.0.0.1:9", "slurm": slurm}
    result = doctor(project, site)
    failures = [
        "data fashion_mnist",
        "tracking",
        "memory of queue",
        "partition",
        "cpu_partition",
        "account",
        "test job",
    ]
    assert result.returncode == 1 and "Traceback" not in result.stderr
    assert marked(result.stdout, "\N{BALLOT X}") == failures, result.stdout + result.stderr
    assert result.stdout.count("-> ") == len(failures)
    for words in (
        "set slurm.partition in mine.yaml to one of main, grace, urgent",
        "'nobody' is no account of ",
        "to one of yours: lab",
        "set slurm.poll_s in mine.yaml to 1200 or less",
        "sbatch refused it: sbatch: error: ",
    ):
        assert words in result.stdout, result.stdout


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        (
            {"cpus": 5},
            "5 CPUs a node (slurm.cpus x processes 1) on 1 node; partition main has 0 such, its largest has 4",
        ),
        ({"memory_gb": 3, "processes": 3}, "9 GB a node (slurm.memory_gb x processes 3) on 1 node"),
        (
            {"processes": 3},
            "3 gpu a node (slurm.gres x processes 3) on 1 node; partition main has 0 such, its largest has 2",
        ),
        ({"gres": "gpu:a100"}, "1 gpu:a100 a node (slurm.gres x processes 1)"),
        ({"nodes": 3}, "1 CPUs a node (slurm.cpus x processes 1) on 3 nodes; partition main has 2 such"),
    ],
)
def test_resources__more_than_a_node_has__says_what_the_largest_has(patient, wishes, words):
    nodes, time_limit = checks.resources(patient(**wishes))
    assert (nodes.state, time_limit.state) == ("failed", "ok") and words in nodes.text and "mine.yaml" in nodes.remedy


def test_resources__longer_than_the_partition_gives__says_how_long(cluster, patient):
    cluster.run("scontrol", "update", "PartitionName=grace", "MaxTime=90")
    try:
        nodes, time_limit = checks.resources(patient(partition="grace", hours=2))
    finally:
        cluster.run("scontrol", "update", "PartitionName=grace", "MaxTime=UNLIMITED")
    assert (nodes.state, time_limit.state) == ("ok", "failed")
    assert "partition grace gives 1.5" in time_limit.text


def test_job__in_a_full_queue__is_given_up_without_a_failure(cluster, patient, monkeypatch):
    monkeypatch.setattr("pipeline.doctor.job.QUEUE_S", 3)
    blocker = cluster.run("sbatch", "--parsable", "--exclusive", "--nodes=2", "--output=/dev/null", "--wrap=sleep 600")
    try:
        (finding,) = try_job(patient())
    finally:
        scancel(blocker)
    assert finding.state == "not applicable" and "still waited after 3 s (" in finding.text
    assert "doctor" not in cluster.run("squeue", "--noheader", "--format=%j")


def test_job__that_ends_without_a_word__is_shown_with_its_log(patient):
    (finding,) = try_job(patient(setup=["echo no module named cuda", "exit 3"]))
    assert finding.state == "failed" and "no module named cuda" in finding.text
    assert Path(re.search(r"no word in (\S+):", finding.text)[1]).is_dir()


def test_commands__on_a_machine_without_slurm__says_where_they_are(patient, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    (finding,) = checks.commands(patient())
    assert finding.text == "no sbatch, squeue, scancel, scontrol, srun" and "login node" in finding.remedy
