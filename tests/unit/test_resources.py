"""What a run asks a cluster for."""

import pytest

from pipeline.core.config import CONFIGS
from pipeline.launch.resources import Shape, sbatch_options, shape_of
from pipeline.site import Site, Slurm


@pytest.mark.parametrize(
    ("num_micro", "nodes", "processes", "expected"),
    [
        (32, 1, 8, (1, 8)),
        (32, 4, 8, (4, 8)),
        (8, 4, 8, (1, 8)),  # one node is enough
        (4, 2, 8, (1, 4)),
        (6, 2, 4, (2, 3)),
        (12, 2, 8, (2, 6)),
        (1, 4, 8, (1, 1)),
        (7, 2, 4, (1, 1)),
    ],
)
def test_shape__of_a_run_on_a_site__is_the_most_processes_that_divide_its_batch(num_micro, nodes, processes, expected):
    site = Site(processes=processes, slurm=Slurm(nodes=nodes))
    assert shape_of(num_micro, site) == Shape(*expected)


def test_shape__on_one_machine__is_one_node():
    assert shape_of(16, Site(processes=4)) == Shape(1, 4)


def test_sbatch_options__of_two_nodes__multiply_what_a_process_needs():
    site = Site(slurm=Slurm(partition="gpu", gres="gpu:a100", cpus=6, memory_gb=10, hours=1.5, options={"qos": "long"}))
    options = sbatch_options(site, nodes=2, processes=4)
    asked = {"nodes": 2, "ntasks_per_node": 4, "cpus_per_task": 6, "mem": "40GB", "gres": "gpu:a100:4", "time": 90}
    assert asked.items() <= options.items()
    assert options["additional_parameters"]["qos"] == "long" and "account" not in options


def test_sbatch_options__of_a_site_without_gpus__ask_for_none():
    assert "gres" not in sbatch_options(Site(slurm=Slurm(gres=None)), nodes=1, processes=1)


def test_sbatch_options__of_a_site__are_exactly_these():
    slurm = Slurm(account="lab", gres=None, cpus=3, memory_gb=7, hours=1.51, warning_s=90, setup=["module load cuda"])
    options = sbatch_options(Site(slurm=slurm.model_copy(update={"options": {"requeue": "no"}})), nodes=1, processes=2)
    assert options == {
        "account": "lab",
        "nodes": 1,
        "ntasks_per_node": 2,
        "cpus_per_task": 3,
        "mem": "14GB",
        "time": 91,  # minutes; 90.6 are not cut to 90
        "signal_delay_s": 90,
        "setup": ["trap : TERM", "module load cuda"],
        "stderr_to_stdout": True,
        "srun_args": ["--kill-on-bad-exit=1", "--cpus-per-task=3"],
        "additional_parameters": {"requeue": "no", "chdir": str(CONFIGS.parent)},  # what a site says wins
    }
    plain = sbatch_options(Site(slurm=Slurm()), nodes=1, processes=1)
    assert plain["additional_parameters"]["requeue"] is True and plain["gres"] == "gpu:1"
