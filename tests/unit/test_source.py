"""Digests of source: what changes them, and what does not."""

import ast
import shutil
from pathlib import Path

import pytest

from pipeline.core import source
from pipeline.core.code import PluginNames, code_of_evaluation, code_of_run
from pipeline.core.errors import ConfigError
from pipeline.core.registry import EVALS, KINDS, METHODS, TASKS, Registry

PLAIN = "def double(x):\n    return 2 * x\n"


@pytest.fixture
def digest_of_text(tmp_path):
    def digest(text: str, name: str = "m.py") -> str:
        path = tmp_path / name
        path.write_text(text)
        source._file_digest.cache_clear()
        return source.digest_of([path])

    return digest


@pytest.fixture
def behind_text(tmp_path):
    """The same by definitions, as it is kept with results."""

    def digest(text: str) -> str:
        path = tmp_path / f"fields{len([*tmp_path.iterdir()])}.py"
        path.write_text(text)
        return source.digest_behind(path)

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


FIELDS = "class Config:\n    width: int = 2\n    depth: int = 3\n"


def test_digest__what_a_field_means__does_not_count(digest_of_text, behind_text):
    """Else a text below a field would say of all results that other code made them."""
    explained = FIELDS.replace("= 2\n", '= 2\n    """Channels."""\n')
    assert digest_of_text(explained) == digest_of_text(FIELDS) != digest_of_text(FIELDS.replace("2", "4"))
    assert behind_text(explained) == behind_text(FIELDS) != behind_text(FIELDS.replace("2", "4"))


def test_digest__of_what_other_versions_of_python_write_otherwise__is_theirs(digest_of_text):
    text = """
class Named(Base):
    def show(self, key: str = "a", *rest: int) -> str:
        return f'{self.table["key"]!r:>{rest[0]}} of {key}' + f"{'none' if key is None else key}" + u"text"
"""
    assert digest_of_text(text) == "1814f1f708282b8a"  # found with Python 3.12.1 and 3.13.0


@pytest.mark.parametrize(
    "text", [PLAIN.replace("2", "3"), PLAIN.replace("*", "+"), PLAIN + "double = abs\n"], ids=["number", "sign", "line"]
)
def test_digest__what_code_does__counts(digest_of_text, text):
    assert digest_of_text(text) != digest_of_text(PLAIN)


def test_digest__of_a_template__counts_every_byte(digest_of_text):
    assert digest_of_text("<p>a</p>", "t.j2") != digest_of_text("<p>a</p> ", "t.j2")


def names_behind(registry: Registry, name: str) -> set[str]:
    found = source.code_behind(registry.files()[name])
    return {str(used.path.relative_to(source.PACKAGE).with_suffix("")) for used in found}


def test_code_behind__a_method__has_its_bases_and_models_and_no_other_method():
    found = names_behind(METHODS, "droppos_swin")
    assert found >= {"methods/droppos_swin", "methods/droppos", "methods/base", "models/position", "models/decoder"}
    assert found.isdisjoint({"methods/mjp", "methods/mae", "models/jigsaw"})


def test_code_behind__an_evaluation__has_the_shuffle_it_uses():
    assert names_behind(EVALS, "consistency") >= {
        "evals/positions/consistency",
        "evals/positions/shuffling",
        "models/jigsaw",
    }
    assert code_of_evaluation("consistency", [], []) != code_of_evaluation("classify", [], [])


def test_code_behind__functions_found_through_globals__count():
    """The corruptions, and the filters that they use."""
    found = source.code_behind(source.PACKAGE / "data/derived/corrupting.py")
    data = source.PACKAGE / "data/derived"
    assert source.Definition(data / "corruptions.py", "zoom_blur") in found
    assert source.Definition(data / "filters.py", "zoomed_mean") in found


def test_code_behind__a_task_that_an_evaluation_asks_a_registry_for__counts():
    assert "tasks/classify" in names_behind(EVALS, "classify")
    assert names_behind(EVALS, "detection_pictures") >= {"tasks/detect", "evals/dense/detection_pictures"}


@pytest.fixture
def files_behind(monkeypatch):
    """The files whose definitions a digest is of."""
    found: list[Path] = []
    monkeypatch.setattr("pipeline.core.code._digest", lambda files: found.extend(files) or "digest")
    return found


RUN = PluginNames("mjp", "classify", "images")


def test_code_of_run__what_its_config_names_and_the_loop__count(files_behind):
    code_of_run(RUN)
    expected = [METHODS.files()["mjp"], TASKS.files()["classify"], KINDS.files()["images"]]
    everywhere = [source.PACKAGE / "engine" / f"{name}.py" for name in ("loop", "train", "parallel/distributed", "run")]
    assert {*files_behind} == {*expected, *everywhere}


def test_code_of_evaluation__its_subjects_and_its_data__count(files_behind):
    code_of_evaluation("classify", [RUN], ["corrupted"])
    expected = [METHODS.files()["mjp"], TASKS.files()["classify"], KINDS.files()["images"], KINDS.files()["corrupted"]]
    everywhere = [
        source.PACKAGE / f"{name}.py" for name in ("evals/evaluate", "engine/run", "engine/parallel/distributed")
    ]
    assert {*files_behind} == {*expected, *everywhere, EVALS.files()["classify"]}


@pytest.mark.slow
def test_imports__of_the_whole_package__have_forms_that_are_followed():
    """Relative ones, `*`, and `import pipeline.x` are not: a change behind them would not be noticed."""
    found = []
    for path in sorted(source.PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            is_relative = isinstance(node, ast.ImportFrom) and (node.level or "*" in names)
            is_whole = isinstance(node, ast.Import) and any(name.split(".")[0] == "pipeline" for name in names)
            if is_relative or is_whole:
                found.append(f"{path}:{node.lineno}: write `from pipeline.folder import name`")
    assert found == []


@pytest.mark.parametrize(
    ("registry", "name", "mathematics"),
    [
        (METHODS, "mask_rcnn", "dense/proposals"),
        (METHODS, "upernet", "dense/upernet"),
        (EVALS, "april", "privacy/april"),
        (EVALS, "gradient_matching", "privacy/matching"),
        (EVALS, "split_learning", "permutation/split"),
        (EVALS, "equivariance", "permutation/forward"),
        (EVALS, "classify", "engine/validate"),
    ],
)
def test_code_behind__mathematics_in_another_folder__counts(registry, name, mathematics):
    assert mathematics in names_behind(registry, name)


MINE = """
from typing import Any

import numpy as np
import torch.nn
from timm.layers import Mlp as Block, DropPath
from pipeline.models.parts import part
from pipeline.core.registry import TASKS

KNOWN: Any = None

class Mine:
    def loss(self):
        return part(1) + np.ones(1) + torch.nn.Identity() + Block()

    def task(self):
        return TASKS.get("sort")
"""
SORT = """
from pipeline.core.registry import TASKS

@TASKS.register("sort")
class Sort:
    size = 3
"""
PARTS = """
from pipeline.models import scale

def part(x):
    return scale.by(x)

def unused(x):
    return x
"""
SCALE = """
FACTOR = 2

def by(x):
    return FACTOR * x

def other(x):
    return x
"""
PLUMBING = """
def write(x):
    return x
"""
FILES = {
    "methods/mine.py": MINE,
    "models/parts.py": PARTS,
    "models/scale.py": SCALE,
    "tasks/sort.py": SORT,
    "files.py": PLUMBING,
}


@pytest.fixture
def digest_behind(tmp_path, monkeypatch):
    """The digest of methods/mine.py in a small package, with some of its files replaced or moved."""
    root = tmp_path / "pipeline"
    monkeypatch.setattr(source, "PACKAGE", root)

    def digest(start: str = "methods/mine.py", **changes: str) -> str:
        shutil.rmtree(root, ignore_errors=True)
        for name, text in (FILES | changes).items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        source._read.cache_clear()
        source._file_of.cache_clear()
        source._registered.cache_clear()
        return source.digest_behind(root / start)

    yield digest
    source._read.cache_clear()
    source._file_of.cache_clear()
    source._registered.cache_clear()


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("methods/mine.py", "part(1)", "part(2)"),
        ("models/parts.py", "scale.by(x)", "scale.by(-x)"),
        ("models/scale.py", "FACTOR * x", "FACTOR + x"),
        ("models/scale.py", "FACTOR = 2", "FACTOR = 3"),
        ("models/scale.py", "FACTOR = 2\n", "FACTOR = 2\nprint(FACTOR)\n"),
        ("models/parts.py", "import scale", "import scale\n\nscale.FACTOR = 4"),
        ("methods/mine.py", "timm.layers import", "timm.models.layers import"),
        ("methods/mine.py", "Mlp as Block", "GluMlp as Block"),
        ("methods/mine.py", "import numpy as np", "import jax.numpy as np"),
        ("tasks/sort.py", "size = 3", "size = 4"),
    ],
)
def test_digest_behind__a_definition_that_is_used__counts(digest_behind, file, old, new):
    assert old in FILES[file]
    assert digest_behind(**{file: FILES[file].replace(old, new)}) != digest_behind()


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("models/scale.py", "def other(x):\n    return x", "def other(x):\n    return -x"),
        ("models/parts.py", "def unused(x):\n    return x", "def unused(x):\n    return -x"),
        ("models/scale.py", "def by(x):", "def by(x: float) -> float:"),
        ("methods/mine.py", "from typing import", "from typing_extensions import"),
        ("methods/mine.py", ", DropPath", ""),
        ("files.py", "return x", "return -x"),
    ],
    ids=["beside", "unused", "hints", "types", "unused import", "plumbing"],
)
def test_digest_behind__what_is_not_used_or_computes_nothing__does_not_count(digest_behind, file, old, new):
    assert old in FILES[file]
    assert digest_behind(**{file: FILES[file].replace(old, new)}) == digest_behind()


def test_digest_behind__files_and_definitions_moved__is_the_same(digest_behind):
    before = digest_behind()
    mine = MINE.replace("pipeline.models.parts", "pipeline.rooms.inner.pieces")
    parts = PARTS.replace("pipeline.models import scale", "pipeline.rooms import measure as scale")
    moved = {"methods/own/mine2.py": mine, "rooms/inner/pieces.py": parts, "rooms/measure.py": SCALE}
    assert digest_behind("methods/own/mine2.py", **moved) == before
    scale = SCALE.replace("FACTOR = 2", "from pipeline.models.factor import FACTOR")
    assert digest_behind(**{"models/scale.py": scale, "models/factor.py": "FACTOR = 2\n"}) == before
    assert digest_behind(**{"models/scale.py": scale, "models/factor.py": "FACTOR = 3\n"}) != before


@pytest.fixture
def package(tmp_path, monkeypatch) -> Path:
    """A package of things that register with REGISTRY."""
    folder = tmp_path / "things"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "base.py").write_text(
        "from pipeline.core.registry import Registry\nREGISTRY = Registry('thing', 'things')\n"
    )
    good = "from things.base import REGISTRY\n\n@REGISTRY.register('good')\nclass Good:\n    pass\n"
    (folder / "good.py").write_text(good)
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    import sys

    for name in [name for name in sys.modules if name.split(".")[0] == "things"]:
        del sys.modules[name]


def test_registry__a_half_written_file_next_to_it__still_gives_the_others(package):
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
        "import sys; from pipeline.core.registry import METHODS; METHODS.get('supervised');"
        "print(sorted(name for name in sys.modules if name.startswith('pipeline.methods.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    expected = ["pipeline.methods.base", "pipeline.methods.permuted", "pipeline.methods.supervised"]  # with its bases
    assert done.stdout.strip() == str(expected)
