"""The model whose client is attacked: a trained run, or any plain ViT of timm with weights from a file.

A run sees images as its data config says, a model of timm as timm states it. Attacks run a ViT through
`pipeline.models.position.encode`; a model that timm runs differently (register tokens, other class tokens) is refused:
its gradients would be those of another model.
"""

from dataclasses import dataclass
from typing import Any

import torch

from pipeline.core.config import Layers, read_yaml
from pipeline.core.dynamo import dynamo_deferred
from pipeline.core.errors import CheckpointError, ConfigError, DataError
from pipeline.core.files import digest
from pipeline.core.seeds import generator_for
from pipeline.core.sizes import pair
from pipeline.data.images.augment import Augment
from pipeline.data.images.classified import DataConfig
from pipeline.engine.parallel.distributed import World, device_of
from pipeline.engine.protection import Protection
from pipeline.engine.run import parse_run
from pipeline.engine.train import load_method
from pipeline.methods.base import Method
from pipeline.methods.supervised import Supervised
from pipeline.models.architectures import unknown_architecture
from pipeline.models.foreign import ForeignView, build_foreign
from pipeline.privacy.client import Client
from pipeline.results import find_run
from pipeline.site import Site
from pipeline.standalone.evaluated_set import input_of
from pipeline.standalone.named_model import NamedModel, find_model

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
    lines: tuple[tuple[str, str], ...] = ()  # what a reader must know of it: titles and texts


def find_victim(named: NamedModel, scale: str | None, site: Site) -> Victim:
    """The model of this name; where timm has none, the finished run."""
    name, device = named.name, device_of(site.device)
    problem = unknown_architecture(name)
    if not problem:
        return _of_timm(named, scale, site, device)
    try:
        folder = find_run(name, scale)
    except DataError as error:
        raise ConfigError(f"--model {name}: {error}; and {problem}") from None
    if named != NamedModel(name):
        raise ConfigError(
            "--weights, --set, --resample-positions, --mean and --std are for a model of timm; "
            f"{folder.name} is a run and has its own"
        )
    run = parse_run(Layers((str(folder.config), read_yaml(folder.config))))
    if run.task != "classify" or not isinstance(run.data, DataConfig):
        raise ConfigError(
            f"{run.name} does not classify images; expected a run that does: attacks use the gradient of a class"
        )
    if run.model.family != "vit":
        raise ConfigError(f"{run.name} is a {run.model.arch}, which is not a ViT; the attacks are on ViTs")
    method = load_method(run, folder, World(0, 1, device))
    digest_of = folder.trained().files[folder.encoder.name]
    return Victim(run.name, method, run.data, digest_of, run.optim.protection, folder.results.name)


def _of_timm(named: NamedModel, scale: str | None, site: Site, device: torch.device) -> Victim:
    """Its weights come from a file, or from timm's hub into the site's folder of weights."""
    name = named.name
    with dynamo_deferred():
        from timm.models import is_model_in_modules

    if not is_model_in_modules(name.split(".")[0], PLAIN):
        raise ConfigError(
            f"--model {name} is not a plain ViT of timm, such as vit_small_patch16_224, which the attacks need"
        )
    model = find_model(named, site)
    if model.fitted.num_classes is None:
        raise CheckpointError(
            f"{model.file} has no {model.classifier}.weight; expected the weights of a classifier: the gradient that a "
            "client sends is that of a class"
        )
    data = _data_config(model.view, model.fitted.num_classes)
    encoder = build_foreign(name, model.file, model.fitted, data.image_size)
    method = Supervised(Supervised.Config(), encoder).to(device).eval()
    _refuse_other_forward(name, method, data, device)
    height, width = pair(data.image_size)
    seen = ("seen as", f"{data.channels} x {height} x {width}, mean and std {model.view_source}")
    return Victim(name, method, data, digest(model.file) or "", Protection(), scale, lines=(*model.lines(), seen))


def _data_config(view: ForeignView, num_classes: int) -> DataConfig:
    """A data set that is seen as the model sees images; it has no images of its own."""
    return DataConfig(
        name="images",
        source="folder",
        num_train=0,
        num_val=1,
        num_classes=num_classes,
        upright=True,
        augment=Augment(interpolation=view.interpolation),
        eval_crop=view.crop,
        **input_of(view),
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
            f"--model {name} is not a plain ViT: timm runs it differently (register tokens, several class tokens, "
            "positions only for patches), and the attack would be on another model; choose one with a class token and "
            "a position for every token, such as vit_small_patch16_224 or deit_small_patch16_224"
        )
