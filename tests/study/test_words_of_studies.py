"""What the report says in the place of a paper's words: names of what ran, and notes that can be read at a glance."""

import re

import pytest
import yaml
from report_content import content, make_tables, read_picture

from pipeline.core.config import CONFIGS, SafeLoader
from pipeline.report.records import FilledTable
from pipeline.report.site.here import in_words_of_scale, name_what_ran, run_here
from pipeline.report.site.page import write_report
from pipeline.report.words import sentences
from pipeline.study.resolve.entries import Graph, RunEntry

# What ran, and the paper's name


def graph_of(comparable=False) -> Graph:
    def run(epochs, init=None, method=None):
        config = {"optim": {"epochs": epochs}, "method": method or {}}
        return RunEntry(config=config, label="", data="fashion", init=init)

    return Graph(
        scale="demo",
        note="",
        comparable=comparable,
        runs={"pre": run(20.0, method={"mask_ratio": 0.5}), "tuned": run(4.0, "pre"), "scratch": run(4.0)},
        stand_ins={"ViT-B": "small ViT", "ViT": "small ViT", "ImageNet-1K": "Fashion-MNIST"},
    )


@pytest.mark.parametrize(
    ("label", "run", "here"),
    [
        ("ViT-B on ImageNet-1K", "scratch", "Small ViT on Fashion-MNIST"),
        ("MAE 1600", "tuned", "MAE, 20 + 4 epochs"),
        ("MP3, 100 + 150", "tuned", "MP3, 20 + 4 epochs"),
        ("2,000 epochs", "scratch", "4 epochs"),
        ("MAE 200 finetuned", "tuned", "MAE finetuned, 20 + 4 epochs"),
        ("gamma 0.75", "tuned", ""),
        ("ViT-B trained with eta 0.75", "pre", "Small ViT trained with eta 0.5"),
        ("MP3 finetuned, eta 0.75", "tuned", "MP3 finetuned, eta 0.5"),
        ("Trained with eta 0.50", "pre", ""),
        ("eta 0.75", "scratch", ""),
        ("DeViT-B", "scratch", ""),
    ],
)
def test_label__of_what_a_paper_ran__says_what_ran_here(label, run, here):
    table = FilledTable(**make_tables()[2])
    line = table.rows[0]
    line.label, line.runs = label, {"": [run]}
    table.rows = [line]
    name_what_ran(graph_of(comparable=True), table)
    assert line.here == ""
    name_what_ran(graph_of(), table)
    assert line.here == here


def test_label__with_an_eta__of_runs_that_were_trained_with_several__keeps_it():
    graph, table = graph_of(), FilledTable(**make_tables()[2])
    graph.runs["other"] = graph.runs["pre"].model_copy(
        update={"config": {"optim": {"epochs": 20.0}, "method": {"mask_ratio": 0.25}}}
    )
    line = table.rows[0]
    line.label, line.runs = "trained with eta 0.75", {"": ["pre", "other"]}
    table.rows = [line]
    name_what_ran(graph, table)
    assert line.here == ""


def test_label__of_a_study_without_a_paper__is_the_users_own():
    table = FilledTable(**make_tables()[2])
    for line in table.rows:
        line.label, line.cells["top1"].paper = "ViT 1600", None
    name_what_ran(graph_of(), table)
    assert {line.here for line in table.rows} == {""}


def test_run_of_a_paper__named_as_something_else_than_ran_here__has_the_name_of_that(toy):
    name = next(iter(toy.runs))
    toy.runs[name].label, toy.stand_ins, toy.comparable = "ViT-B", {"ViT-B": "small ViT"}, True
    assert run_here(toy, name) == ""
    toy.comparable = False
    assert run_here(toy, name) == "Small ViT"
    toy.runs[name].label = "Mine"
    assert run_here(toy, name) == ""


@pytest.mark.slow
def test_label__has_the_papers_name_next_to_it(tmp_path):
    table = make_tables()[2]
    table["rows"][0]["here"] = "Small ViT, 4 epochs"
    write_report(content([table], [], []), tmp_path / "all.html", "Title", "demo", read_picture)
    page = re.sub(r"<[^>]+>", " ", (tmp_path / "all/study-droppos.html").read_text())
    assert "Small ViT, 4 epochs paper: DropPos, sigma 0" in " ".join(page.split())


def test_words_of_scale__without_any__leave_a_text_as_it_is():
    assert in_words_of_scale(Graph(scale="demo", note="", comparable=False), "ViT-B") == "ViT-B"


# Notes


def test_sentences__abbreviation__ends_none():
    assert sentences("As Eq. 6 has it. The rest.") == ["As Eq. 6 has it.", "The rest."]
    assert sentences("") == []


@pytest.mark.parametrize(
    "file", sorted([*CONFIGS.glob("study/*.yaml"), *CONFIGS.glob("scale/*.yaml")]), ids=lambda f: f.stem
)
def test_notes__sentences__have_at_most_20_words(file):
    found = [sentence for text in texts_of(yaml.load(file.read_text(), SafeLoader)) for sentence in sentences(text)]
    assert found
    assert [sentence for sentence in found if len(sentence.split()) > 20] == []


def texts_of(part, key="", parent=""):
    """Notes, and what a study says about itself."""
    if isinstance(part, dict):
        for name, value in part.items():
            yield from texts_of(value, str(name), key)
    elif isinstance(part, str) and (key in ("note", "about") or parent == "notes"):
        yield part
