"""How fast are attacks on gradients? Gradient matching of 8 images beside one alone, and APRIL, in one run.

    python benchmarks/attacks.py                                    # ViT-S, 224 px, on the GPU that is there
    python benchmarks/attacks.py --device cpu --model vit_demo --size 28 --iterations 5

Random images and weights: what they show does not change the time. Gradient matching is timed in iterations a
second, in float32 as in configs/eval/gradient_matching.yaml; `image iterations/s` counts each image. APRIL, the closed
form, is timed in milliseconds an image, in float64. Rates compare within one run only. Prints a table.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import checkout  # noqa: F401
import torch
from report import name_of

from pipeline.core.config import CONFIGS, Layers, parse, read_yaml
from pipeline.core.registry import TASKS
from pipeline.data.images.classified import DataConfig
from pipeline.engine.compute.timing import synchronise
from pipeline.engine.protection import Protection
from pipeline.methods.base import Method
from pipeline.methods.supervised import Supervised
from pipeline.models.encoder import ModelConfig
from pipeline.privacy import april
from pipeline.privacy.client import Client
from pipeline.privacy.matching import Attack, Matching, observe

ROUNDS, CLASSES = 3, 1000


@dataclass(frozen=True)
class Timed:
    """One line of the table; `seconds` are those of an iteration, or of the whole closed form."""

    attack: str
    images: int
    seconds: float
    memory_gib: float | None

    @property
    def line(self) -> str:
        rate = "n/a" if self.attack == "APRIL" else f"{1 / self.seconds:.3g}"
        each = "n/a" if self.attack == "APRIL" else f"{self.images / self.seconds:.3g}"
        memory = "n/a" if self.memory_gib is None else f"{self.memory_gib:.1f}"
        return (
            f"| {self.attack} | {self.images} | {rate} | {each} | {1000 * self.seconds / self.images:.3g} | {memory} |"
        )


def main() -> None:
    options = parse_options()
    device = torch.device(options.device)
    method = build(options.model, options.size, device)
    found = []
    for count in (1, options.images):
        found.append(time_matching(method, random_images(method, count, options.size), options.iterations))
        print(found[-1].line, flush=True)
    found.append(time_april(method, random_images(method, options.images, options.size)))
    print(f"\n{name_of(device)}, {options.model}, {options.size} px, torch {torch.__version__}\n\n{table(found)}")


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="deit_s", help="a file of configs/model")
    parser.add_argument("--size", type=int, default=224, help="pixels of a side")
    parser.add_argument("--images", type=int, default=8, help="attacked at once")
    parser.add_argument("--iterations", type=int, default=20, help="in each of three rounds, of which the best counts")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


def build(model: str, size: int, device: torch.device) -> Method:
    torch.manual_seed(0)
    files = {kind: CONFIGS / kind / f"{name}.yaml" for kind, name in (("model", model), ("data", "imagenet1k"))}
    model_cfg = parse(ModelConfig, Layers((str(files["model"]), read_yaml(files["model"])["model"])))
    changes = {"image_size": size, "num_classes": CLASSES}
    data = parse(DataConfig, Layers((str(files["data"]), read_yaml(files["data"])["data"]), ("the benchmark", changes)))
    cfg = Supervised.Config()
    return Supervised(cfg, TASKS.get(cfg.task).build_encoder(cfg, model_cfg, data)).to(device).eval()


def random_images(method: Method, count: int, size: int) -> torch.Tensor:
    """Drawn on the CPU, so that they are the same on every device."""
    drawn = torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(0))
    return drawn.to(next(method.parameters()).device)


def time_matching(method: Method, images: torch.Tensor, iterations: int) -> Timed:
    cfg = Matching(iterations=(1 + ROUNDS) * iterations)
    client, labels = Client(method, torch.float32), torch.arange(len(images), device=images.device)
    observed = observe(client, images, labels, None, cfg, Protection(), 0)
    attack = Attack(client, observed, cfg, [torch.full((3, 1, 1), bound) for bound in (-2.0, 2.0)])
    state = attack.advance(attack.start(images.shape[1:], 0), iterations)

    def advance() -> None:
        nonlocal state
        state = attack.advance(state, iterations)

    return Timed("gradient matching", len(images), best_of(advance, images.device) / iterations, memory(images.device))


def time_april(method: Method, images: torch.Tensor) -> Timed:
    labels = torch.arange(len(images), device=images.device)

    def solve() -> None:
        april.attack(method, images, labels)

    solve()
    return Timed("APRIL", len(images), best_of(solve, images.device), memory(images.device))


def best_of(work: Callable[[], None], device: torch.device) -> float:
    """Seconds of the fastest round; the peak of memory is counted from here on."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    rounds = []
    for _ in range(ROUNDS):
        synchronise(device)
        started = time.perf_counter()
        work()
        synchronise(device)
        rounds.append(time.perf_counter() - started)
    return min(rounds)


def memory(device: torch.device) -> float | None:
    return torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None


def table(found: list[Timed]) -> str:
    """Markdown."""
    head = "| attack | images at once | iterations/s | image iterations/s | ms an image | peak memory (GiB) |"
    return "\n".join([head, "|---|---|---|---|---|---|", *(each.line for each in found)])


if __name__ == "__main__":
    main()
