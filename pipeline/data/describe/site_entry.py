"""Adding the folder of a data set to a site file, with everything else in it left as it is written."""

import os
from pathlib import Path
from typing import Any

import yaml

from pipeline.core.config import CONFIGS, read_yaml, shown
from pipeline.core.errors import ConfigError
from pipeline.core.files import write_text

TEMPLATE = "site/local.yaml"


def add_data_folder(path: Path, name: str, folder: Path, force: bool) -> bool:
    """Write `data: {name: folder}` into a site file, a new one from the template; whether the file changed.

    Another folder under this name is replaced only with `force`.
    """
    changed = edited_site(path, name, folder, force)
    if changed is None:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, changed)
    return True


def edited_site(path: Path, name: str, folder: Path, force: bool) -> str | None:
    """The text of the site file with the folder; None if the file names it already."""
    origin = path if path.exists() else CONFIGS / TEMPLATE
    before = read_yaml(origin)
    known = _folders(before, origin).get(name)
    if known is not None and _is_same(known, folder):
        return None if path.exists() else origin.read_text(encoding="utf-8")
    if known is not None and not force:
        raise ConfigError(
            f"{shown(path)}: data.{name} is {known}, and the folder is {folder}; use --force to replace it, or choose "
            "another --name"
        )
    text = origin.read_text(encoding="utf-8")
    changed = _with_folder(text, name, folder)
    if _read(changed) != {**_read(text), "data": {**_folders(before, origin), name: str(folder)}}:
        raise ConfigError(
            f"{shown(path)}: found `data` in a form that cannot be edited; add `{name}: {folder}` by hand"
        )
    return changed


def is_named(path: Path, name: str, folder: Path) -> bool:
    """Whether a site file has this folder under this name."""
    known = _folders(read_yaml(path), path).get(name)
    return known is not None and _is_same(known, folder)


def _folders(content: dict[str, Any], path: Path) -> dict[str, Any]:
    data = content.get("data") or {}
    if not isinstance(data, dict):
        raise ConfigError(f"{shown(path)}: data: found {data!r}, expected a mapping of data sets to folders")
    return data


def _is_same(known: Any, folder: Path) -> bool:
    return CONFIGS.parent / Path(os.path.expandvars(str(known))).expanduser() == folder


def _read(text: str) -> dict[str, Any]:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return {}


def _with_folder(text: str, name: str, folder: Path) -> str:
    """The text with the entry at the place where YAML has `data`, or with `data` at the end."""
    root: Any = yaml.compose(text, yaml.SafeLoader)
    data = next((value for key, value in root.value if key.value == "data"), None) if root else None
    entry = _entry(name, folder)
    if data is None:
        return f"{text.rstrip()}\ndata: {{{entry}}}\n".lstrip()
    if not isinstance(data, yaml.MappingNode):  # `data:` without a value
        return f"{text[: data.start_mark.index]} {{{entry}}}{text[data.end_mark.index :]}"
    for key, value in data.value:
        if key.value == name:
            return text[: key.start_mark.index] + entry + text[value.end_mark.index :]
    if not data.value:
        return f"{text[: data.start_mark.index]}{{{entry}}}{text[data.end_mark.index :]}"
    first, last = data.value[0][0], data.value[-1][1]
    if data.flow_style:
        return f"{text[: last.end_mark.index]}, {entry}{text[last.end_mark.index :]}"
    line_end = text.find("\n", last.end_mark.index)
    line_end = len(text) if line_end < 0 else line_end
    return f"{text[:line_end]}\n{' ' * first.start_mark.column}{entry}{text[line_end:]}"


def _entry(name: str, folder: Path) -> str:
    """One line that is right inside braces and below others."""
    return yaml.safe_dump({name: str(folder)}, default_flow_style=True, allow_unicode=True, width=10**6).strip()[1:-1]
