"""Names for things that plug in: `@METHODS.register("mjp")` is the only wiring.

A registry reads which file registers which name and imports the one file that is asked for: there is no list to edit,
and a half-written file stops nobody who does not use it.
"""

import importlib
import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from pydantic.errors import PydanticUserError

from pipeline.core.config import nearest, shown
from pipeline.core.errors import ConfigError
from pipeline.core.source import REGISTERED, REGISTRIES

Entry = TypeVar("Entry")
NOTEBOOK = "__main__"  # the module of its classes: a cell that is run again replaces what it registered
CONFIG_CLASS = re.compile(r"^    class Config\(", re.M)  # of whatever plugs in


class Registry:
    """Name -> class, registered in the modules of one package.

    Their base classes lie on floors above this one: whoever asks for a class names its type.
    """

    def __init__(self, kind: str, package: str) -> None:
        self.kind = kind
        self.package = package
        self._entries: dict[str, Any] = {}

    def register(self, name: str) -> Callable[[type[Entry]], type[Entry]]:
        def add(entry: type[Entry]) -> type[Entry]:
            known = self._entries.get(name)
            is_rerun = known is not None and known.__module__ == entry.__module__ == NOTEBOOK
            if known is not None and not is_rerun:
                raise ConfigError(f"{self.kind} {name!r} is registered twice; rename one of them")
            self._entries[name] = entry
            return entry

        return add

    def names(self) -> list[str]:
        """Every registered name; nothing is imported."""
        return sorted({*self._entries, *self.files()})

    def get(self, name: str) -> Any:
        if str(name) not in self._entries:
            path = self.files().get(str(name))
            if path is None:
                raise ConfigError(f"{self.kind} {name!r} is unknown; {self._hint(str(name))}")
            self._import(name, path)
        return self._entries[name]

    def _hint(self, name: str) -> str:
        """What to do about a name that nothing registers: a file of that name may have forgotten to."""
        variable = {folder: variable for variable, folder in REGISTRIES.items()}.get(self.package.rpartition(".")[2])
        for path in [file for folder in self._folders() for file in folder.rglob(f"{name}.py")]:
            text = path.read_text(encoding="utf-8", errors="replace")
            if CONFIG_CLASS.search(text) and not REGISTERED.search(text):
                return f'{shown(path)} does not register it; write @{variable}.register("{name}") above its class'
        return nearest(name, self.names())

    def _import(self, name: str, path: Path) -> None:
        try:
            importlib.import_module(self._module(path))
        except SyntaxError as error:  # there, or in a module that it imports
            where = shown(Path(error.filename or path))
            raise ConfigError(
                f"{self.kind} {name!r}: {where} is not valid Python ({error.msg}, line {error.lineno}); fix it"
            ) from None
        except PydanticUserError as error:  # such as a field without a type
            text = " ".join(str(error).split("\n\n")[0].split())
            raise ConfigError(f"{self.kind} {name!r}: {shown(path)}: its config class is not valid: {text}") from None

    def _module(self, path: Path) -> str:
        folder = next(folder for folder in self._folders() if path.is_relative_to(folder))
        return ".".join((self.package, *path.relative_to(folder).with_suffix("").parts))

    def files(self) -> dict[str, Path]:
        """Name -> file, read from the text of the package's modules."""
        found: dict[str, Path] = {}
        for path in sorted(file for folder in self._folders() for file in folder.rglob("*.py")):
            for name in REGISTERED.findall(path.read_text(encoding="utf-8", errors="replace")):
                if name in found:
                    where = f"{shown(found[name])} and {shown(path)}"
                    raise ConfigError(f"{self.kind} {name!r} is registered twice, in {where}; rename one of them")
                found[name] = path
        return found

    def _folders(self) -> list[Path]:
        spec = importlib.util.find_spec(self.package)
        return [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []


# Here and not beside their base classes, so that names and digests are known without torch.
METHODS = Registry("method", "pipeline.methods")
EVALS = Registry("evaluation", "pipeline.evals")
TASKS = Registry("task", "pipeline.tasks")
KINDS = Registry("kind of data", "pipeline.data")
