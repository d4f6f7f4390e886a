"""What a run asks of network, file system and disk on many GPUs: computed from its model and its speed on one.

Every GPU takes an equal part of the global batch. Gradients are summed around a ring, in which each link, also the one
between two nodes, carries 2 (n - 1) / n times their bytes. They are sent during the backward pass, which has two thirds
of a step's operations: a network that is slower than `node_bytes_per_s` makes the GPUs wait. What networks and file
systems manage is assumed, and named so; all else is counted or measured.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pipeline.core.config import Layers
from pipeline.plan.loops import Pass
from pipeline.plan.speed import speed_on_gpu

if TYPE_CHECKING:
    from pipeline.engine.run import RunConfig


BACKWARD = 2 / 3  # of a step: two products backward for each one forward
COUNTS = (8, 16, 32, 64)  # GPUs; 8 are one node, which needs no network
ASSUMED_NODE_BYTES_PER_S = 50e9  # one port of 400 Gbit/s for the eight GPUs of a node
ASSUMED_FILES_PER_S = 50_000  # that a shared file system opens, for all nodes together


@dataclass(frozen=True)
class Files:
    """Photographs as they were measured."""

    mean_bytes: float
    decoded_per_s: float  # on one core, and nothing else done with them
    index_bytes: float  # of the lists of a prepared set, for each of its files


@dataclass(frozen=True)
class Need:
    """What one run needs on this number of GPUs, each as fast as `images_per_s`."""

    method: str
    model: str
    gpus: int
    global_batch: int
    most_gpus: int  # with the recipe's own micro-batches
    images_per_s: float  # of one GPU
    source: str
    gradient_bytes: int
    checkpoint_bytes: int
    num_train: int
    files: Files

    @property
    def step_s(self) -> float:
        return self.global_batch / self.gpus / self.images_per_s

    @property
    def sent_bytes(self) -> float:
        """Over each link, in a step."""
        return ring_bytes(self.gradient_bytes, self.gpus)

    @property
    def node_bytes_per_s(self) -> float:
        """What the network of a node must carry, so that sending takes no longer than the backward pass."""
        return self.sent_bytes / (BACKWARD * self.step_s)

    @property
    def files_per_s(self) -> float:
        """Opened and read, all GPUs together."""
        return self.gpus * self.images_per_s

    @property
    def read_bytes_per_s(self) -> float:
        return self.files_per_s * self.files.mean_bytes

    @property
    def cores(self) -> float:
        """CPU cores that one GPU needs only for decoding."""
        return self.images_per_s / self.files.decoded_per_s

    @property
    def epoch_s(self) -> float:
        return self.num_train / self.files_per_s

    def report(self) -> dict[str, Any]:
        """All of it, computed numbers too."""
        computed = ("step_s", "sent_bytes", "node_bytes_per_s", "files_per_s", "read_bytes_per_s", "cores", "epoch_s")
        return asdict(self) | {name: getattr(self, name) for name in computed}


def ring_bytes(num_bytes: float, processes: int) -> float:
    """What each process sends so that all have the sum: its parts go around once to be summed, once to be shared."""
    return 2 * (processes - 1) / processes * num_bytes


def needs_of(config: dict[str, Any], files: Files, counts: Sequence[int] = COUNTS) -> list[Need]:
    """List the needs of a run on one node, where steps may be recorded as CUDA graphs, and on several nodes."""
    from pipeline.engine.checkpoint import KEPT
    from pipeline.engine.run import parse_run
    from pipeline.plan.operations import step_cost

    run = parse_run(Layers(("the plan", config)))
    cost, batch, num_bytes = step_cost(run), run.optim.global_batch, gradient_bytes(run)
    kind, gflop = (run.method.name, run.model.arch), cost["gflop_per_image"]
    return [
        Need(
            method=run.method.name,
            model=run.model.name,
            gpus=gpus,
            global_batch=batch,
            most_gpus=run.optim.num_micro,
            **speed_on_gpu(Pass(*kind, gflop, batch // gpus, gpus <= COUNTS[0]))._asdict(),
            gradient_bytes=num_bytes,
            checkpoint_bytes=cost["checkpoints_bytes"] // KEPT,
            num_train=run.data.num_train,
            files=files,
        )
        for gpus in counts
    ]


def gradient_bytes(run: "RunConfig") -> int:
    """Count the bytes of all float32 gradients, from a model without values."""
    import torch

    from pipeline.engine.loop import build_method

    with torch.device("meta"):
        method = build_method(run)
    return sum(p.numel() * p.element_size() for p in method.parameters() if p.requires_grad)


HEADER = [
    "| run | ms a step | gradients, MB | network of a node, GB/s | files/s | checkpoint, GB "
    "| GPUs by micro-batches | by network | by files | files, GB/s | cores a GPU |",
    "|---|---|---|---|---|---|---|---|---|---|---|",
]


def needs_table(runs: list[list[Need]]) -> str:
    """Markdown: each run on the most GPUs, how many would do with what is assumed, and where speeds are from."""
    sources = [f"{needs[-1].method} {needs[-1].model}: {needs[-1].source}" for needs in runs]
    return "\n".join([*HEADER, *map(_line, runs), "", *sources]) if runs else ""


def _line(needs: list[Need]) -> str:
    need = needs[-1]
    step = f"{1000 * need.step_s:.1f} | {need.gradient_bytes / 1e6:,.0f} | {need.node_bytes_per_s / 1e9:,.0f}"
    disk = f"{need.files_per_s:,.0f} | {need.checkpoint_bytes / 1e9:.2f} | {need.most_gpus}"
    network = _most(n for n in needs if n.gpus <= COUNTS[0] or n.node_bytes_per_s <= ASSUMED_NODE_BYTES_PER_S)
    files = _most(n for n in needs if n.files_per_s <= ASSUMED_FILES_PER_S)
    measured = f"{need.read_bytes_per_s / 1e9:.1f} | {need.cores:.1f}"
    return f"| {need.method} {need.model} | {step} | {disk} | {network} | {files} | {measured} |"


def _most(fitting: Iterable[Need]) -> str:
    return str(max((need.gpus for need in fitting), default=f"below {COUNTS[0]}"))
