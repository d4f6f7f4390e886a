"""Names for things that plug in: `@METHODS.register("mjp")` is the only wiring.

A registry reads which file registers which name and imports the one file that is asked for: there is no list to edit,
and a half-written file stops nobody who does not use it.
"""

import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from pipeline.config import nearest, shown
from pipeline.errors import ConfigError
from pipeline.source import REGISTERED

if TYPE_CHECKING:
    from pipeline.data.kind import DataKind
    from pipeline.evals.base import Evaluation
    from pipeline.methods.base import Method
    from pipeline.tasks.base import Task

Entry = TypeVar("Entry")


class Registry(Generic[Entry]):
    """Name -> class, registered in the modules of one package."""

    def __init__(self, kind: str, package: str) -> None:
        self.kind = kind
        self.package = package
        self._entries: dict[str, type[Entry]] = {}

    def register(self, name: str) -> Callable[[type[Entry]], type[Entry]]:
        def add(entry: type[Entry]) -> type[Entry]:
            if name in self._entries:
                raise ConfigError(f"{self.kind} {name!r} is registered twice; rename one of them")
            self._entries[name] = entry
            return entry

        return add

    def names(self) -> list[str]:
        """Every registered name; nothing is imported."""
        return sorted({*self._entries, *self.files()})

    def get(self, name: str) -> type[Entry]:
        if str(name) not in self._entries:
            path = self.files().get(str(name))
            if path is None:
                raise ConfigError(f"{self.kind} {name!r} is unknown; {nearest(str(name), self.names())}")
            self._import(name, path)
        return self._entries[name]

    def _import(self, name: str, path: Path) -> None:
        try:
            importlib.import_module(f"{self.package}.{path.stem}")
        except SyntaxError as error:  # there, or in a module that it imports
            where = shown(Path(error.filename or path))
            raise ConfigError(
                f"{self.kind} {name!r}: {where} is not valid Python ({error.msg}, line {error.lineno}); fix it"
            ) from None

    def files(self) -> dict[str, Path]:
        """Name -> file, read from the text of the package's modules."""
        spec = importlib.util.find_spec(self.package)
        folders = [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []
        found: dict[str, Path] = {}
        for path in sorted(file for folder in folders for file in folder.glob("*.py")):
            for name in REGISTERED.findall(path.read_text(encoding="utf-8", errors="replace")):
                if name in found:
                    where = f"{shown(found[name])} and {shown(path)}"
                    raise ConfigError(f"{self.kind} {name!r} is registered twice, in {where}; rename one of them")
                found[name] = path
        return found


# Here and not beside their base classes, so that names and digests are known without torch.
METHODS: Registry["Method"] = Registry("method", "pipeline.methods")
EVALS: Registry["Evaluation"] = Registry("evaluation", "pipeline.evals")
TASKS: Registry["Task"] = Registry("task", "pipeline.tasks")
KINDS: Registry["DataKind"] = Registry("kind of data", "pipeline.data")
