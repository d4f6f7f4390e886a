"""Names for things that plug in: `@METHODS.register("mjp")` is the only wiring.

A registry finds its entries by importing every module of its package, so there is no list to edit.
"""

import importlib
import pkgutil
from collections.abc import Callable
from typing import TypeVar

from pipeline.config import nearest
from pipeline.errors import ConfigError

Entry = TypeVar("Entry")


class Registry:
    """Name -> class, filled by importing the modules of one package."""

    def __init__(self, kind: str, package: str) -> None:
        self.kind = kind
        self.package = package
        self._entries: dict[str, type] = {}

    def register(self, name: str) -> Callable[[type[Entry]], type[Entry]]:
        def add(entry: type[Entry]) -> type[Entry]:
            if name in self._entries:
                raise ConfigError(f"{self.kind} {name!r} is registered twice; rename one of them")
            self._entries[name] = entry
            return entry

        return add

    def names(self) -> list[str]:
        self._load()
        return sorted(self._entries)

    def get(self, name: str) -> type:
        self._load()
        if not isinstance(name, str) or name not in self._entries:
            raise ConfigError(f"{self.kind} {name!r} is unknown; {nearest(str(name), self._entries)}")
        return self._entries[name]

    def _load(self) -> None:
        package = importlib.import_module(self.package)
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{self.package}.{module.name}")
