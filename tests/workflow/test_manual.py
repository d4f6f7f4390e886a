"""The manual as `make docs` builds it: what is in it, and how a reader finds it in a real browser."""

import re
import sys
from pathlib import Path

import pytest
from project import ROOT, copy_project

from pipeline.core.registry import EVALS, KINDS, METHODS
from pipeline.engine.optim import OptimConfig
from pipeline.models.encoder import ModelConfig
from pipeline.site import Site

sys.path.insert(0, str(ROOT / "docs/generate"))
import import_graph
import rooms
import sections


@pytest.fixture(scope="module")
def manual(tmp_path_factory) -> Path:
    """Built in a copy of the project, without a network, as far as Python knows one."""
    project = copy_project(tmp_path_factory.mktemp("manual") / "clone")
    (project.root / "sitecustomize.py").write_text(NO_NETWORK)
    built = project.run("python", "-m", "mkdocs", "build", "--strict", NO_MKDOCS_2_WARNING="1")
    assert built.returncode == 0 and "WARNING" not in built.stderr, built.stdout + built.stderr
    return project.root / "results/manual"


NO_NETWORK = """
import socket

def refuse(self, address):
    raise OSError(f"the manual asked for {address}")

socket.socket.connect = refuse
"""


@pytest.mark.slow
def test_manual__every_key__has_a_heading(manual):
    found = {
        page: set(re.findall(r'<h3 id="([^"]+)"', (manual / f"reference/{page}.html").read_text()))
        for page in ("optim", "model", "methods", "data", "evaluations", "site", "studies")
    }
    assert found["optim"] >= {f"optim.{key}" for key in OptimConfig.model_fields}
    assert found["model"] == {f"model.{key}" for key in ModelConfig.model_fields}
    assert found["site"] >= {*Site.model_fields}
    assert found["methods"] >= {"mjp.method.shuffle_ratio", "droppos.method.tau", "method.fidelity"}
    for page, registry in (("methods", METHODS), ("data", KINDS), ("evaluations", EVALS)):
        heads = re.findall(r'<h2 id="([^"]+)"', (manual / f"reference/{page}.html").read_text())
        assert {*heads} >= {*registry.names()}


@pytest.mark.slow
def test_manual__key__has_values_default_and_the_studies_that_use_each(manual):
    text = (manual / "reference/optim.html").read_text()
    about = text.partition('<h3 id="optim.lr_curve"')[2].partition("<h3")[0]
    words = " ".join(re.sub(r"<[^>]+>", "", about).split())
    assert "cosine that begins where the warm-up ends" in words
    assert "Values: after_warmup, all_steps, all_epochs, steps, poly" in words and "Default: after_warmup" in words
    assert re.search(r"Used: .*all_steps \((\w+, )*mjp\b", words)


@pytest.mark.slow
def test_manual__sections_of_the_guide_and_commands__have_their_places(manual):
    titles = [each.title for each in sections.sections("GUIDE.md")]
    assert [
        each for each in titles if "<h1 id=" not in (manual / f"how-to/{sections.slug(each)}.html").read_text()
    ] == []
    commands = (manual / "reference/commands.html").read_text()
    assert "--expanded" in commands and "load_encoder" in (manual / "reference/python.html").read_text()


@pytest.mark.slow
@pytest.mark.browser
def test_manual__opened_from_disk__answers_two_questions_by_its_search_only(manual, browser):
    page, asked = browser.new_page(), []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"file://{manual}/index.html")
    assert answer(page, "lr_curve").endswith("reference/optim.html#optim.lr_curve")
    assert "warm-up ends" in page.locator("h3[id='optim.lr_curve'] + p").inner_text()
    assert "tutorials/images.html" in answer(page, "train on my own images")
    assert page.get_by_text("python -m pipeline describe my-images").count() == 1
    assert [url for url in asked if not url.startswith(("file:", "data:", "about:", "blob:"))] == []
    page.close()


def answer(page, question: str) -> str:
    """The address behind the first answer of the search."""
    page.keyboard.press("/")
    page.locator(".md-search-result__meta", has_text="Type to start searching").wait_for()
    page.keyboard.insert_text(question[:-1])
    page.keyboard.type(question[-1])  # the search looks when a key is released
    page.locator(".md-search-result__meta", has_text="matching document").wait_for()
    links = [link for link in page.locator(".md-search-result__item").first.locator("a").all() if link.is_visible()]
    with page.expect_navigation():
        next((link for link in links if "#" in link.get_attribute("href")), links[0]).click()
    return re.sub(r"\?[^#]*", "", page.url)


def test_sections__of_a_page__are_split_at_headings_outside_of_code(tmp_path, monkeypatch):
    monkeypatch.setattr(sections, "ROOT", tmp_path)
    (tmp_path / "PAGE.md").write_text(
        "# Page\n\n## One, two\nText:\n- a\n- b\n\n```bash\n## no heading\n```\n\n## Three\nend\n"
    )
    first, second = sections.sections("PAGE.md")
    assert (first.slug, second.page) == ("one-two", "# Three\n\nend\n")
    assert first.text == "Text:\n\n- a\n- b\n\n```bash\n## no heading\n```"  # a list needs an empty line before it
    with pytest.raises(KeyError, match="no section 'Four'; it has: One, two, Three"):
        sections.section("PAGE.md", "Four")


@pytest.mark.slow
def test_rooms__every_folder_and_file__is_in_one_layer_and_says_what_it_is_for():
    graph = import_graph.folders_in_use()
    named = [name for names in rooms.LAYERS.values() for name in names]
    assert sorted(named) == sorted(graph) and len(named) == len({*named})
    inside = [each for room in rooms.rooms().values() if room.is_folder for each in rooms.rooms_within(room)]
    abouts = {each.label: each.about for each in [*rooms.rooms().values(), *inside]}
    assert {label for label, about in abouts.items() if not (about.endswith(".") and 20 < len(about) < 125)} == set()


def test_rooms__list_in_contributing__has_the_sentences_of_the_code():
    assert rooms.short_table() in (ROOT / "CONTRIBUTING.md").read_text()


@pytest.mark.slow
def test_rooms__imports__lead_to_the_same_layer_or_down():
    graph = import_graph.folders_in_use()
    assert import_graph.upwards(graph) == []
    assert import_graph.upwards({"core": {"evals"}, "evals": {"core"}}) == ["core imports evals"]


@pytest.mark.slow
def test_picture_of_imports__has_every_room_and_no_line_through_a_box():
    graph, drawn = import_graph.folders_in_use(), import_graph.picture()
    assert {name for name in graph if f'id="room-{name}"' not in drawn} == set()
    lines = import_graph.essential(import_graph.downwards(graph))
    ways = [import_graph.way_of(start, end) for start, ends in lines.items() for end in ends]
    places = import_graph.placed(ways)
    for place, box in places.items():
        others = [other for name, other in places.items() if name[1] == place[1] and name != place]
        assert [other for other in others if abs(other.x - box.x) < (other.width + box.width) / 2] == []


def test_picture_of_imports__of_a_small_graph__leaves_out_what_follows():
    graph = {"a": {"b", "c"}, "b": {"c"}, "c": set()}
    assert import_graph.essential(graph) == {"a": {"b"}, "b": {"c"}, "c": set()}
