"""README and its neighbours say what is true: commands that exist, files that are there, published numbers."""

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml
from benchmark_script import load_benchmark

from pipeline.cli import build_parser
from pipeline.core.config import Layers, parse
from pipeline.publishing.folder import changed_since, check, published_scales
from pipeline.publishing.readme import block, block_of
from pipeline.site import Site
from pipeline.study.resolve.graph import load_graph
from pipeline.study.targets import targets_of

ROOT = Path(__file__).resolve().parents[2]
PAGES = {name: (ROOT / name).read_text() for name in ("README.md", "GUIDE.md", "CONTRIBUTING.md", "CHANGELOG.md")}


def commands(page: str, program: str) -> list[str]:
    """Commands of a page that begin with these words, in code blocks and between backticks."""
    text = PAGES[page]
    blocks = [line for block in re.findall(r"```bash\n(.*?)```", text, re.S) for line in block.splitlines()]
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.S))
    found = [line.split("#")[0].strip() for line in [*blocks, *inline]]
    return sorted({line for line in found if line.startswith(program + " ")})


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_pages__every_target_of_snakemake__exists(page):
    known = {*targets_of(load_graph("demo")), "TARGET"}
    for command in commands(page, "snakemake"):
        words = shlex.split(command)[1:]
        options = {"--profile": 1, "--config": 1, "-n": 0}
        targets, skip = [], 0
        for word in words:
            if skip:
                skip -= 1
            elif word in options:
                skip = options[word]
            elif "=" not in word:
                targets.append(word)
        recipes = {target for target in targets if target.startswith("mine")}  # of a study that the page adds
        assert set(targets) - recipes <= known, command


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_pages__every_verb_of_the_command_line__is_understood(page):
    for command in commands(page, "python -m pipeline"):
        build_parser().parse_args(shlex.split(command.split(" > ")[0])[3:])


@pytest.mark.parametrize("page", PAGES)
def test_pages__every_file_that_is_named__is_there(page):
    named = re.findall(r"`((?:configs|pipeline|workflow|tests|benchmarks)/[\w./*-]+)`", PAGES[page])
    missing = [name for name in named if "<" not in name and "mine" not in name and not [*ROOT.glob(name)]]
    assert missing == []


def test_contributing__way_of_a_training_batch__has_at_most_15_files():
    section = PAGES["CONTRIBUTING.md"].split("## How a batch is made")[1].split("\n## ")[0]
    named = re.findall(r"`(pipeline/[\w/]+\.py)`", section.split("\n\n")[2])
    assert 10 < len(named) == len({*named}) <= 15


def machines() -> list[list[str]]:
    """The lines of each site file in GUIDE's table of machines."""
    section = PAGES["GUIDE.md"].split("## Which machine do you have")[1].split("\n## ")[0]
    cells = [line.split("|")[2] for line in section.splitlines() if line.startswith("| ")][1:]
    return [re.findall(r"`(.*?)`", cell) for cell in cells]


def test_guide__site_file_of_each_kind_of_machine__is_sound():
    sites = [parse(Site, Layers(("GUIDE", yaml.safe_load("\n".join(lines))))) for lines in machines()]
    assert [len(lines) for lines in machines()] == [5] * 5
    assert [bool(site.slurm) for site in sites] == [False, False, False, True, True] and sites[2].gpus == [0, 1, 2, 3]


def test_readme__is_short_enough_to_be_read():
    assert len(PAGES["README.md"].splitlines()) <= 180


def test_readme__published_results__are_drawn_from_their_files():
    """Where this fails: `python -m pipeline published --readme`."""
    assert block_of(PAGES["README.md"]) == block()


@pytest.mark.slow
@pytest.mark.parametrize("scale", published_scales() or [None])
def test_published_results__are_what_their_own_metrics_give(scale):
    if scale is None:
        pytest.skip("no results are published in results/published")
    assert check(scale) == []


@pytest.mark.slow
@pytest.mark.parametrize("scale", published_scales() or [None])
def test_published_results__are_of_todays_configs(scale):
    """Where this fails: run the headline of that scale again, such as `make demo`, and publish it."""
    if scale is None:
        pytest.skip("no results are published in results/published")
    assert changed_since(scale, load_graph(scale)) == ""


def test_guide__rates_of_loops_on_an_h200__are_the_recorded_ones():
    loop = load_benchmark("loop")
    loops = json.loads((ROOT / "configs/speed/h200_loop.json").read_text())["loops"]
    assert "\n".join(loop.summary(loops)) in PAGES["GUIDE.md"]
    assert len(loops) == len(loop.CASES) * 3  # every method at every size, in one run
