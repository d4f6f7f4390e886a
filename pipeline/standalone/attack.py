"""Attack one image: what somebody who sees the gradient of a training step on it can recover (MJP Sec. 5.4).

The client is a trained run or a ViT of timm, its image any file. Each image gets a folder: original.png as the model
sees it, recovered.png, for APRIL ceiling.png (what its equations would give without any error), for attacks by gradient
matching loss.png, comparison.png with all of them side by side, and numbers.json.
"""

import io
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from pipeline.core.config import shown
from pipeline.core.errors import ConfigError
from pipeline.core.files import digest, remove, write_atomic, write_json
from pipeline.core.image_files import open_image
from pipeline.core.provenance import provenance
from pipeline.core.registry import TASKS
from pipeline.data.images.classified import MODES
from pipeline.data.images.transforms import eval_view
from pipeline.engine.train import device_name
from pipeline.evals.privacy.leakage import PictureColumn, compared, draw_columns, pixels_of
from pipeline.privacy.lpips import LPIPS, lpips_reason
from pipeline.privacy.similarity import as_png
from pipeline.results import attack_folder
from pipeline.site import Site, site_file
from pipeline.standalone.evaluated_set import input_of_data, labelled_images
from pipeline.standalone.named_model import NamedModel
from pipeline.standalone.recover import Attack, AttackName, Numbers, RecoveredImage, Target, attack_of, finite
from pipeline.standalone.victim import Victim, find_victim

FILES = ("original.png", "recovered.png", "ceiling.png", "loss.png", "comparison.png", "numbers.json")
PRINTED = {
    "psnr": "PSNR {:.2f} dB",
    "ssim": "SSIM {:.3f}",
    "mse": "MSE {:.2g}",
    "fft2d": "FFT2D {:.2g}",
    "lpips": "LPIPS {:.3f}",
}


@dataclass(frozen=True)
class AttackRequest:
    """What the command line asks for."""

    model: NamedModel
    images: Sequence[Path]  # none: those of `data`
    attack: AttackName
    data: str | None = None  # a folder of class folders, or a file of configs/data
    count: int | None = None  # images of `data`
    labels: Sequence[int] = ()  # one for all images, or one for each; none: what the model predicts
    scale: str | None = None
    out: Path | None = None
    iterations: int | None = None  # null: as the config of the search says


@dataclass(frozen=True)
class Report:
    """What is said of one attacked image: lines of a title and a text, and the folder with its files."""

    lines: list[tuple[str, str]]
    folder: Path

    def __str__(self) -> str:
        return "\n".join(f"{title:10} {text}" for title, text in [*self.lines, ("files", shown(self.folder))])


def attack_images(request: AttackRequest, site: Site) -> Iterator[Report]:
    """Each image in turn."""
    torch.set_num_threads(site.threads)
    if bool(request.images) == bool(request.data):
        raise ConfigError("give the images to attack: either --image FILE, or --data with a folder of class folders")
    if request.count is not None and (request.data is None or request.count < 1):
        raise ConfigError(f"--count {request.count}: expected a number from 1 on, together with --data")
    for file in request.images:
        open_image(file, "RGB")  # so that a wrong name is said before anything is loaded
    victim = find_victim(request.model, request.scale, site)
    if request.data:
        request = _with_images_of(request.data, request, victim, site)
    attack, labels = attack_of(request.attack, victim, request.iterations), _labels(request, victim)
    for file, label, folder in zip(request.images, labels, _folders(request, victim), strict=True):
        yield _attack_one(request.attack, attack, _target(file, label, folder, victim), victim, site)


def _attack_one(name: AttackName, attack: Attack, target: Target, victim: Victim, site: Site) -> Report:
    for each in FILES:
        remove(target.folder / each)  # those of an attack before
    # First of all, to know that the folder can be written.
    write_atomic(target.folder / "original.png", _png(target.inputs, victim.data))
    started = time.monotonic()
    found = attack(victim, target)
    seconds = round(time.monotonic() - started, 2)
    file, no_lpips = site_file(site, "lpips"), lpips_reason(site, victim.data.image_size)
    lpips = LPIPS(file, target.inputs.device) if file and not no_lpips else None
    measured = {key: _numbers(each, target, victim, lpips) for key, each in found.pictures.items()}
    lines = _lines(target, found, victim, measured, no_lpips)
    files = {f"{key}.png": _png(each, victim.data) for key, each in found.pictures.items()} | found.files
    files["comparison.png"] = _comparison(target, found, victim, lines)
    for key, content in files.items():
        write_atomic(target.folder / key, content)
    reasons = {"lpips": no_lpips} if no_lpips else {}
    record = {"attack": name, **_record(target, found, victim, measured), "reasons": reasons, "seconds": seconds}
    facts = provenance(weights=victim.weights, device=device_name(target.inputs.device))
    write_json(target.folder / "numbers.json", {**record, "provenance": facts})
    return Report([*victim.lines, *lines], target.folder)


def _record(target: Target, found: RecoveredImage, victim: Victim, measured: dict[str, Numbers]) -> dict[str, Any]:
    """What was attacked, what the attacker had, and how close it came."""
    others = {key: numbers for key, numbers in measured.items() if key != "recovered"}
    return {
        "model": victim.name,
        "built": dict(victim.lines),
        "image": {"file": str(target.file), "sha256": digest(target.file)},
        "label": int(target.label),
        "label_is_predicted": target.label_is_predicted,
        "predicted": target.predicted,
        "given": found.given,
        "config": found.config,
        "protection": victim.protection.model_dump(),
        "metrics": {**measured["recovered"], **found.numbers},
        **others,
    }


# The client's image


@torch.no_grad()
def _target(file: Path, label: int | None, folder: Path, victim: Victim) -> Target:
    data, device = victim.data, next(victim.method.parameters()).device
    image = open_image(file, MODES[data.channels], data.upright)  # as the run's own images were
    seen = torch.as_tensor(eval_view(data, data.eval_crop)(image))
    inputs, _ = TASKS.get("classify")(data, device).eval_batch(seen[None], torch.zeros(1))
    predicted = int(victim.method.predict(inputs).logits.argmax())
    trained_with = torch.tensor([predicted if label is None else label], device=device)
    return Target(file, inputs, trained_with, label is None, predicted, folder)


def _with_images_of(data: str, request: AttackRequest, victim: Victim, site: Site) -> AttackRequest:
    """Validation images of a set, of another class each as long as there are any, with their classes as labels."""
    found = labelled_images(data, request.count or 1, input_of_data(victim.data), site)
    if not request.labels and found.num_classes != victim.data.num_classes:
        raise ConfigError(
            f"{victim.name} has {victim.data.num_classes} classes, --data {data} has {found.num_classes}; expected the "
            "same, in the same order: give the class of each image with --label"
        )
    return replace(request, images=found.files, labels=request.labels or found.labels)


def _labels(request: AttackRequest, victim: Victim) -> list[int | None]:
    """One for each image; None: what the model predicts."""
    count, classes = len(request.images), victim.data.num_classes
    wrong = [label for label in request.labels if not 0 <= label < classes]
    if wrong:
        raise ConfigError(f"--label {wrong[0]}: {victim.name} has the classes 0 to {classes - 1}")
    if len(request.labels) not in (0, 1, count):
        raise ConfigError(
            f"--label has {len(request.labels)} values for {count} images; give one for all, or one for each"
        )
    each: list[int | None] = [*request.labels] or [None]
    return each if len(each) == count else each * count


def _folders(request: AttackRequest, victim: Victim) -> list[Path]:
    """One for each image; images of one name are numbered."""
    stems = [file.stem for file in request.images]
    names = [
        stem if stems.count(stem) == 1 else f"{stem}-{stems[: place + 1].count(stem)}"
        for place, stem in enumerate(stems)
    ]
    if request.out:
        return [request.out / name for name in names] if len(names) > 1 else [request.out]
    return [attack_folder(f"{victim.name}-{name}-{request.attack}") for name in names]


# Numbers, words and pictures


def _numbers(found: Tensor, target: Target, victim: Victim, lpips: LPIPS | None) -> Numbers:
    """Every metric of similarity; LPIPS is null where it cannot be computed."""
    values = compared(found, target.inputs, victim.data, lpips)
    return {"lpips": None, **{name: finite(value) for name, value in values.items()}}


def _lines(
    target: Target, found: RecoveredImage, victim: Victim, measured: dict[str, Numbers], no_lpips: str
) -> list[tuple[str, str]]:
    cfg = victim.protection
    protected = f"; the client adds noise {cfg.noise:g} and prunes {cfg.pruning:g}" if cfg.is_on else ""
    lines = [
        ("image", f"{target.file}, as {victim.name} sees it"),
        ("label", f"{int(target.label)}, {_why(target)}"),
        ("attacker", f"has {found.given}{protected}"),
    ]
    for name, numbers in measured.items():
        values = ((text, numbers[metric]) for metric, text in PRINTED.items())
        lines.append((name, ", ".join(text.format(value) for text, value in values if value is not None)))
    return [*lines, *found.lines, *([("LPIPS", f"n/a: {no_lpips}")] if no_lpips else [])]


def _why(target: Target) -> str:
    if target.label_is_predicted:
        return "which the model predicts: no --label was given, and the client's gradient needs one"
    is_right = int(target.label) == target.predicted
    return "as given, which the model predicts, too" if is_right else f"as given; the model predicts {target.predicted}"


def _png(images: Tensor, data: Any) -> bytes:
    """The one image, in the size in which the model sees it."""
    levels = (255 * as_png(pixels_of(images[0], data))).round().to(torch.uint8).permute(1, 2, 0).cpu().numpy()
    buffer = io.BytesIO()
    Image.fromarray(levels.squeeze(2) if data.channels == 1 else levels).save(buffer, "PNG")
    return buffer.getvalue()


def _comparison(target: Target, found: RecoveredImage, victim: Victim, lines: list[tuple[str, str]]) -> bytes:
    """Original, pictures on the way, what was recovered, and its ceiling, with what was printed."""
    columns = [PictureColumn("original", target.inputs), *found.on_the_way]
    columns += [PictureColumn(name, each, target.inputs) for name, each in found.pictures.items()]
    text = " ".join(f"{title[:1].upper()}{title[1:]}: {words}." for title, words in lines[2:])
    return draw_columns(columns, victim.data, slice(1), text)
