"""Digests of source: what changes them, and what does not."""

from pathlib import Path

import pytest

from pipeline import source
from pipeline.errors import ConfigError
from pipeline.registry import EVALS, METHODS, Registry

PLAIN = "def double(x):\n    return 2 * x\n"


@pytest.fixture
def digest_of_text(tmp_path):
    def digest(text: str, name: str = "m.py") -> str:
        path = tmp_path / name
        path.write_text(text)
        source._file_digest.cache_clear()
        source._imported.cache_clear()
        return source.digest_of([path])

    return digest


@pytest.mark.parametrize(
    "text",
    [
        "# why\ndef double(x):\n    return 2 * x  # twice\n",
        'def double(x):\n    """Twice as much."""\n    return 2 * x\n',
        "def double(\n    x,\n):\n\n    return (2 * x)\n",
    ],
    ids=["comment", "docstring", "layout"],
)
def test_digest__how_code_is_written__does_not_count(digest_of_text, text):
    assert digest_of_text(text) == digest_of_text(PLAIN)


@pytest.mark.parametrize(
    "text", [PLAIN.replace("2", "3"), PLAIN.replace("*", "+"), PLAIN + "double = abs\n"], ids=["number", "sign", "line"]
)
def test_digest__what_code_does__counts(digest_of_text, text):
    assert digest_of_text(text) != digest_of_text(PLAIN)


def test_digest__of_a_template__counts_every_byte(digest_of_text):
    assert digest_of_text("<p>a</p>", "t.j2") != digest_of_text("<p>a</p> ", "t.j2")


def names_behind(registry: Registry, name: str) -> set[str]:
    files = source.code_behind(registry._files()[name])
    return {f"{path.parent.name}/{path.stem}" for path in files}


def test_code_behind__a_method__has_its_bases_and_models_and_no_other_method():
    found = names_behind(METHODS, "droppos_swin")
    assert found >= {"methods/droppos_swin", "methods/droppos", "methods/base", "models/position", "models/decoder"}
    assert found.isdisjoint({"methods/mjp", "methods/mae", "models/jigsaw"})


def test_code_behind__an_evaluation__has_the_shuffle_it_uses():
    assert names_behind(EVALS, "consistency") >= {"evals/consistency", "evals/shuffling", "models/jigsaw"}
    assert EVALS.code("consistency") != EVALS.code("classify")


@pytest.fixture
def package(tmp_path, monkeypatch) -> Path:
    """A package of things that register with REGISTRY."""
    folder = tmp_path / "things"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "base.py").write_text("from pipeline.registry import Registry\nREGISTRY = Registry('thing', 'things')\n")
    good = "from things.base import REGISTRY\n\n@REGISTRY.register('good')\nclass Good:\n    pass\n"
    (folder / "good.py").write_text(good)
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    import sys

    for name in [name for name in sys.modules if name.split(".")[0] == "things"]:
        del sys.modules[name]


def test_registry__a_half_written_file_beside_it__still_gives_the_others(package):
    (package / "broken.py").write_text("@REGISTRY.register('broken')\nclass Broken:\n    def (\n")
    from things.base import REGISTRY

    assert REGISTRY.get("good").__name__ == "Good"
    assert REGISTRY.names() == ["broken", "good"]
    with pytest.raises(ConfigError, match=r"thing 'broken': .*broken.py is not valid Python .*line 3"):
        REGISTRY.get("broken")


def test_registry__a_mistake_in_a_module_that_a_file_imports__names_that_module(package):
    (package / "helper.py").write_text("x = 1\n  y = 2\n")
    text = "import things.helper\nfrom things.base import REGISTRY\n\n@REGISTRY.register('new')\nclass New: ...\n"
    (package / "new.py").write_text(text)
    from things.base import REGISTRY

    with pytest.raises(ConfigError, match=r"thing 'new': .*helper.py is not valid Python .*line 2"):
        REGISTRY.get("new")


def test_registry__one_name_in_two_files__is_refused_with_both(package):
    (package / "other.py").write_text("@REGISTRY.register('good')\nclass Other: ...\n")
    from things.base import REGISTRY

    with pytest.raises(ConfigError, match=r"registered twice, in .*good.py and .*other.py"):
        REGISTRY.get("good")


@pytest.mark.slow
def test_registry__asked_for_one_method__imports_no_other():
    import subprocess
    import sys

    code = (
        "import sys; from pipeline.registry import METHODS; METHODS.get('supervised');"
        "print(sorted(name for name in sys.modules if name.startswith('pipeline.methods.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    expected = ["pipeline.methods.base", "pipeline.methods.permuted", "pipeline.methods.supervised"]  # with its bases
    assert done.stdout.strip() == str(expected)
