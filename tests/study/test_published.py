"""Published results: all is drawn from the metrics file, and what was changed by hand is named."""

import json
import shutil

import numpy as np
import pytest
from result_files import ORIGIN, SITE, write_evaluation, write_training
from toy_study import A, B, add_images, name_of

from pipeline.cli import main
from pipeline.commands import published as command
from pipeline.core.config import CONFIGS
from pipeline.core.errors import DataError
from pipeline.core.files import draft_of
from pipeline.freshness.remake import Freshness
from pipeline.publishing import folder as published
from pipeline.publishing import from_metrics
from pipeline.publishing.compare import compare
from pipeline.publishing.folder import changed_since, check, publish, published_scales, redraw
from pipeline.publishing.metrics import gather, gather_images
from pipeline.publishing.provenance import num_from_changes, provenance_sentences, versions_outside
from pipeline.publishing.readme import BEGIN, END, block, readme
from pipeline.publishing.selection import published_part
from pipeline.report import drawing
from pipeline.report.collect import collect_tables
from pipeline.results import published_folder
from pipeline.study import targets
from pipeline.study.resolve.entries import CellEntry, StudyEntry
from pipeline.study.spec import Drawing


@pytest.fixture
def measured(measured):
    return add_images(measured)


@pytest.fixture
def made(measured):
    return publish(measured, measured.results)


def test_publish__tables_in_words__are_below_the_note_of_the_scale_and_the_title_of_their_study(made):
    text = (made / "tables.md").read_text()
    assert text.startswith("The scale's note.\n\n## Toy study\n\n### Table 1: ")
    assert text.count("The scale's note.") == 1


def test_publish__tables_and_verdicts__are_those_of_the_results(measured, made):
    tables, studies = collect_tables(measured, "headline")

    claims = json.loads((made / "claims.json").read_text())["toy"]
    assert [claim["verdict"] for claim in claims] == [claim.verdict for claim in studies[0].claims]
    assert claims[0]["verdict"] == "true" and "paired over 200 images" in claims[0]["reason"]
    cells = json.loads((made / "tables.json").read_text())["toy.t1"]["cells"]
    ours = {f"{row.id}:{column.id}": cell.ours for row, column, cell in tables[0].cells() if row.selected}
    assert {key: cell["ours"] for key, cell in cells.items()} == ours


def test_check__in_a_clone_without_results__finds_nothing(measured, made):
    for each in ("runs", "evals"):
        shutil.rmtree(measured.results.folder / each)
    measured.results.graph.unlink(missing_ok=True)

    assert published_scales() == ["toy"] and check("toy") == []


def test_check__folder_larger_than_allowed__says_its_size(made, monkeypatch):
    monkeypatch.setattr(published, "MOST_BYTES", 1_000)
    size = sum(path.stat().st_size for path in made.iterdir())
    assert check("toy") == [f"{size:,} bytes, expected 1,000 at most"]


@pytest.mark.parametrize(
    ("file", "old", "new", "line"),
    [
        (
            "tables.json",
            '"ours": 84.0',
            '"ours": 85.0',
            "toy.t1.b:top1: ours is 84.0 from the metrics, published is 85.0",
        ),
        ("metrics.json", '"diff_norm": 8.0', '"diff_norm": 7.0', "toy.t1.b:diff_norm: ours is 7.0"),
        ("claims.json", '"verdict": "true"', '"verdict": "false"', "claim toy.c1: verdict is 'true' from the metrics"),
        (
            "claims.json",
            '     "verdict": "true"',  # of its one comparison
            '     "verdict": "false"',
            "claim toy.c1: toy.t1.b:top1 > toy.t1.a:top1 true of ",
        ),
        ("README.md", "Toy study", "My study", "README.md is not what the metrics give"),
        ("verdicts.svg", "B beats A", "A beats B", "verdicts.svg is not what the metrics give"),
        ("provenance.json", "c0ffee", "c0c0a", "provenance.json is not what the metrics give"),
    ],
)
def test_check__file_that_was_changed__names_what_differs(made, file, old, new, line):
    text = (made / file).read_text()
    assert old in text
    (made / file).write_text(text.replace(old, new, 1))

    assert check("toy")[0].startswith(line)


def test_compare__results_of_another_machine__lists_numbers_further_apart_than_their_errors(measured, made):
    head = "scale toy, {} of 8 published numbers are here: {} equal, {} within 2 standard errors, {} further apart"
    assert compare(measured) == [head.format(8, 8, 0, 0)]

    norms = {A: {"diff_norm": 17.4}, B: {}}  # without an error; and none
    for run, top1 in ((A, 87.9), (B, 92.5)):  # 80 and 84 are published, both +- 2.9
        write_evaluation(measured, name_of("classify", run), {"top1": top1}, errors={"top1": 2.9})
        write_evaluation(measured, name_of("consistency", run), norms[run])
    lines = compare(measured)
    assert "- toy.t1.b:top1: 92.5 \u00b1 2.9 here, 84.0 \u00b1 2.9 published" in lines
    assert "- toy.t1.a:diff_norm: 17.40 here, 17.46 published" in lines
    assert not any("toy.t1.a:top1" in line for line in lines)
    assert lines[0] == head.format(7, 3, 2, 2)


@pytest.mark.parametrize("table", ["toy.t1", "toy.t2"])
def test_verdict__of_a_claim_on_a_column_of_other_scales__is_that_of_the_report(measured, table):
    """Neither row C nor table t2 is published."""
    columns = measured.tables["toy.t1"].columns
    columns["ap"] = columns["top1"].model_copy(update={"label": "AP", "scales": ["paper"]})
    for row in measured.tables["toy.t1"].rows.values():
        row.cells["ap"] = CellEntry(why="computed only at scale paper")
    rows = {key.replace("t1", "t2"): row for key, row in measured.tables["toy.t1"].rows.items()}
    rows = {key: row.model_copy(update={"headline": False}) for key, row in rows.items()}
    measured.tables["toy.t2"] = measured.tables["toy.t1"].model_copy(update={"rows": rows})
    claim = measured.claims["toy"]["toy.c2"].model_copy(update={"holds": [f"{table}.c:ap > 1"]})
    measured.claims["toy"]["toy.c2"] = claim
    _, (here,) = collect_tables(measured, "headline")
    _, (there,) = collect_tables(published_part(measured), "headline")

    assert here.claims[1].verdict == there.claims[1].verdict == "not testable"
    assert here.claims[1].reason.startswith("computed only at scale paper: ")
    assert publish(measured, measured.results) and check("toy") == []


def test_text__of_claims_that_fail__says_what_was_expected_found_and_why(made):
    text = (made / "README.md").read_text()

    assert "- Expected: A beats all." in text and "- May come from: C was never run." in text
    assert "**toy.c2: not run yet**" in text and "- Needed: `snakemake toy_table1 --config scale=toy`." in text


def test_command__check__names_the_first_differences_and_fails(made, capsys):
    assert main(["published", "--check"]) == 0
    assert "results/published/toy: tables and verdicts are those of the metrics" in capsys.readouterr().out

    text = (made / "tables.json").read_text()
    (made / "tables.json").write_text(text.replace('"ours": 84.0', '"ours": 85.0'))
    assert main(["published", "--check", "toy"]) == 1
    assert "1 difference from what the metrics give:\n- toy.t1.b:top1: ours is 84.0" in capsys.readouterr().out


def test_check__file_that_is_missing__says_what_to_do(made, capsys):
    (made / "metrics.json").write_text("{}")
    assert main(["published", "--check", "toy"]) == 1
    assert "restore it with git, or publish again" in capsys.readouterr().err


def test_configs__changed_since_then__are_counted_and_more_seeds_are_no_change(measured, made):
    assert changed_since("toy", measured) == ""
    cells = measured.tables["toy.t1"].rows["toy.t1.a"].cells
    cells["top1"].sources.append("evals/of-another-seed/result.json")
    assert changed_since("toy", measured) == ""

    cells["top1"].metric = "top5"
    claims = measured.claims["toy"]
    claims["toy.c1"] = claims["toy.c1"].model_copy(update={"statement": "B does not lose to A"})
    claims["toy.c2"] = claims["toy.c2"].model_copy(update={"holds": ["toy.t1.c:top1 >= toy.t1.a:top1"]})
    assert changed_since("toy", measured) == "1 cell and 2 claims"


@pytest.mark.parametrize(
    ("kind", "has_columns", "is_published"),
    [("lines", True, True), ("curves", True, True), ("curves", False, False), ("pictures", True, False)],
)
def test_published_part__figure__is_there_if_its_columns_have_numbers(toy, kind, has_columns, is_published):
    table = toy.tables["toy.t1"]
    table.figure = Drawing(kind=kind, curve="val_top1" if kind == "curves" else "")
    table.columns = table.columns if has_columns else {}
    assert ("toy.t1" in published_part(toy).tables) is is_published


def test_published_part__row_outside_the_headline__is_there_if_a_difference_is_to_it(toy):
    rows = toy.tables["toy.t1"].rows
    rows["toy.t1.a"] = rows["toy.t1.a"].model_copy(update={"headline": False})
    assert [*published_part(toy).tables["toy.t1"].rows] == ["toy.t1.a", "toy.t1.b"]


def test_gather_images__difference_between_columns__has_the_values_of_both(measured):
    columns = measured.tables["toy.t1"].columns
    columns["delta"] = columns["delta"].model_copy(update={"against": None, "minus": "diff_norm"})
    norms, about = np.arange(200.0), {"count": 200, "images": "the same"}
    write_evaluation(measured, name_of("consistency", B), {"diff_norm": norms.mean()}, {"diff_norm": norms}, **about)
    measured.claims.clear()
    arrays = gather_images(measured, measured.results, gather(measured, measured.results))
    names = [f"{name_of('classify', run)}/top1" for run in (A, B)]
    assert {*arrays} == {*names, f"{name_of('consistency', B)}/diff_norm"}


def test_publish__without_any_run__is_refused(toy):
    with pytest.raises(DataError, match="no finished run of the headline"):
        publish(toy, toy.results)


def test_publish__report__is_left_out_where_the_folder_would_be_too_large(measured, tmp_path, monkeypatch):
    report = tmp_path / "report.html"
    report.write_text("<html>" + "x" * 1000)
    assert (publish(measured, measured.results, report) / "report.html").exists() and check("toy") == []

    monkeypatch.setattr(published, "MOST_BYTES", 20_000)
    report.write_text("x" * 20_000)
    folder = publish(measured, measured.results, report)
    assert not (folder / "report.html").exists() and "would not fit here" in (folder / "README.md").read_text()

    monkeypatch.setattr(published, "MOST_BYTES", 1_000)
    with pytest.raises(DataError, match="expected 1,000 at most"):
        publish(measured, measured.results)
    assert folder.exists()


def test_text__cells_without_numbers__tells_not_run_from_does_not_apply(measured):
    measured.stories["toy"] = StudyEntry(title="Toy study", main_claim="toy.c1", overview="toy.t1")
    (measured.results.folder / "evals" / name_of("consistency", B) / "result.json").unlink()
    lines = folder_lines(publish(measured, measured.results))
    assert "| Diff. Norm. \u2191 | 17.46 | \u2014 |" in lines

    cells = measured.tables["toy.t1"].rows["toy.t1.b"].cells
    cells["diff_norm"] = cells["diff_norm"].model_copy(update={"sources": [], "why": "it has no norm"})
    lines = folder_lines(publish(measured, measured.results))
    assert "| Diff. Norm. \u2191 | 17.46 | n/a |" in lines


def folder_lines(folder):
    return (folder / "README.md").read_text().splitlines()


def test_claim_of_a_paper__names_what_ran_instead(measured):
    claims = measured.claims["toy"]
    claims["toy.c1"] = claims["toy.c1"].model_copy(update={"statement": "B with ViT-B and ViT-L beats A"})
    measured.stand_ins = {"ViT-B": "small ViT", "ViT-L": "small ViT"}
    publish(measured, measured.results)
    assert "(here: small ViT for ViT-B and ViT-L)" not in block()

    measured.comparable = False
    folder = publish(measured, measured.results)
    said = "B with ViT-B and ViT-L beats A (here: small ViT for ViT-B and ViT-L)"
    assert said in block() and f"- Expected: {said}." in folder_lines(folder)


def test_text__of_claims_that_hold__is_there_too(made):
    text = (made / "README.md").read_text()
    order = [
        "## Claims that do not hold",
        "**toy.c3: ",
        "## Claims that hold",
        "**toy.c1: holds**",
        "## Claims without",
    ]
    assert sorted(order, key=text.index) == order


def test_provenance__results_of_a_changed_clone__are_counted():
    facts = {
        "commits": {"c0ffee" * 4: 82, f"{'c0ffee' * 4}+changes": 22},
        "versions": {},
        "devices": {},
        "machines": {},
    }
    facts |= {"num_runs": 1, "num_evaluations": 3, "num_missing": 0, "seeds": {"0": 1}, "num_planned_runs": 1}
    text = " ".join(provenance_sentences({**facts, "hours_of_training": 1, "hours_of_evaluating": 1}))
    assert "Commits: c0ffeec0ffee (82 results), c0ffeec0ffee+changes (22 results)." in text
    assert num_from_changes(facts["commits"]) == 22


def test_versions__that_the_lock_file_does_not_have__are_named():
    lock = (
        "numpy==2.4.6 ; python_full_version < '3.12'\nnumpy==2.5.4 ; python_full_version >= '3.12'\ntorch==2.14.1 ; x\n"
    )
    versions = {"python": {"3.11.7": 3}, "torch": {"2.14.1+cpu": 2, "2.11.0": 1}, "numpy": {"2.4.6": 3}}
    assert versions_outside({"versions": versions}, lock) == "torch 2.11.0 (2.14.1 there)"
    assert versions_outside({"versions": versions}, "") == ""


@pytest.mark.parametrize("stop", [ValueError("any"), KeyboardInterrupt()])
def test_publish__that_ends_early__leaves_no_draft(measured, made, monkeypatch, stop):
    def end(*given):
        raise stop

    monkeypatch.setattr(published, "provenance_of", end)
    with pytest.raises(type(stop)):
        publish(measured, measured.results)
    assert [path.name for path in made.parent.iterdir() if path.is_dir()] == ["toy"]


def test_publish__draft_of_a_killed_process__is_no_scale_and_is_removed(measured, made):
    draft = draft_of(made)
    shutil.copytree(made, draft)
    assert published_scales() == ["toy"]

    publish(measured, measured.results)
    assert not draft.exists()


def test_command__without_paths_of_this_machine__publishes_report_metrics_and_text(measured, monkeypatch):
    root = str(CONFIGS.parent)
    start = {"source": f"{root}/results/toy/runs/a/encoder.safetensors", "others": ["/home/me/vit.safetensors"]}
    typed = {"provenance": {**ORIGIN, "command": f"patchwork-argv {root}/x", "init": start}}
    for run in (A, B):
        write_training(measured, run, {"params_m": 22.0}, **typed)
        write_evaluation(measured, name_of("classify", run), {"top1": 80.0}, **typed)
        write_evaluation(measured, name_of("consistency", run), {"diff_norm": 9.0}, **typed)
    monkeypatch.setattr(command, "open_scale", lambda scale: Freshness(measured, SITE))
    # Both look at data sets, of which there are none.
    monkeypatch.setattr(Freshness, "why_number", lambda *given: "")
    monkeypatch.setattr(drawing, "_subtitle", lambda *given: "")
    readme().write_text(f"{BEGIN}\n{END}\n")

    assert main(["published", "toy"]) == 0
    for name in ("report.html", "metrics.json", "README.md"):
        text = (published_folder("toy") / name).read_text()
        assert "patchwork-argv" not in text and root not in text and str(measured.results.folder) not in text
        assert "/home/me" not in text and (name == "README.md" or "vit.safetensors" in text)
    assert '"command"' not in text and "<dt>command</dt>" not in (published_folder("toy") / "report.html").read_text()


def test_check__after_an_edit_of_the_scales_of_a_study__finds_nothing(measured, monkeypatch):
    measured.tables["toy.t1"].rows["toy.t1.a"].outside_headline = ["diff_norm"]
    folder = publish(measured, measured.results)
    texts = [(folder / name).read_text() for name in ("tables.md", "tables.json")]
    assert all(from_metrics.OUTSIDE in text and "runs it" not in text for text in texts)

    monkeypatch.setattr(targets, "default_scale", lambda names: "toy")
    assert check("toy") == []


def test_redraw__text_that_was_worded_otherwise__is_written_again(made, capsys):
    before = {path.name: path.read_bytes() for path in made.iterdir()}
    for name in ("tables.md", "README.md", "verdicts.svg"):
        (made / name).write_text("worded otherwise")
    assert len(check("toy")) == 3
    readme().write_text(f"{BEGIN}\n{END}\n")

    assert main(["published", "--redraw", "toy"]) == 0
    assert "README.md" in capsys.readouterr().out and check("toy") == []
    assert {path.name: path.read_bytes() for path in made.iterdir()} == before
    assert redraw("toy") == []


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [("tables.json", '"ours": 84.0', '"ours": 85.0'), ("claims.json", '"verdict": "true"', '"verdict": "false"')],
)
def test_redraw__of_other_numbers_or_verdicts__is_refused_and_writes_nothing(made, file, old, new):
    (made / file).write_text((made / file).read_text().replace(old, new, 1))
    (made / "tables.md").write_text("worded otherwise")

    with pytest.raises(DataError, match="other numbers or verdicts than its metrics give"):
        redraw("toy")
    assert (made / "tables.md").read_text() == "worded otherwise"


@pytest.mark.parametrize("damage", ["empty", "cut short", "overwritten"])
def test_check__damaged_values_per_image__says_what_to_do(made, damage):
    whole = (made / "per_image.npz").read_bytes()
    start = whole.index(b".npy") + len(b".npy") + 20  # the first member, behind its header
    content = {
        "empty": b"",
        "cut short": whole[:-40],
        "overwritten": whole[:start] + b"\xff" * 30 + whole[start + 30 :],
    }
    (made / "per_image.npz").write_bytes(content[damage])

    with pytest.raises(DataError, match=r"per_image.npz cannot be read .* restore it with git, or publish again"):
        check("toy")
