"""How many processes a run gets, and what its SLURM job asks for: derived from the run and the site."""

import math
from typing import Any, NamedTuple

from pipeline.core.config import CONFIGS
from pipeline.launch.gpus import gpus_of
from pipeline.site import Site


class Shape(NamedTuple):
    """Nodes, and processes on each of them."""

    nodes: int
    processes: int

    @property
    def size(self) -> int:
        return self.nodes * self.processes


def shape_of(num_micro: int, site: Site) -> Shape:
    """The most processes that share the micro-batches of a step evenly, on as few nodes as that takes."""
    most_nodes = site.slurm.nodes if site.slurm else 1
    most_processes = min(site.processes, len(gpus_of(site)) or site.processes)
    shapes = [Shape(nodes, each) for nodes in range(1, most_nodes + 1) for each in range(1, most_processes + 1)]
    return max((shape for shape in shapes if num_micro % shape.size == 0), key=lambda s: (s.size, -s.nodes))


def sbatch_options(site: Site, nodes: int, processes: int) -> dict[str, Any]:
    """What submitit's SlurmExecutor is given for a job of this shape."""
    slurm = site.cluster
    optional = {
        "partition": slurm.partition,
        "account": slurm.account,
        "gres": slurm.gres and f"{slurm.gres}:{processes}",
    }
    return {key: value for key, value in optional.items() if value} | {
        "nodes": nodes,
        "ntasks_per_node": processes,
        "cpus_per_task": slurm.cpus,
        "mem": f"{slurm.memory_gb * processes}GB",
        "time": math.ceil(slurm.hours * 60),
        "signal_delay_s": slurm.warning_s,
        # The shell outlives SIGTERM: the processes below it need the time until SIGKILL for their checkpoint.
        "setup": ["trap : TERM", *slurm.setup],
        "stderr_to_stdout": True,
        # One failed process ends all, which would wait for it; srun does not take cpus-per-task over from sbatch.
        "srun_args": ["--kill-on-bad-exit=1", f"--cpus-per-task={slurm.cpus}"],
        "additional_parameters": {"requeue": True, "chdir": str(CONFIGS.parent), **slurm.options},
    }
