"""Failures that people read: sentences, without a traceback of the test."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pydantic import ValidationError


def refuse(sentences):
    """Fail with these sentences, if there are any; each says what was found, what is expected and what to do."""
    if sentences:
        pytest.fail("\n".join(sentences), pytrace=False)


@contextmanager
def defaults_of(name: str, where: str) -> Iterator[None]:
    """Tests of everything that is registered build a config with its defaults; `where` can name other values."""
    try:
        yield
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
        pytest.fail(f"{name} is tested with its defaults, which do not do: {'; '.join(lines)}; {where}", pytrace=False)
    except ValueError as error:
        pytest.fail(f"{name} is tested with its defaults, which do not do: {error}; {where}", pytrace=False)
