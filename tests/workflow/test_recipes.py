"""The recipes of CONTRIBUTING, done as they are written, in a copy of the project."""

import re
import shutil
import wave
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image
from project import ROOT, Project, copy_project, shrink_images
from small import NO_HOOKS

from pipeline.core.config import merge
from pipeline.data.readers.fashion import CLASSES, read_fashion_mnist
from pipeline.results.records import EvalResult, read_record

BLOCK = re.compile(r"```(?:python|yaml)\n# (\S+)\n(.*?)```", re.S)
TEMPLATE, MINE = "configs/template/study.yaml", "configs/study/mine.yaml"
ADDED_TO = ("configs/study/mjp.yaml", MINE)  # what recipes add to a study; every other file of them is new
SHOP = ("Trouser", "Pullover", "Dress")  # 1 to 3 in the training set; as folders, 2, 1 and 0


def recipes() -> dict[str, str]:
    """File -> the text that CONTRIBUTING gives it."""
    return dict(BLOCK.findall((ROOT / "CONTRIBUTING.md").read_text()))


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Project:
    """A copy after all recipes, in which the site names a folder with the images of the new data set."""
    project = copy_project(tmp_path_factory.mktemp("recipes") / "clone")
    shutil.copy(project.root / TEMPLATE, project.root / MINE)
    for file, text in recipes().items():
        path = project.root / file
        assert path.exists() == (file in ADDED_TO), file
        if file in ADDED_TO:
            text = yaml.safe_dump(merge(yaml.safe_load(path.read_text()), yaml.safe_load(text)), sort_keys=False)
        path.write_text(text)
    write_shop(project.root / "shop")
    write_words(project.root / "words")
    project.edit("configs/site/local.yaml", "data: {}", "data: {shop: shop, words: words}")
    shrink_images(project, 300, 100)
    project.edit(MINE, "    epochs: 4\n", "    epochs: 1\n")
    return project


def write_words(folder: Path) -> None:
    """Two words that differ in pitch."""
    generator, moments = np.random.default_rng(0), np.arange(16_000) / 16_000
    for split, count in (("train", 20), ("val", 10)):
        for word, pitch in (("high", 2000), ("low", 300)):
            (folder / split / word).mkdir(parents=True)
            for number in range(count):
                heard = 0.3 * np.sin(2 * np.pi * pitch * moments) + 0.05 * generator.standard_normal(16_000)
                with wave.open(str(folder / split / word / f"{number}.wav"), "wb") as file:
                    file.setparams((1, 2, 16_000, 0, "NONE", ""))
                    file.writeframes((2**15 * heard).astype("<i2").tobytes())


def write_shop(folder: Path) -> None:
    """Ten images of each of three classes, which have the names that the training set gives them."""
    images = read_fashion_mnist(ROOT / "pipeline/data/fashion_mnist", "val").samples
    for name in SHOP:
        place, label = folder / "val" / name, CLASSES.index(name)
        place.mkdir(parents=True)
        for index in [index for index, found in enumerate(images.labels) if found == label][:10]:
            images.image(index).save(place / f"{index}.png")


def test_recipes__are_found_in_contributing():
    assert set(recipes()) == {
        "pipeline/methods/mine.py",
        "configs/method/mine.yaml",
        "pipeline/evals/brightness.py",
        "configs/eval/brightness.yaml",
        "configs/data/shop.yaml",
        "pipeline/data/sounds.py",
        "configs/data/words.yaml",
        *ADDED_TO,
    }


@pytest.mark.slow
def test_recipes__as_written__pass_the_linters(project):
    files = [file for file in recipes() if file.endswith(".py")]
    for command in (["check", "-q"], ["format", "--check", "-q"]):
        done = project.run("ruff", *command, *files)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_guide__study_in_its_yaml__is_checked_without_a_mistake(project):
    (text,) = [text for file, text in BLOCK.findall((ROOT / "GUIDE.md").read_text()) if file == MINE]
    study = project.root / "configs/study/guided.yaml"
    study.write_text(text.replace("mine.t1", "guided.t1"))
    done = project.run("python", "-m", "pipeline", "check", "--scale", "own")
    study.unlink()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ViT + MJP" in done.stdout


@pytest.fixture(scope="module")
def finished(project) -> Project:
    """The same after one call of Snakemake for everything that the recipes add and that takes seconds to run."""
    study = yaml.safe_load((project.root / MINE).read_text())
    add_words(study)
    (project.root / MINE).write_text(yaml.safe_dump(study, sort_keys=False))
    done = project.snakemake("mine_figure1", "mine_figure2", "mine_table2", *NO_HOOKS)
    assert done.returncode == 0, done.stdout + done.stderr
    return project


def add_words(study: dict) -> None:
    """A run on the new kind of data, spectrograms of 40 x 98 cut into one row of 49 patches, and its table."""
    changes = {"model": {"patch_size": [40, 2]}, "optim": {"global_batch": 8, "micro_batch": 8, "epochs": 8}}
    about = {"label": "Words", "method": "supervised", "model": "vit_demo", "data": "words", "set": changes}
    study["runs"]["heard"] = about
    table = {"label": "Table 2", "title": "Words", "columns": study["tables"]["t1"]["columns"]}
    study["tables"]["t2"] = {**table, "rows": {"heard": {"label": "Words", "run": "heard"}}}


@pytest.mark.slow
def test_recipes__as_written__make_a_run_and_a_row(finished):
    (finished.root / "results/demo").mkdir(exist_ok=True)  # where graph.json is written
    graph = finished.graph("demo")
    (run,) = graph.tables["mjp.t1"].rows["mjp.t1.deit-s-mine"].runs[""]
    assert graph.runs[run].config["method"]["strength"] == 0.3


@pytest.mark.slow
def test_recipes__figures__are_drawn_from_a_new_evaluation_on_a_new_data_set(finished):
    figures = finished.root / "results/own/figures/all"
    assert "<svg" in (figures / "mine.f1.svg").read_text()
    (result,) = finished.root.glob("results/own/evals/brightness-*/result.json")
    found = read_record(result, EvalResult)
    assert found.count == 30 and 0 <= found.metrics["top1"] <= 100
    assert found.data == {"images": "shop"} and "shop" in found.inputs.data
    assert Image.open(result.with_name("brighter.png")).width > 300
    assert "data:image/png" in (figures / "mine.f2.html").read_text()


@pytest.mark.slow
def test_recipes__new_kind_of_data__is_prepared_trained_on_and_evaluated(finished):
    (row,) = finished.read("results/own/tables/all/mine.t2.json")["rows"]
    assert row["cells"]["top1"]["ours"] > 90  # the two words are easy to tell apart
    assert finished.read("results/own/data/words/manifest.json")["classes"] == ["high", "low"]


@pytest.mark.slow
def test_recipes__new_method__is_covered_by_the_tests_of_every_method(project):
    tests = [str(ROOT / "tests/unit" / name) for name in ("test_methods.py", "test_method_models.py")]
    done = project.run("python", "-m", "pytest", "-q", *tests, "-k", "mine and not compile", "-p", "no:cacheprovider")
    passed = re.search(r"(\d+) passed", done.stdout)
    assert done.returncode == 0 and passed and int(passed[1]) >= 8, done.stdout[-3000:] + done.stderr
