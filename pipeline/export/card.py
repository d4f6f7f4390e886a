"""The model card: what a model is, what it was trained on, its numbers with their noise, how to load it."""

from collections.abc import Iterable
from typing import Any

from torch import nn

from pipeline.core.config import FILE
from pipeline.core.sizes import pair
from pipeline.data.dense.pictures import MODES
from pipeline.data.kind import kind_of
from pipeline.engine.run import RunConfig
from pipeline.export.numbers import TRAIN, Number
from pipeline.published_sets.sets import catalogue
from pipeline.results import RunFolder

MOST = 12  # numbers of one evaluation; ImageNet-C has a hundred
BUNDLED_LICENCES = {"fashion_mnist": "MIT", "fashion_attributes": "MIT", "spoken_words": "CC BY 4.0"}
UNKNOWN_LICENCE = "not known here; whoever publishes the model has to state it"


def model_card(
    run: RunConfig, folder: RunFolder, model: nn.Module, numbers: Iterable[Number], name: str, has_onnx: bool
) -> str:
    """README.md of an exported folder."""
    parts = [
        _front_matter(run),
        f"# {name}",
        _what_it_is(run, model),
        _training(run, folder),
        _numbers(list(numbers)),
        _loading(run, name, has_onnx),
    ]
    return "\n\n".join(parts) + "\n"


def _front_matter(run: RunConfig) -> str:
    task = "image-classification" if run.task == "classify" else "image-feature-extraction"
    return f"---\nlibrary_name: timm\npipeline_tag: {task}\ntags: [timm, {run.method.name}]\n---"


def _what_it_is(run: RunConfig, model: Any) -> str:
    data: Any = run.data
    height, width = pair(run.method.encoder_size(data.input_size))
    params = sum(parameter.numel() for parameter in model.parameters())
    given = "one output for each class" if model.num_classes else "features, no classifier"
    classes = f"{model.num_classes} classes" if model.num_classes else f"{model.num_features} numbers"
    return _section(
        "What it is",
        f"`{run.model.arch}` with {params:,} parameters, trained with the method `{run.method.name}` "
        f"({run.method.fidelity}) of Patchwork.",
        f"- Input: {data.channels} x {height} x {width}, kind of data: {data.kind}",
        f"- Output: {classes}; {given}",
        f"- Positions: {run.model.positions}",
    )


def _training(run: RunConfig, folder: RunFolder) -> str:
    data, facts = run.data, folder.trained().provenance
    source = getattr(data, "source", data.name)
    return _section(
        "What it was trained on",
        f"- Data set: `{data.name}` (source `{source}`), {data.num_train:,} train and {data.num_val:,} validation "
        f"{kind_of(data).unit}; fingerprint {facts.get('data_fingerprint') or 'not recorded'}",
        f"- Licence of the data: {_licence(source)}",
        f"- Started from: {_start(run)}",
        f"- Recipe: {_length(run)}, batches of {run.optim.global_batch}, base learning rate {run.optim.base_lr:g}, "
        f"seed {run.seed}; all of it in the config of the run `{run.name}`",
        f"- Computed on: {facts.get('device', 'not recorded')}, {facts.get('precision', 'unknown precision')}, commit "
        f"{facts.get('commit', 'not recorded')}",
    )


def _licence(source: str) -> str:
    """The terms of a data set; those of sets that this project does not know are for their owners to state."""
    published = {entry.source or name: entry.licence for name, entry in catalogue().items()}
    return (published | BUNDLED_LICENCES).get(source, UNKNOWN_LICENCE)


def _start(run: RunConfig) -> str:
    if run.init is None:
        return "random weights"
    return f"the weight file `{run.init.removeprefix(FILE)}`" if run.init.startswith(FILE) else f"the run `{run.init}`"


def _length(run: RunConfig) -> str:
    return f"{run.optim.iterations} iterations" if run.optim.iterations else f"{run.optim.epochs} epochs"


def _numbers(numbers: list[Number]) -> str:
    lines = ["| evaluation | metric | value | standard error | over seeds |", "|---|---|---|---|---|"]
    for evaluation in dict.fromkeys(each.evaluation for each in numbers):
        of_it = [each for each in numbers if each.evaluation == evaluation]
        lines += [_row(each) for each in of_it[:MOST]]
        if len(of_it) > MOST:
            lines.append(f"| {evaluation} | {len(of_it) - MOST} more | | | |")
    return _section(
        "Numbers",
        "The standard error is that over images or samples. What another seed would change is in the last column, "
        "where it was measured; elsewhere it is not known.",
        "",
        *lines,
    )


def _row(number: Number) -> str:
    what = "validation after training" if number.evaluation == TRAIN else number.evaluation
    error = "not known" if number.error is None else f"{number.error:.2g}" if number.error else "exact"
    images = f" ({number.count:,})" if number.error and number.count else ""
    return f"| {what} | {number.metric} | {number.value:.4g} | {error}{images} | {number.over_seeds or 'not known'} |"


def _loading(run: RunConfig, name: str, has_onnx: bool) -> str:
    has_view, mode = hasattr(run.data, "eval_crop"), MODES.get(getattr(run.data, "channels", 3), "RGB")
    view = [
        "view = timm.data.create_transform(**timm.data.resolve_data_config(model.pretrained_cfg), is_training=False)",
        f'inputs = view(Image.open("image.png").convert("{mode}"))[None]',
        "outputs = model(inputs)",
    ]
    lines = [
        "```python",
        "import timm",
        *(["from PIL import Image"] if has_view else []),
        "",
        f'model = timm.create_model("local-dir:{name}", pretrained=True).eval()  # from the Hub: "hf-hub:USER/{name}"',
        *(view if has_view else []),
        "```",
    ]
    if not has_view:
        lines.append(f"Inputs are those of the kind of data `{run.data.kind}` of Patchwork, not images.")
    if has_onnx:
        lines += ["", "`model.onnx` has the input `images` and the output `outputs`, for batches of any size."]
    return _section("How to load it", *lines)


def _section(title: str, *lines: str) -> str:
    return "\n".join([f"## {title}", "", *lines])
