"""The names that timm knows, read from its source: a mistyped one is found without importing torch and all of timm."""

import difflib
import functools
import re
from importlib.util import find_spec
from pathlib import Path

TEXT = ("bert", "gpt2")  # those of transformers that pipeline/models/text.py builds
REGISTERED = re.compile(r"^@register_model\s*\ndef (\w+)\(", re.MULTILINE)


@functools.cache
def architectures() -> frozenset[str]:
    timm = find_spec("timm")
    folders = timm.submodule_search_locations or [] if timm else []
    files = [path for folder in folders for path in Path(folder, "models").rglob("*.py")]
    return frozenset(name for path in files for name in REGISTERED.findall(path.read_text()))


def unknown_architecture(name: str) -> str:
    """What is wrong with the name of an architecture, with near names; empty where timm has it."""
    plain = name.split(".")[0]  # what follows the dot names pretrained weights
    if plain in architectures():
        return ""
    near = difflib.get_close_matches(plain, architectures(), n=4, cutoff=0.6)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "`timm.list_models()` lists them"
    return f"timm has no architecture {name!r}; {hint}"
