"""What a run asks of network, file system and disk on many GPUs: computed from its model and its speed on one.

Every GPU takes an equal part of the global batch. Gradients are summed around a ring, in which each link, also the one
between two nodes, carries 2 (n - 1) / n times their bytes. They are sent during the backward pass, which has two thirds
of a step's operations: a network that is slower than `node_bytes_per_s` makes the GPUs wait.
"""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pipeline.config import Layers
from pipeline.plan.loops import Pass
from pipeline.plan.speed import speed_on_gpu

if TYPE_CHECKING:
    from pipeline.engine.run import RunConfig


@dataclass(frozen=True)
class Files:
    """Photographs as they were measured."""

    mean_bytes: float
    decoded_per_s: float  # on one core, and nothing else done with them
    index_bytes: float  # of the lists of a prepared set, for each of its files


BACKWARD = 2 / 3  # of a step: two products backward for each one forward


@dataclass(frozen=True)
class Need:
    """Of one run on so many GPUs, each as fast as `images_per_s` says."""

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
        """Of a GPU, for decoding alone."""
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


def need_of(config: dict[str, Any], gpus: int, files: Files) -> Need:
    """Of a run's config on GPUs of several nodes, where steps are not recorded."""
    from pipeline.engine.checkpoint import KEPT
    from pipeline.engine.run import parse_run
    from pipeline.plan.operations import step_cost

    run = parse_run(Layers(("the plan", config)))
    cost, optim = step_cost(run), run.optim
    asked = Pass(run.method.name, run.model.arch, cost["gflop_per_image"], optim.global_batch // gpus, False)
    rate, source = speed_on_gpu(asked)
    return Need(
        method=run.method.name,
        model=run.model.name,
        gpus=gpus,
        global_batch=optim.global_batch,
        most_gpus=optim.num_micro,
        images_per_s=rate,
        source=source,
        gradient_bytes=gradient_bytes(run),
        checkpoint_bytes=cost["checkpoints_bytes"] // KEPT,
        num_train=run.data.num_train,
        files=files,
    )


def gradient_bytes(run: "RunConfig") -> int:
    """Of the weights that are trained, counted in a model without numbers; gradients are float32 as they are."""
    import torch

    from pipeline.engine.loop import build_method

    with torch.device("meta"):
        method = build_method(run)
    return sum(p.numel() * p.element_size() for p in method.parameters() if p.requires_grad)


HEADER = [
    "| run | GPUs by its micro-batches | images a GPU | ms a step | gradients, MB | network of a node, GB/s | files/s "
    "| of them, GB/s | cores a GPU | checkpoint, GB |",
    "|---|---|---|---|---|---|---|---|---|---|",
]


def needs_table(needs: list[Need]) -> str:
    """Markdown; and where the speeds are from."""
    sources = [f"{need.method} {need.model}: {need.source}" for need in needs]
    return "\n".join([*HEADER, *map(_line, needs), "", *sources]) if needs else ""


def _line(need: Need) -> str:
    step = f"{need.most_gpus} | {need.global_batch // need.gpus} | {1000 * need.step_s:.1f}"
    network = f"{need.gradient_bytes / 1e6:,.0f} | {need.node_bytes_per_s / 1e9:,.0f}"
    files = f"{need.files_per_s:,.0f} | {need.read_bytes_per_s / 1e9:.1f} | {need.cores:.1f}"
    return f"| {need.method} {need.model} | {step} | {network} | {files} | {need.checkpoint_bytes / 1e9:.2f} |"
