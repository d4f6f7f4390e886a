"""The cluster: its commands, its partitions, and whether what the site file asks for is there."""

import getpass
import re
import shutil
import subprocess
from collections.abc import Iterator

from pipeline.doctor.finding import Finding, Subject, failed, not_applicable, ok
from pipeline.launch.queue import ask
from pipeline.launch.resources import sbatch_options

COMMANDS = ("sbatch", "squeue", "scancel", "scontrol", "srun")
ANSWER_S = 30
Facts = dict[str, str]  # what scontrol says of one thing


def output_of(*command: str) -> str:
    """What a command of SLURM prints; nothing where it fails or does not answer."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def facts_of(kind: str) -> list[Facts]:
    """Every node or partition, as scontrol shows it."""
    lines = output_of("scontrol", "--oneliner", "show", kind).splitlines()
    return [dict(re.findall(r"(\w+)=(\S+)", line)) for line in lines]


def commands(subject: Subject) -> Iterator[Finding]:
    missing = [name for name in COMMANDS if shutil.which(name) is None]
    if missing:
        yield failed("commands", f"no {', '.join(missing)}", "load the slurm module, or run this on a login node")
    else:
        yield ok("commands", f"{', '.join(COMMANDS)} found")


def queue(subject: Subject) -> Iterator[Finding]:
    """It answers, and remembers an ended job long enough to be seen."""
    answer = ask()
    if answer.problem:
        yield failed("queue", answer.problem, "see whether `squeue --me` works in this shell; ask the administrators")
        return
    yield ok("queue", f"squeue answers; {sum(not job.has_ended for job in answer.jobs.values())} jobs of yours in it")
    poll_s, found = (
        subject.site.cluster.poll_s,
        re.search(r"MinJobAge\s*=\s*(\d+)", output_of("scontrol", "show", "config")),
    )
    age = int(found[1]) if found else 0
    if age < 3 * poll_s:
        remedy = (
            f"set slurm.poll_s in {subject.site_file} to {age // 3} or less: a job could end unseen between two looks"
        )
        yield failed(
            "memory of queue",
            f"ended jobs are forgotten after {age} s (MinJobAge), looks are {poll_s:g} s apart",
            remedy,
        )
    else:
        yield ok("memory of queue", f"ended jobs are seen for {age} s, looks are {poll_s:g} s apart")


def partitions(subject: Subject) -> Iterator[Finding]:
    slurm, there = subject.site.cluster, facts_of("partition")
    names = [facts["PartitionName"] for facts in there]
    for key in ("partition", "cpu_partition"):
        name = getattr(slurm, key)
        if name and name not in names:
            remedy = f"set slurm.{key} in {subject.site_file} to one of {', '.join(names) or '(none are shown)'}"
            yield failed(key, f"no partition {name!r}", remedy)
        elif name:
            yield ok(key, name)
    if not slurm.partition:
        name = _partition(subject).get("PartitionName")
        remedy = f"name one in slurm.partition in {subject.site_file}: {', '.join(names)}"
        yield ok("partition", f"{name}, the cluster's default") if name else failed("partition", "no default", remedy)


def _partition(subject: Subject) -> Facts:
    """That of training jobs; empty if the cluster has no such partition."""
    wanted = subject.site.cluster.partition
    fits = [f for f in facts_of("partition") if (f["PartitionName"] == wanted if wanted else f.get("Default") == "YES")]
    return fits[0] if fits else {}


def account(subject: Subject) -> Iterator[Finding]:
    wanted = subject.site.cluster.account
    storage = re.search(r"AccountingStorageType\s*=\s*(\S+)", output_of("scontrol", "show", "config"))
    if storage is None or not storage[1].endswith("slurmdbd"):
        yield not_applicable("account", "this cluster keeps no accounts")
        return
    format = "--noheader", "--parsable2", "format=Account"
    listed = output_of("sacctmgr", "show", "associations", f"user={getpass.getuser()}", *format)
    known = sorted(set(listed.split()))
    if wanted and wanted not in known:
        remedy = f"set slurm.account in {subject.site_file} to one of yours: {', '.join(known) or '(none)'}"
        yield failed("account", f"{wanted!r} is no account of {getpass.getuser()}", remedy)
    else:
        yield ok("account", wanted or f"the default one of {', '.join(known) or 'nobody'}")


def resources(subject: Subject) -> Iterator[Finding]:
    """Nodes of the partition that have what one node of a run asks for, and time."""
    slurm, partition = subject.site.cluster, _partition(subject)
    if not partition:
        yield not_applicable("resources", "not compared: there is no such partition")
        return
    asked = sbatch_options(subject.site, slurm.nodes, subject.site.processes)
    name = partition["PartitionName"]
    nodes = [node for node in facts_of("node") if name in node.get("Partitions", "").split(",")]
    yield _nodes_finding(subject, asked, nodes, name)
    limit = minutes(partition.get("MaxTime", "UNLIMITED"))
    if asked["time"] > limit:
        remedy = (
            f"set slurm.hours in {subject.site_file} to {limit / 60:g} or less: a longer run continues in the next job"
        )
        yield failed("time limit", f"slurm.hours {slurm.hours:g}; partition {name} gives {limit / 60:g}", remedy)
    else:
        yield ok("time limit", f"{slurm.hours:g} h a job")


def _nodes_finding(subject: Subject, asked: dict, nodes: list[Facts], name: str) -> Finding:
    """Enough nodes, or the request that too few of them can meet."""
    count, processes, site_file = asked["nodes"], asked["ntasks_per_node"], subject.site_file
    requested = {
        "slurm.cpus": (asked["cpus_per_task"] * processes, "CPUs", lambda node: int(node["CPUTot"])),
        "slurm.memory_gb": (
            subject.site.cluster.memory_gb * processes,
            "GB",
            lambda node: int(node["RealMemory"]) // 1024,
        ),
    }
    if asked.get("gres"):
        kind = asked["gres"].rpartition(":")[0]
        requested["slurm.gres"] = (processes, kind, lambda node: num_gres(node.get("Gres", ""), kind))
    for key, (amount, unit, has) in requested.items():
        fitting = [node for node in nodes if has(node) >= amount]
        if len(fitting) < count:
            most = max(map(has, nodes), default=0)
            text = (
                f"{amount} {unit} a node ({key} x processes {processes}) on {count} node{'s' * (count > 1)}; partition "
                f"{name} has {len(fitting)} such, its largest has {most}"
            )
            return failed("resources", text, f"lower {key} or processes in {site_file}, or choose another partition")
        nodes = fitting
    words = ", ".join(f"{amount} {unit}" for amount, unit, _ in requested.values())
    return ok("resources", f"{words} a node; partition {name} has {len(nodes)} such nodes, a run takes up to {count}")


def num_gres(text: str, kind: str) -> int:
    """How many of `gpu` or `gpu:a100` a node has: 6 in `gpu:a100:4(S:0-1),gpu:v100:2`."""
    found = re.findall(r"([^,(]+?):(\d+)(?:\([^)]*\))?(?:,|$)", text)
    return sum(int(count) for name, count in found if name == kind or name.startswith(f"{kind}:"))


def minutes(limit: str) -> float:
    """SLURM's `1-12:00:00`, `30:00` or UNLIMITED."""
    if not limit[:1].isdigit():
        return float("inf")
    days, _, clock = limit.rpartition("-")
    hours, mins, seconds = ([0, 0] + [int(part) for part in clock.split(":")])[-3:]
    return int(days or 0) * 1440 + hours * 60 + mins + seconds / 60
