"""Starting an encoder from the weights of another run or of another project's checkpoint file.

Every tensor is accounted for: taken, resized, kept as the model started, or dropped; a difference without a rule is an
error, so that no layer silently stays at its random start. Patches of another size are refused, not resampled.

Absolute positions of another grid are brought to the model's in one of two ways, and the report says which:
- timm: bicubic with antialiasing; a fixed sin-cos table is computed for the new grid instead.
- released: bicubic without antialiasing, fixed tables too, as MAE, DropPos and DeiT do before they fine-tune.
Positions of texts are a list: of a longer one, the first are taken.
A ViT with windows (windowed.py) takes the file of a plain ViT: CLS and the last norm are dropped, and the positions of
the patches are laid out as a grid.
timm's functions resize; its checkpoint filters as a whole would also resample patches, and Swin's takes every file
without a classifier for one with the authors' old names.

timm is imported where it is used, not at the top: it takes ten seconds.
"""

import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from pipeline.core.errors import CheckpointError
from pipeline.core.files import digest
from pipeline.models.formats import BESIDE, normalised, read_pickle
from pipeline.models.patches import Encoder, Grid
from pipeline.models.position import (
    PositionResampling,
    position_grid,
    resized_bias_table,
    resized_offsets,
    resized_positions,
    square_grid,
)
from pipeline.models.windowed import is_windowed

PATCHES = "patch_embed.proj.weight"
CLASSIFYING = re.compile(r"cls_token$|(fc_)?norm\.|head\.")  # what a plain ViT has to classify with
BIAS_TABLE = "relative_position_bias_table"
TEXT_POSITIONS = ("bert.embeddings.position_embeddings.weight", "transformer.wpe.weight")
ROWS_AND_COLUMNS = (".rel_pos_h", ".rel_pos_w")  # relative positions of a ViT with windows
ROTATIONS = "rope.freqs"  # learned frequencies of rotary positions
GRID = "grid"  # in the metadata of a file
# Where the model's absolute positions come from: it has none; the file, on the same grid or resampled in one of the two
# ways; the sin-cos formula; the model's own random start.
PositionSource = Literal["none", "file", "timm", "released", "formula", "start"]


@dataclass(frozen=True)
class LoadReport:
    """What became of every tensor of the file and of the model."""

    source: str
    format: str
    sha256: str
    matched: list[str]
    resized: list[str]  # "name 14x14 -> 4x4"
    fresh: list[str]  # the model's own start is kept
    dropped: list[str]  # in the file, not in the model
    positions: PositionSource

    def summary(self) -> str:
        """One line for the log."""
        parts = [f"{len(self.matched)} tensors matched"]
        for what in ("resized", "fresh", "dropped"):
            names = _abbreviated(getattr(self, what))
            more = f", and {len(names) - 4} more" if len(names) > 4 else ""
            parts.append(f"{len(getattr(self, what))} {what}" + (f" ({', '.join(names[:4])}{more})" if names else ""))
        return f"{self.format} file {self.source}: " + ", ".join([*parts, f"positions: {self.positions}"])

    def as_dict(self) -> dict[str, Any]:
        """For JSON: counts, then names; those of dropped decoders and the like by prefix."""
        names = {"matched": self.matched, "resized": self.resized, "fresh": self.fresh}
        counts = {f"num_{what}": len(listed) for what, listed in (names | {"dropped": self.dropped}).items()}
        return {
            "source": self.source,
            "format": self.format,
            "sha256": self.sha256,
            "positions": self.positions,
            **counts,
            **names,
            "dropped": _abbreviated(self.dropped),
        }


def load_encoder(encoder: Encoder, path: Path, resampling: PositionResampling = "timm") -> LoadReport:
    """Fill a timm encoder from a file; its positions and classifier may differ, nothing else."""
    own = encoder.state_dict()
    layout, weights = open_checkpoint(path, own)
    if is_windowed(encoder):
        own, weights = own | _as_sequence(own), weights | _as_sequence(weights)
    _refuse_other_design(own, weights, path)
    unused, grid = _unused(encoder, own, weights), _grid_of_file(encoder, own, weights, path)
    is_other = _is_moved(encoder, grid) or not _same_shape("pos_embed", own, weights)
    if resampling == "timm" and _has_fixed_positions(encoder, own) and is_other:
        unused.add("pos_embed")  # the formula gives the values of any grid
    used = {name: value for name, value in weights.items() if name not in unused}
    resized = _resize_positions(encoder, own, used, resampling, grid)
    if is_windowed(encoder) and "pos_embed" in used:
        used["pos_embed"] = used["pos_embed"].unflatten(1, tuple(position_grid(encoder)))
    optional = _optional(encoder, own)
    fresh = [name for name in own if name not in used and name in optional]
    fill_weights(encoder, used, path, keep=fresh)
    return LoadReport(
        source=str(path),
        format=layout,
        sha256=digest(path) or "",
        matched=[name for name in own if name in used and name not in resized],
        resized=[f"{name} {change}" for name, change in resized.items()],
        fresh=fresh,
        dropped=[name for name in weights if name not in own],
        positions=_position_source(encoder, own, used, resampling if "pos_embed" in resized else "file"),
    )


def _as_sequence(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The positions of the patches alone, (1, N, D), of a plain ViT or of one with windows."""
    positions = weights.get("pos_embed")
    if positions is None:
        return {}
    return {"pos_embed": positions.flatten(1, -2)[:, 1 if "cls_token" in weights else 0 :]}


def _position_source(
    encoder: Encoder, own: dict[str, Tensor], used: dict[str, Tensor], of_file: PositionSource
) -> PositionSource:
    if any(name in own for name in TEXT_POSITIONS):
        return "file"
    if "pos_embed" not in own:
        return "none"
    if "pos_embed" in used:
        return of_file
    return "formula" if _has_fixed_positions(encoder, own) else "start"


def open_checkpoint(path: Path, own: Collection[str] = ()) -> tuple[str, dict[str, Tensor]]:
    """The layout of a weight file and its tensors under timm's names, for a model whose names are `own`.

    The kind of file is told by its first bytes, not by its suffix.
    """
    try:
        with path.open("rb") as file:
            start = file.read(9)
    except FileNotFoundError:
        raise CheckpointError(
            f"{path} not found; finish the run that writes it, or put the file there (relative `file:` paths "
            "start at `weights` of the site)"
        ) from None
    except OSError as error:
        raise CheckpointError(f"{path} could not be opened ({error.strerror}); expected one weight file") from None
    if start[8:] == b"{":
        return normalised(read_weights(path), path, own)
    if start.startswith((b"PK\x03\x04", b"\x80")):
        return normalised(read_pickle(path), path, own)
    raise CheckpointError(
        f"{path} begins with {start!r}; expected safetensors or a file that torch.save wrote. "
        "A failed download may have left a web page or a pointer: download it again"
    )


def grid_record(encoder: Encoder) -> dict[str, str] | None:
    """What an exported file says of its grid, which its tensors do not tell; nothing where it is a square."""
    grid = getattr(encoder, "grid", Grid(1, 1))
    return {GRID: f"{grid.rows}x{grid.cols}"} if grid.rows != grid.cols else None


def _grid_of_file(encoder: Encoder, own: dict[str, Tensor], weights: dict[str, Tensor], path: Path) -> Grid | None:
    """The grid that a file records, else a square one; None where neither can be."""
    if path.suffix == ".safetensors":
        with safe_open(path, "pt") as file:
            if recorded := (file.metadata() or {}).get(GRID):
                rows, cols = recorded.split("x")
                return Grid(int(rows), int(cols))
    if "pos_embed" not in own or "pos_embed" not in weights:
        return None
    num_prefix = own["pos_embed"].shape[1] - position_grid(encoder).size
    return square_grid(weights["pos_embed"].shape[1] - num_prefix)


def _is_moved(encoder: Encoder, grid: Grid | None) -> bool:
    """Whether the file's grid is another; as many patches on another grid are other positions."""
    return grid is not None and hasattr(encoder, "patch_embed") and grid != position_grid(encoder)


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file."""
    try:
        return load_file(path)
    except FileNotFoundError:
        raise CheckpointError(f"{path} not found; finish the run that writes it first") from None
    except SafetensorError as error:
        raise CheckpointError(
            f"{path} is damaged ({error}); if a run wrote it, delete its folder and run again, else download it again"
        ) from None


def fill_weights(module: nn.Module, weights: dict[str, Tensor], path: Path, keep: Collection[str] = ()) -> None:
    """Load every tensor or none: names and shapes must be the module's own, except those it is to `keep`."""
    state = module.state_dict()
    own = {name: tuple(value.shape) for name, value in state.items() if name not in keep}
    found = {name: tuple(value.shape) for name, value in weights.items()}
    wrong = [f"{n}: found {found[n]}, expected {own[n]}" for n in own if n in found and found[n] != own[n]]
    wrong += [f"{name}: missing, expected {own[name]}" for name in own if name not in found]
    wrong += [f"{name}: found {found[name]}, not expected" for name in found if name not in own]
    if wrong:
        more = f"; and {len(wrong) - 20} more" if len(wrong) > 20 else ""
        raise CheckpointError(
            f"{path} does not fit the model{_hint(own, found)}; tensors that differ ({len(wrong)}): "
            + "; ".join(wrong[:20])
            + more
        )
    module.load_state_dict(weights | {name: state[name] for name in keep})


def _hint(own: dict[str, tuple], found: dict[str, tuple]) -> str:
    """The most likely cause, shown before the list."""
    here, there = own.get(PATCHES, ()), found.get(PATCHES, ())
    if not any(own[name] == found.get(name) for name in own):
        widths = f" (embed dim found {there[0]}, expected {here[0]})" if here and there else ""
        return f": it is of another architecture{widths}, give the model the one of the file"
    if here and there and here[:2] == there[:2] and here != there:
        return f": patch size found {there[2:]}, expected {here[2:]}, and patches are not resampled, use the file's"
    return ""


def _refuse_other_design(own: dict[str, Tensor], weights: dict[str, Tensor], path: Path) -> None:
    if "dist_token" in weights and "dist_token" not in own:
        raise CheckpointError(
            f"{path} is a distilled model with two prefix tokens (cls_token, dist_token) and two heads; expected one "
            "with only cls_token: use the file of the model that was trained without distillation"
        )
    if "reg_token" in weights and "reg_token" not in own:
        raise CheckpointError(
            f"{path} has {weights['reg_token'].shape[1]} registers (reg_token), as DINOv3 has; expected a ViT whose "
            "one token before the patches is CLS: use a file without registers"
        )
    if "blocks.0.ls1.gamma" in weights and "blocks.0.ls1.gamma" not in own and "blocks.0.norm1.weight" in own:
        raise CheckpointError(
            f"{path} scales what its blocks add (ls1.gamma); expected a file without it: set model.layer_scale to "
            "1.0e-5, and the model has the same parameters"
        )
    if "fc_norm.weight" in weights and "norm.weight" in own and "fc_norm.weight" not in own:
        raise CheckpointError(
            f"{path} was trained with averaged tokens (it has fc_norm); expected the norm of a model that classifies "
            "by its class token: build the model with average pooling, or use the file from before fine-tuning"
        )


def _unused(encoder: Encoder, own: dict[str, Tensor], weights: dict[str, Tensor]) -> set[str]:
    """Names in the file that a rule leaves aside."""
    beside = (CLASSIFYING,) if is_windowed(encoder) else ()
    unused = {
        name
        for name in weights
        if name not in own and (_is_position(name) or any(pattern.match(name) for pattern in (BESIDE, *beside)))
    }
    theirs, ours = (
        {name: value.shape for name, value in part.items() if _is_classifier(encoder, name)} for part in (weights, own)
    )
    if theirs != ours:
        unused |= set(theirs)
    if "fc_norm.weight" in own and "norm.weight" not in own:  # as MAE fine-tunes: the norm after pooling starts anew
        unused |= {"norm.weight", "norm.bias"}
    return unused


def _same_shape(name: str, own: dict[str, Tensor], weights: dict[str, Tensor]) -> bool:
    return name in own and name in weights and own[name].shape == weights[name].shape


def _optional(encoder: Encoder, own: dict[str, Tensor]) -> set[str]:
    """Names in the model that the file need not have."""
    also = ("fc_norm.", "bert.pooler.")  # a language model has no pooler
    return {name for name in own if _is_classifier(encoder, name) or _is_position(name) or name.startswith(also)}


def _is_position(name: str) -> bool:
    """Absolute positions, frequencies, and those relative tables that a plain ViT does not have; Swin has its own."""
    return name in ("pos_embed", ROTATIONS) or name.endswith((f".rel_pos.{BIAS_TABLE}", *ROWS_AND_COLUMNS))


def _is_classifier(encoder: Encoder, name: str) -> bool:
    heads = encoder.default_cfg["classifier"]
    heads = (heads,) if isinstance(heads, str) else tuple(heads)
    return name.startswith(tuple(f"{head}." for head in heads))


def _has_fixed_positions(encoder: Encoder, own: dict[str, Tensor]) -> bool:
    return "pos_embed" in own and not encoder.pos_embed.requires_grad


def _resize_positions(
    encoder: Encoder,
    own: dict[str, Tensor],
    weights: dict[str, Tensor],
    resampling: PositionResampling,
    grid: Grid | None,
) -> dict[str, str]:
    """Bring positions of another grid or window to the model's, in place; says what changed, by name."""
    resized = {}
    for name, value in weights.items():
        is_moved = _is_position(name) and _is_moved(encoder, grid)
        if name not in own or value.ndim != own[name].ndim or (_same_shape(name, own, weights) and not is_moved):
            continue
        if name == "pos_embed":
            found = resized_positions(encoder, value, own[name], resampling == "timm", grid)
        elif name.endswith(BIAS_TABLE):
            attention = encoder.get_submodule(name.removesuffix(f".{BIAS_TABLE}"))
            found = resized_bias_table(attention, value, own[name], grid if _is_position(name) else None)
        elif name.endswith(ROWS_AND_COLUMNS):
            found = resized_offsets(value, len(own[name]))
        elif name in TEXT_POSITIONS and len(value) > len(own[name]):
            found = value[: len(own[name])], f"{len(value)} -> {len(own[name])}"
        else:
            continue
        if found:
            weights[name], resized[name] = found
    return resized


def _abbreviated(names: list[str]) -> list[str]:
    """The names, those of a large part as `part.* x96`."""
    sizes = Counter(name.split(".")[0] for name in names if " " not in name)
    large = {part for part, size in sizes.items() if size > 3}
    short = (f"{part}.* x{sizes[part]}" if (part := name.split(".")[0]) in large else name for name in names)
    return list(dict.fromkeys(short))
