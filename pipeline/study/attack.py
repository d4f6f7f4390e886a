"""Attack one image: what somebody who sees the gradient of a training step on it can recover (MJP Sec. 5.4).

The client is a trained run or a ViT of timm, its image any file. Each image gets a folder: original.png as the model
sees it, recovered.png, for APRIL ceiling.png (what its equations would give without any error), for attacks by gradient
matching loss.png, comparison.png with all of them side by side, and numbers.json.
"""

import io
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from PIL import Image
from torch import Tensor

from pipeline.config import shown
from pipeline.data.classified import MODES
from pipeline.data.transforms import eval_view
from pipeline.engine.train import device_name
from pipeline.errors import ConfigError, DataError
from pipeline.evals.leakage import Shown, drawn, pixels_of
from pipeline.files import digest, write_atomic, write_json
from pipeline.methods.base import Method
from pipeline.privacy import april
from pipeline.privacy.lpips import LPIPS, lpips_file, lpips_reason
from pipeline.privacy.similarity import as_png, similarity
from pipeline.provenance import provenance
from pipeline.registry import TASKS
from pipeline.results import attack_folder
from pipeline.site import Site
from pipeline.study.victim import Victim, find_victim, reason_against_april

AttackName = Literal["april", "cosine", "gradvit"]
Numbers = dict[str, float | None]
SHOWN = {
    "psnr": "PSNR {:.2f} dB",
    "ssim": "SSIM {:.3f}",
    "mse": "MSE {:.2g}",
    "fft2d": "FFT2D {:.2g}",
    "lpips": "LPIPS {:.3f}",
}


@dataclass(frozen=True)
class Wish:
    """What the command line asks for."""

    model: str
    images: Sequence[Path]
    attack: AttackName
    weights: Path | None = None
    labels: Sequence[int] = ()  # one for all images, or one for each; none: what the model predicts
    scale: str | None = None
    out: Path | None = None


@dataclass(frozen=True)
class Found:
    """What an attack found of one image, (1, C, H, W) as the model sees it."""

    images: Tensor
    given: str  # what the attacker has, in words
    config: dict[str, Any]
    numbers: Numbers = field(default_factory=dict)
    ceiling: Tensor | None = None
    between: tuple[Shown, ...] = ()  # pictures on the way
    files: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """What is said of one attacked image: lines of a title and a text, and the folder with its files."""

    lines: list[tuple[str, str]]
    folder: Path

    def __str__(self) -> str:
        return "\n".join(f"{title:10} {text}" for title, text in [*self.lines, ("files", shown(self.folder))])


def attack_images(wish: Wish, site: Site) -> Iterator[Report]:
    """Each image in turn."""
    torch.set_num_threads(site.threads)
    for image in wish.images:
        _open(image, "RGB")  # a wrong name is said before anything is loaded
    victim = find_victim(wish.model, wish.weights, wish.scale, site)
    labels = _labels(wish, victim)
    for image, label, folder in zip(wish.images, labels, _folders(wish, victim), strict=True):
        yield _attack_one(image, label, folder, wish.attack, victim, site)


def _attack_one(image: Path, label: int | None, folder: Path, attack: AttackName, victim: Victim, site: Site) -> Report:
    started = time.monotonic()
    inputs = _inputs(image, victim)
    write_atomic(folder / "original.png", _png(inputs, victim.data))  # also tells whether the folder can be written
    predicted = _predicted(victim.method, inputs)
    target = predicted if label is None else label
    found = ATTACKS[attack](victim, inputs, torch.tensor([target], device=inputs.device), folder)
    numbers, lacking = _numbers(found.images, inputs, victim.data, site)
    pictures = {"recovered.png": _png(found.images, victim.data)}
    ceiling: Numbers = {}
    if found.ceiling is not None:
        ceiling, _ = _numbers(found.ceiling, inputs, victim.data, site)
        pictures["ceiling.png"] = _png(found.ceiling, victim.data)
    lines = [
        ("image", f"{image}, seen by {victim.name}"),
        ("label", f"{target}, {_why(label, predicted)}"),
        ("attacker", f"has {found.given}{_protected(victim)}"),
        ("recovered", _in_words(numbers, lacking)),
        *([("ceiling", _in_words(ceiling, {}))] if ceiling else []),
    ]
    pictures["comparison.png"] = _comparison(found, inputs, victim, ". ".join(f"{a}: {b}" for a, b in lines[2:]))
    for name, content in {**pictures, **found.files}.items():
        write_atomic(folder / name, content)
    record = {
        "attack": attack,
        "model": victim.name,
        "image": {"file": str(image), "sha256": digest(image)},
        "label": target,
        "label_from": "the command line" if label is not None else "the model's prediction",
        "predicted": predicted,
        "given": found.given,
        "config": found.config,
        "protection": victim.protection.model_dump(),
        "metrics": {**numbers, **found.numbers},
        "ceiling": ceiling,
        "reasons": lacking,
        "seconds": round(time.monotonic() - started, 2),
        "provenance": provenance(weights=victim.weights, device=device_name(inputs.device)),
    }
    write_json(folder / "numbers.json", record)
    return Report(lines, folder)


# The image


def _open(path: Path, mode: str) -> Image.Image:
    try:
        with Image.open(path) as image:
            return image.convert(mode)
    except FileNotFoundError:
        raise DataError(f"--image {path} not found; expected the file of an image") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"--image {path} could not be read ({error}); expected an image, such as PNG or JPEG") from None


def _inputs(path: Path, victim: Victim) -> Tensor:
    """(1, C, H, W) as the model sees it."""
    data, device = victim.data, next(victim.method.parameters()).device
    seen = torch.as_tensor(eval_view(data, data.eval_crop)(_open(path, MODES[data.channels])))
    inputs, _ = TASKS.get("classify")(data, device).eval_batch(seen[None], torch.zeros(1))
    return inputs


def _labels(wish: Wish, victim: Victim) -> list[int | None]:
    """One for each image; None: what the model predicts."""
    given, count, classes = wish.labels, len(wish.images), victim.data.num_classes
    wrong = [label for label in given if not 0 <= label < classes]
    if wrong:
        raise ConfigError(f"--label {wrong[0]}: {victim.name} has the classes 0 to {classes - 1}")
    if len(given) not in (0, 1, count):
        raise ConfigError(f"found {len(given)} labels for {count} images; give one --label for each, or one for all")
    each: list[int | None] = [*given] or [None]
    return each if len(each) == count else each * count


def _folders(wish: Wish, victim: Victim) -> list[Path]:
    """One for each image; images of one name are numbered."""
    stems = [path.stem for path in wish.images]
    unique = [
        stem if stems.count(stem) == 1 else f"{stem}-{stems[: number + 1].count(stem)}"
        for number, stem in enumerate(stems)
    ]
    if wish.out:
        return [wish.out / stem for stem in unique] if len(unique) > 1 else [wish.out]
    return [attack_folder(f"{victim.name}-{stem}-{wish.attack}") for stem in unique]


@torch.no_grad()
def _predicted(method: Method, inputs: Tensor) -> int:
    return int(method.predict(inputs).logits.argmax())


def _why(label: int | None, predicted: int) -> str:
    if label is None:
        return "which the model predicts, as no --label says what it is; the client's gradient needs a label"
    return "which the model predicts, too" if label == predicted else f"while the model predicts {predicted}"


# The attacks


def _april(victim: Victim, inputs: Tensor, labels: Tensor, folder: Path) -> Found:
    if reason := reason_against_april(victim.method):
        raise ConfigError(f"APRIL does not work on {victim.name}: {reason}; choose another --attack")
    cfg = april.Assumptions()
    found = april.attack(victim.method, inputs, labels, None, cfg, victim.protection)
    numbers = {"condition": finite(found.condition), "rank": finite(found.rank)}
    return Found(found.images, cfg.words(), cfg.model_dump(), numbers, found.ceiling)


ATTACKS = {"april": _april}


# Numbers and pictures


def finite(value: Tensor) -> float | None:
    """A number that JSON can hold."""
    number = float(value)
    return number if math.isfinite(number) else None


def _numbers(found: Tensor, wanted: Tensor, data: Any, site: Site) -> tuple[Numbers, dict[str, str]]:
    """Every metric of similarity, and reasons for those that could not be computed."""
    pair = [as_png(pixels_of(images, data)) for images in (found, wanted)]
    numbers = {name: finite(value) for name, value in similarity(*pair).items()}
    file, reason = lpips_file(site), lpips_reason(site, data.image_size)
    if reason or file is None:
        return {**numbers, "lpips": None}, {"lpips": reason}
    return {**numbers, "lpips": finite(LPIPS(file, found.device).distance(*pair))}, {}


def _in_words(numbers: Numbers, lacking: dict[str, str]) -> str:
    words = [text.format(value) for name, text in SHOWN.items() if (value := numbers.get(name)) is not None]
    return ", ".join([*words, *(f"{name.upper()} n/a ({reason})" for name, reason in lacking.items())])


def _protected(victim: Victim) -> str:
    cfg = victim.protection
    return f"; the client protects its gradients (noise {cfg.noise:g}, pruning {cfg.pruning:g})" if cfg.is_on else ""


def _png(images: Tensor, data: Any) -> bytes:
    """The one image, in the size in which the model sees it."""
    levels = (255 * as_png(pixels_of(images[0], data))).round().to(torch.uint8).permute(1, 2, 0).cpu().numpy()
    buffer = io.BytesIO()
    Image.fromarray(levels.squeeze(2) if data.channels == 1 else levels).save(buffer, "PNG")
    return buffer.getvalue()


def _comparison(found: Found, inputs: Tensor, victim: Victim, text: str) -> bytes:
    columns = [Shown("original", inputs)]
    if found.ceiling is not None:
        columns.append(Shown("ceiling", found.ceiling, inputs))
    columns += [*found.between, Shown("recovered", found.images, inputs)]
    return drawn(columns, victim.data, 1, text)
