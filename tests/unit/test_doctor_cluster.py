"""The doctor's questions to a cluster, answered as SLURM's commands do; tests/cluster has a real one."""

import json
from contextlib import nullcontext

import pytest

from pipeline.core.errors import DataError
from pipeline.core.files import held
from pipeline.doctor import cluster, examine, job
from pipeline.doctor.finding import Subject, failed, ok
from pipeline.launch.queue import Answer, Job
from pipeline.site import Site, Slurm
from pipeline.study.resolve.entries import Graph

PARTITIONS = """\
PartitionName=cpu Default=NO MaxTime=UNLIMITED Nodes=c1
PartitionName=gpu Default=YES MaxTime=1-12:00:00 Nodes=n[1-3]
"""
# SLURM counts memory in MiB; the third node has no GPU, and the last belongs to a partition of a longer name.
NODES = """\
NodeName=n1 CPUTot=16 RealMemory=65536 Gres=gpu:a100:4(S:0-1) Partitions=gpu
NodeName=n2 CPUTot=8 RealMemory=131072 Gres=gpu:a100:2 Partitions=cpu,gpu
NodeName=n3 CPUTot=64 RealMemory=131072 Gres=(null) Partitions=gpu
NodeName=n9 CPUTot=512 RealMemory=1048576 Gres=gpu:a100:8 Partitions=gpu_long
"""


def subject(processes=1, device="auto", **slurm) -> Subject:
    site = Site(device=device, processes=processes, slurm=Slurm(**{"cpus": 2, "memory_gb": 8, "hours": 1, **slurm}))
    return Subject(Graph(scale="demo", note="", comparable=False), site, "mine.yaml")


@pytest.fixture
def said(monkeypatch):
    """What SLURM's commands print, by their last word; changed by a test that needs another cluster."""
    answers = {"partition": PARTITIONS, "node": NODES, "config": "MinJobAge = 300 sec\n", "format=Account": ""}
    monkeypatch.setattr(cluster, "output_of", lambda *command: answers[command[-1]])
    return answers


@pytest.fixture
def queued(monkeypatch):
    """What squeue shows, one answer for each time that it is asked; the last one stays."""
    answers = [Answer(1.0)]

    def ask() -> Answer:
        return answers.pop(0) if len(answers) > 1 else answers[0]

    monkeypatch.setattr(cluster, "ask", ask)
    monkeypatch.setattr(job, "ask", ask)
    return answers


def shown(*states) -> Answer:
    return Answer(
        1.0, {str(number): Job(str(number), state, "None", "", "", "") for number, state in enumerate(states)}
    )


# The queue


def test_queue__that_answers__counts_the_jobs_that_have_not_ended(said, queued):
    queued[:] = [shown("RUNNING", "COMPLETED", "PENDING", "FAILED")]
    found, memory = cluster.queue(subject(poll_s=30))
    assert found == ok("queue", "squeue answers; 2 jobs of yours in it") and memory.state == "ok"


@pytest.mark.parametrize(("poll_s", "state"), [(100, "ok"), (101, "failed")])
def test_queue__ended_jobs__are_remembered_for_three_looks(said, queued, poll_s, state):
    _, memory = cluster.queue(subject(poll_s=poll_s))
    assert memory.state == state and (state == "ok" or "slurm.poll_s in mine.yaml to 100 or less" in memory.remedy)


def test_queue__that_does_not_answer__is_the_only_finding(said, queued):
    queued[:] = [Answer(1.0, problem="no controller")]
    (finding,) = cluster.queue(subject())
    assert (finding.state, finding.text) == ("failed", "no controller")


# Partitions, accounts, nodes


@pytest.mark.parametrize(
    ("asked", "states"),
    [
        ({}, [("partition", "ok", "gpu, the cluster's default")]),
        ({"partition": "cpu"}, [("partition", "ok", "cpu")]),
        (
            {"partition": "gpux", "cpu_partition": "cpu"},
            [("partition", "failed", "no partition 'gpux'"), ("cpu_partition", "ok", "cpu")],
        ),
    ],
    ids=str,
)
def test_partitions__named_or_not__are_compared_with_those_there_are(said, asked, states):
    found = cluster.partitions(subject(**asked))
    assert [(finding.what, finding.state, finding.text) for finding in found] == states


def test_partitions__none_is_named_and_none_is_the_default__asks_for_a_name(said):
    said["partition"] = PARTITIONS.replace("YES", "NO")
    (finding,) = cluster.partitions(subject())
    assert finding.state == "failed" and "slurm.partition in mine.yaml: cpu, gpu" in finding.remedy


@pytest.mark.parametrize(
    ("storage", "account", "state"),
    [
        ("accounting_storage/none", "lab", "not applicable"),
        ("accounting_storage/slurmdbd", "lab", "ok"),
        ("accounting_storage/slurmdbd", None, "ok"),
        ("accounting_storage/slurmdbd", "nobody", "failed"),
    ],
)
def test_account__is_one_of_the_users_where_the_cluster_keeps_any(said, storage, account, state):
    said["config"] = f"AccountingStorageType   = {storage}\n"
    said["format=Account"] = "lab\nother\nlab\n"
    (finding,) = cluster.account(subject(account=account))
    assert finding.state == state and (state != "failed" or finding.remedy.endswith("to one of yours: lab, other"))


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({}, "2 CPUs, 8 GB, 1 gpu a node; partition gpu has 2 such nodes, a run takes up to 1"),
        ({"processes": 4}, "8 CPUs, 32 GB, 4 gpu a node; partition gpu has 1 such nodes"),
        ({"memory_gb": 64, "gres": None}, "2 CPUs, 64 GB a node; partition gpu has 3 such nodes"),
        ({"memory_gb": 65, "gres": None}, "2 CPUs, 65 GB a node; partition gpu has 2 such nodes"),
        ({"cpus": 64, "gres": None}, "64 CPUs, 8 GB a node; partition gpu has 1 such nodes"),
        ({"nodes": 2}, "partition gpu has 2 such nodes, a run takes up to 2"),
    ],
    ids=str,
)
def test_resources__that_nodes_of_the_partition_have__counts_those_nodes(said, asked, words):
    nodes, limit = cluster.resources(subject(**asked))
    assert nodes.state == "ok" and words in nodes.text and limit == ok("time limit", "1 h a job")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"cpus": 65}, "65 CPUs a node (slurm.cpus x processes 1) on 1 node; partition gpu has 0 such, its largest"),
        ({"memory_gb": 33, "processes": 4}, "132 GB a node (slurm.memory_gb x processes 4) on 1 node"),
        ({"processes": 5}, "5 gpu a node (slurm.gres x processes 5) on 1 node; partition gpu has 0 such, its largest"),
        ({"nodes": 3}, "1 gpu a node (slurm.gres x processes 1) on 3 nodes; partition gpu has 2 such"),
        # A node has the CPUs, another has the GPU, and none has both.
        ({"cpus": 20}, "1 gpu a node (slurm.gres x processes 1) on 1 node; partition gpu has 0 such"),
    ],
    ids=str,
)
def test_resources__that_too_few_nodes_have__are_a_failure_that_names_the_key(said, asked, words):
    nodes, _ = cluster.resources(subject(**asked))
    assert nodes.state == "failed" and words in nodes.text and "mine.yaml" in nodes.remedy


@pytest.mark.parametrize(("hours", "state"), [(36, "ok"), (36.01, "failed")])
def test_resources__time_limit__is_at_most_that_of_the_partition(said, hours, state):
    _, limit = cluster.resources(subject(hours=hours))
    assert limit.state == state and (state == "ok" or "slurm.hours in mine.yaml to 36 or less" in limit.remedy)


def test_resources__of_a_partition_that_is_not_there__are_not_compared(said):
    (finding,) = cluster.resources(subject(partition="gpux"))
    assert finding.state == "not applicable"


# All checks


def examined(monkeypatch, **findings) -> list[str]:
    """Names of the checks that ran on a cluster, each with the given state."""
    asked = []

    def check_of(name):
        def check(_):
            asked.append(name)
            if findings.get(name) == "error":
                raise DataError("gone")
            yield failed(name, "no", "do it") if name in findings else ok(name, "fine")

        return check

    checks = {name: check_of(name) for name in ("commands", "queue", "partitions", "account", "resources", "try_job")}
    for name, check in checks.items():
        monkeypatch.setattr(job if name == "try_job" else cluster, name, check)
    monkeypatch.setattr(examine, "HERE", [])
    monkeypatch.setattr(examine, "DATA", [])
    monkeypatch.setattr(examine, "LATER", [])
    monkeypatch.setattr(examine, "CLUSTER", [*checks.values()])
    found = [*examine.examine(subject().graph, subject().site)]
    assert [finding.state for finding in found] == ["failed" if name in findings else "ok" for name in asked]
    return asked


@pytest.mark.parametrize(
    ("failure", "num_checks"), [({}, 6), ({"commands": 1}, 1), ({"queue": 1}, 2), ({"partitions": 1}, 6)], ids=str
)
def test_examine__cluster_without_commands_or_answers__is_asked_no_more(monkeypatch, failure, num_checks):
    assert len(examined(monkeypatch, **failure)) == num_checks


def test_examine__check_that_ends_in_an_error_of_ours__is_a_finding_and_the_next_ones_run(monkeypatch):
    assert len(examined(monkeypatch, resources="error")) == 6


# The test job


def test_job__gone_or_ended_or_not_known__is_told_apart(queued):
    running = Job("0", "RUNNING", "None", "", "", "")
    queued[:] = [shown("RUNNING"), Answer(1.0, problem="no controller"), shown("COMPLETED"), shown()]
    assert job._asked("0") == (running, False)
    assert job._asked("0", running) == (running, False)
    assert job._asked("0", running) == (running._replace(state="COMPLETED"), True)
    assert job._asked("0", running) == (None, True)


@pytest.mark.parametrize(
    ("answers", "state"), [(["PENDING"], "PENDING"), (["PENDING", "RUNNING", "FAILED"], "FAILED")], ids=str
)
def test_job__that_waits_or_ends_without_a_word__is_waited_for_no_longer_than_it_may(
    queued, tmp_path, monkeypatch, answers, state
):
    queued[:] = [shown(answer) for answer in answers]
    monkeypatch.setattr(job, "LOOK_S", 0.0)
    monkeypatch.setattr(job, "QUEUE_S", 0.01)
    assert job._wait("0", tmp_path / "seen.json").state == state


SEEN = {
    **{"host": "h1", "node": "n1", "python": "/p", "sees_lock": True},
    **{"visible": "0", "gpus": ["an A100"], "nvidia_smi": "no driver"},
}


@pytest.mark.parametrize(
    ("site", "gpus", "state", "words"),
    [
        ({}, ["an A100"], "ok", "an A100 (CUDA_VISIBLE_DEVICES=0)"),
        ({}, [], "failed", "torch sees no GPU on n1; CUDA_VISIBLE_DEVICES=0, no driver"),
        ({"gres": None}, [], "not applicable", "the site file asks for none"),
        ({"device": "cpu"}, [], "not applicable", "the site file asks for none"),
    ],
    ids=str,
)
def test_job__that_ran__says_whether_it_had_the_gpu_that_was_asked_for(site, gpus, state, words):
    ran, locks, gpu = job._judge(subject(**site), SEEN | {"gpus": gpus}, "7")
    assert ran == ok("test job", "job 7 ran on n1 and found the project and /p")
    assert locks == ok("locks", "a lock of this machine holds on n1, too")
    assert (gpu.state, gpu.text) == (state, words)


def test_job__that_does_not_see_a_lock_of_the_login_node__says_what_could_happen_and_what_to_do():
    _, locks, _ = job._judge(subject(), SEEN | {"sees_lock": False}, "7")
    assert locks.state == "failed" and locks.text.startswith("a lock of this machine does not hold on n1: two jobs")
    assert "set locks in mine.yaml" in locks.remedy and "Lustre with -o flock" in locks.remedy


def test_look_around__sees_the_lock_only_while_it_is_held(tmp_path, monkeypatch):
    monkeypatch.setattr(job, "_gpus", lambda: [])
    found = []
    for is_free in (False, True):
        with held(tmp_path / "lock", "it") if not is_free else nullcontext():
            job.look_around(tmp_path / "seen.json")
        found.append(json.loads((tmp_path / "seen.json").read_text())["sees_lock"])
    assert found == [True, False]
