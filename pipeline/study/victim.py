"""The model whose client is attacked: a trained run, or any plain ViT of timm with weights from a file.

A run sees images as its data config says, a model of timm as timm states it. Attacks run a ViT through
`pipeline.models.position.encode`; a model that timm runs differently (register tokens, other class tokens) is refused:
its gradients would be those of another model.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pipeline.config import FILE, Layers, read_yaml
from pipeline.data.augment import Augment
from pipeline.data.classified import DataConfig
from pipeline.dynamo import dynamo_deferred
from pipeline.engine.distributed import World, device_of
from pipeline.engine.protection import Protection
from pipeline.engine.run import parse_run
from pipeline.engine.train import load_method
from pipeline.errors import CheckpointError, ConfigError, DataError
from pipeline.files import digest
from pipeline.methods.base import Method
from pipeline.methods.supervised import Supervised
from pipeline.models.architectures import unknown_architecture
from pipeline.models.foreign import ForeignView, build_foreign, download, view_of
from pipeline.models.weights import open_checkpoint
from pipeline.privacy.client import Client
from pipeline.results import find_run
from pipeline.seeds import generator_for
from pipeline.site import Site, weights_path
from pipeline.sizes import pair

PLAIN = ("vision_transformer", "deit")  # modules of timm
SAME = 1e-6  # relative difference of logits in float64


@dataclass(frozen=True)
class Victim:
    """A classifier on its device, how it sees images, and what its client does to gradients before it sends them."""

    name: str
    method: Method
    data: Any
    weights: str  # SHA-256 of its encoder
    protection: Protection
    scale: str | None  # whose configs the searches have


def find_victim(name: str, weights: Path | None, scale: str | None, site: Site) -> Victim:
    """The model of this name; where timm has none, the finished run."""
    device = device_of(site.device)
    problem = unknown_architecture(name)
    if not problem:
        return _of_timm(name, weights, scale, site, device)
    try:
        folder = find_run(name, scale)
    except DataError as error:
        raise ConfigError(f"--model {name}: {error}; and {problem}") from None
    if weights:
        raise ConfigError(f"--weights goes with a model of timm; {folder.name} is a run and has its own")
    run = parse_run(Layers((str(folder.config), read_yaml(folder.config))))
    if run.task != "classify" or not isinstance(run.data, DataConfig):
        raise ConfigError(f"{run.name} does not classify images, so its clients have no gradient of a class to send")
    if run.model.family != "vit":
        raise ConfigError(f"{run.name} is a {run.model.arch}, which is not a ViT; the attacks are on ViTs")
    method = load_method(run, folder, World(0, 1, device))
    digest_of = folder.trained().files[folder.encoder.name]
    return Victim(run.name, method, run.data, digest_of, run.optim.protection, folder.results.name)


def _of_timm(name: str, weights: Path | None, scale: str | None, site: Site, device: torch.device) -> Victim:
    """Its weights come from a file, or from timm's hub into the site's folder of weights."""
    with dynamo_deferred():
        from timm.models import is_model_in_modules

    if not is_model_in_modules(name.split(".")[0], PLAIN):
        raise ConfigError(
            f"--model {name} is not a plain ViT of timm, such as vit_small_patch16_224, which the attacks need"
        )
    view = view_of(name)
    if weights:
        file = weights.expanduser().absolute()
    else:
        file = download(name, weights_path(site, f"{FILE}{name}.safetensors"))
    num_classes = _num_classes(name, file)
    encoder = build_foreign(name, file, view.image_size, view.channels, num_classes)
    method = Supervised(Supervised.Config(), encoder).to(device).eval()
    data = _as_seen(view, num_classes)
    _refuse_other_forward(name, method, data, device)
    return Victim(name, method, data, digest(file) or "", Protection(), scale)


def _num_classes(name: str, file: Path) -> int:
    """As the file has them: a model may have been trained on any set."""
    from timm.models import get_pretrained_cfg

    stated, (_, tensors) = get_pretrained_cfg(name), open_checkpoint(file)
    heads = stated.classifier if stated else "head"
    classifier = f"{heads if isinstance(heads, str) else heads[0]}.weight"  # a distilled model has two
    if classifier not in tensors:
        raise CheckpointError(
            f"{file} has no {classifier}; expected the weights of a classifier: the gradient that a client sends is "
            "that of a class"
        )
    return len(tensors[classifier])


def _as_seen(view: ForeignView, num_classes: int) -> DataConfig:
    """A data set that is seen as the model sees images; it has no images of its own."""
    return DataConfig(
        name="images",
        source="folder",
        num_train=0,
        num_val=1,
        image_size=view.image_size,
        channels=view.channels,
        num_classes=num_classes,
        mean=view.mean,
        std=view.std,
        augment=Augment(interpolation=view.interpolation),
        eval_crop=view.crop,
    )


@torch.no_grad()
def _refuse_other_forward(name: str, method: Method, data: DataConfig, device: torch.device) -> None:
    """Compare the logits of the model that is attacked with timm's, on noise."""
    noise = torch.randn(
        1, data.channels, *pair(data.image_size), generator=generator_for("attack"), dtype=torch.float64
    )
    images = noise.to(device)
    try:
        client = Client(method, torch.float64)
        found, expected = client(images), client.method.encoder(images)
        apart = float((found - expected).norm() / expected.norm().clamp(min=torch.finfo(torch.float64).tiny))
    except (RuntimeError, TypeError, AttributeError):  # tokens that do not add up, parts that it does not have
        apart = float("inf")
    if not apart < SAME:
        raise ConfigError(
            f"--model {name} is not a plain ViT: timm runs it in another way (register tokens, several class tokens, "
            "positions of patches alone), and the attack would be on another model; choose one with a class token and "
            "a position for every token, such as vit_small_patch16_224 or deit_small_patch16_224"
        )
