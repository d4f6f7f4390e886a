"""How fast are the corruptions? Each of the 15, beside the package that ports the published ones, in one run.

    python benchmarks/corruptions.py                 # all, on one core
    python benchmarks/corruptions.py --only blur     # those whose name contains this

A synthetic image of 224 px at each of the five severities, one process, one thread, processor time. Rates compare
within one run only, so the ratio to the package comes with them. The package's elastic transform and frost are not the
published ones. Writes results/benchmarks/corruptions.json and prints a table.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import checkout  # noqa: F401
import numpy as np
import torch
from imagecorruptions import corrupt as ported
from report import where, write
from scipy import ndimage
from threadpoolctl import threadpool_limits

from pipeline.core.config import CONFIGS
from pipeline.data.derived.corruptions import corrupt
from pipeline.data.derived.severities import CORRUPTIONS, SEVERITIES

OUT = CONFIGS.parent / "results" / "benchmarks" / "corruptions.json"
SIDE = 224


def main() -> None:
    options = parse_options()
    names = [name for name in CORRUPTIONS if options.only in name]
    if not names:
        raise SystemExit(f"no corruption contains {options.only!r}; there are: {', '.join(CORRUPTIONS)}")
    image, results = synthetic_image(), []
    print(f"{'corruption':18} {'images/s':>9} {'package':>9} {'ratio':>6}")
    with threadpool_limits(1):
        for name in names:
            results.append(measure(name, image, options.rounds))
            print(described(results[-1]), flush=True)
    total = {key: 1 / statistics.fmean(1 / result[key] for result in results) for key in ("images_per_s", "package")}
    print(described({"name": "all", **total, "ratio": total["images_per_s"] / total["package"]}))
    report = {
        **where(torch.device("cpu"), "numpy", "scipy"),
        "side": SIDE,
        "corruptions": results,
    }
    write(options.out, report)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="corruptions whose name contains this")
    parser.add_argument("--rounds", type=int, default=5, help="of the five severities, of which the median counts")
    parser.add_argument("--out", type=Path, default=OUT)
    return parser.parse_args()


def synthetic_image() -> np.ndarray:
    """Smooth colours with a little grain: the time of some depends on what is in the image."""
    rng = np.random.default_rng(0)
    smooth = ndimage.gaussian_filter(rng.normal(size=(SIDE, SIDE, 3)), (8, 8, 0))
    grain = rng.normal(size=smooth.shape)
    return (128 + 60 * smooth / smooth.std() + 8 * grain).clip(0, 255).astype(np.uint8)


def measure(name: str, image: np.ndarray, rounds: int) -> dict[str, Any]:
    ours = images_per_s(lambda severity: corrupt(image, name, severity, "imagenet", severity), rounds)
    theirs = images_per_s(lambda severity: ported(image, severity, name), rounds)
    return {"name": name, "images_per_s": ours, "package": theirs, "ratio": ours / theirs}


def images_per_s(make: Callable[[int], np.ndarray], rounds: int) -> float:
    """After a round that is not counted: what is made once for all images of a size is made there."""
    seconds = []
    for _ in range(rounds + 1):
        started = time.process_time()
        for severity in SEVERITIES:
            make(severity)
        seconds.append(time.process_time() - started)
    return len(SEVERITIES) / statistics.median(seconds[1:])


def described(result: dict[str, Any]) -> str:
    return f"{result['name']:18} {result['images_per_s']:9.1f} {result['package']:9.1f} {result['ratio']:6.1f}"


if __name__ == "__main__":
    main()
