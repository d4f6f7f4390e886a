"""README shows what is published: its numbers, its verdicts, and what is missing."""

import json
import shutil

import pytest
from toy_study import A, B, add_images, name_of

from pipeline.publishing import front
from pipeline.publishing.folder import publish, read_publication
from pipeline.publishing.front import numbers, verdicts
from pipeline.publishing.provenance import amount
from pipeline.publishing.readme import BEGIN, END, block, block_of, readme, write_block
from pipeline.study.resolve.entries import StudyEntry


@pytest.fixture
def measured(measured):
    return add_images(measured)


@pytest.fixture
def made(measured):
    return publish(measured, measured.results)


def test_readme__block__is_written_between_its_marks(made):
    readme().write_text(f"# Title\n\n{BEGIN}\nold\n{END}\n\nrest\n")
    write_block()

    text = readme().read_text()
    assert text.startswith(f"# Title\n\n{BEGIN}\n### Scale toy\n") and text.endswith(f"{END}\n\nrest\n")
    assert block_of(text) == block()
    assert "Of 3 claims, 1 holds, 1 does not hold and 1 is not run yet." in text
    assert "| Toy study: A beats all | **does not hold** |" in text
    assert "| Toy study, main claim: B beats A | **holds** | Top-1 (%): 84.0 \u00b1 2.9 for Row B, 80.0" in text
    assert "| Toy study | Table 1, Row B: Top-1 (%) | 84.0 \u00b1 2.9 | 80.5 |" in text
    assert "results/published/toy/verdicts.svg" in text and "shows them already" in write_block()


def test_readme__study_with_an_overview__shows_that_table_with_its_columns_as_lines(measured):
    measured.stories["toy"] = StudyEntry(title="Toy study", main_claim="toy.c1", overview="toy.t1")
    folder = publish(measured, measured.results)

    lines = block().splitlines()
    at = lines.index("| Toys | Row A | Row B |")
    assert lines[at + 3] == "| Top-1 (%) \u2191 | 80.0 \u00b1 2.9 | 84.0 \u00b1 2.9 |"
    assert "| Toy study | Table 1, Row B" not in "\n".join(lines)  # the paper's numbers are in the folder's own text
    assert lines[at] in (folder / "README.md").read_text().splitlines()


def test_readme__numbers_of_unequal_seeds__say_how_many_there_are(measured):
    measured.stories["toy"] = StudyEntry(title="Toy study", main_claim="toy.c1", overview="toy.t1")
    publication = read_publication(publish(measured, measured.results))
    cells = {cell.run: cell for _, column, cell in publication.tables[0].cells() if column.label == "Top-1 (%)"}
    assert "(1)" not in "\n".join(numbers(publication))

    cells[B].n = 3
    assert "| Top-1 (%) \u2191 | 80.0 \u00b1 2.9 | 84.0 \u00b1 2.9 (3) |" in numbers(publication)
    several = "where there are several (tables have their number in brackets; lines may be of different seeds), else"
    assert several in front.about(publication)

    cells[A].n = 3
    assert "| Top-1 (%) \u2191 | 80.0 \u00b1 2.9 (3) | 84.0 \u00b1 2.9 (3) |" in numbers(publication)


def test_readme__several_scales__shows_the_largest_and_links_the_others(made):
    alone = block()
    shutil.copytree(made, made.parent / "zoo")
    assert block() == alone + "\nAlso published: [scale zoo](results/published/zoo/README.md).\n"


def test_readme__main_claim_that_does_not_hold__comes_first_with_what_is_written_down_about_it(measured):
    measured.stories["toy"] = StudyEntry(title="Toy study", main_claim="toy.c3")
    publish(measured, measured.results)

    lines = block().splitlines()
    at = lines.index("| claim | verdict | found |")
    assert lines[at + 2].startswith("| Toy study, main claim: A beats all | **does not hold** |")
    assert "A possible reason why Toy study's main claim does not hold here: C was never run." in lines


def test_readme__claim_that_does_not_hold__has_the_first_sentences_of_what_is_written_down_about_it(measured):
    measured.claims["toy"]["toy.c3"].remarks["toy"] = "C was never run. It is old. Nobody misses it."
    measured.stories["toy"] = StudyEntry(title="Toy study", main_claim="toy.c1")
    publish(measured, measured.results)
    assert ". Possible reason: C was never run. It is old. |" in block()
    assert "A possible reason why" not in block()

    measured.claims["toy"]["toy.c3"].remarks.clear()
    publish(measured, measured.results)
    assert "ossible reason" not in block()


def test_readme__more_claims_do_not_hold_than_are_shown_of_others__shows_them_all_and_the_main_one(measured):
    measured.stories["toy"] = StudyEntry(title="Toy study", main_claim="toy.c1")
    claims = measured.claims["toy"]
    for place in range(8):
        claims[f"toy.f{place}"] = claims["toy.c3"].model_copy(update={"statement": f"False claim {place}"})
        claims[f"toy.h{place}"] = claims["toy.c1"].model_copy(update={"statement": f"True claim {place}"})
    publish(measured, measured.results)

    text = block()
    assert all(f"False claim {place} |" in text for place in range(8))
    assert "True claim 0" not in text and "| Toy study, main claim: " in text
    assert "The table shows 10 of the 18 that have a verdict: main claims, and all that do not hold." in text
    assert "False claim" not in "\n".join(verdicts(read_publication("toy"), is_short=True))


def test_readme__main_claim_without_numbers__names_its_study(measured):
    measured.stories["toy"] = StudyEntry(title="Toy study: of toys", main_claim="toy.c2")
    publish(measured, measured.results)
    assert (
        "The main claim of Toy study cannot be judged here: the headline leaves out rows that it compares." in block()
    )


def test_readme__claim_with_many_numbers__shows_the_first_and_counts_the_others(measured, monkeypatch):
    claim = measured.claims["toy"]["toy.c1"]
    claim = claim.model_copy(update={"holds": ["toy.t1.a:top1 > 0", "toy.t1.a:diff_norm > 0"]})
    measured.claims["toy"]["toy.c1"] = claim
    first, second = "Top-1 (%): 80.0 ± 2.9 for Row A", "Diff. Norm.: 17.46 for Row A"
    publish(measured, measured.results)
    assert f"| {first}; {second} |" in block()

    monkeypatch.setattr(front, "MOST_NUMBERS", len(first))
    assert (
        f"| 1 of 2 comparisons is within noise (1 holds); {first}; 1 more like these in the published folder |"
        in block()
    )


def test_readme__claim_within_noise__shows_the_difference_beside_its_noise(made):
    claims = json.loads((made / "claims.json").read_text())
    reason = "80.0 against 70.0, a difference of 10.0 +/- 18.0 (95 %), not paired by image, one run each; standard"
    claims["toy"][0] |= {"verdict": "within noise", "reason": reason}
    (made / "claims.json").write_text(json.dumps(claims))
    assert "; a difference of 10.0 ± 18.0 (95 %), not paired by image, one run each |" in block()


def test_readme__models_with_unequal_epochs__says_so_above_the_numbers_and_in_the_picture(measured):
    measured.stories["toy"] = StudyEntry(title="Toy study", main_claim="toy.c1", overview="toy.t1")
    measured.comparable = False
    for run, epochs in ((A, 30), (B, 30)):
        measured.runs[run].config["optim"] = {"epochs": epochs}
    publish(measured, measured.results)
    assert "unequal compute" not in block()

    measured.runs["pre"] = measured.runs[A].model_copy(update={"config": {"optim": {"epochs": 50}}, "trained": False})
    measured.runs[B].init = "pre"
    folder = publish(measured, measured.results)
    said = "The columns have unequal compute: 30 epochs for Row A, 50 + 30 epochs for Row B (pretraining + finetuning)."
    assert said in block()
    assert ">Row B, 50 + 30</text>" in (folder / "verdicts.svg").read_text()


@pytest.fixture
def partial(measured):
    """The toy study without the last evaluation of its second model."""
    measured.stories["toy"] = StudyEntry(title="Toy study", main_claim="toy.c1", overview="toy.t1")
    (measured.results.folder / "evals" / name_of("consistency", B) / "result.json").unlink()
    return publish(measured, measured.results)


def test_readme__partial_results__show_the_numbers_that_most_models_have(partial):
    shown = [line.split(" |")[0].strip("| \u2191\u2193") for line in numbers(read_publication("toy"))[2:-1]]
    assert shown == ["Parameters (M)", "Top-1 (%)", "Against A"]
    assert "Diff. Norm." in (partial / "README.md").read_text()


@pytest.mark.parametrize(
    ("runs_by_seed", "words"),
    [({"0": 2, "1": 1}, "up to 2 of 3 seeds"), ({"0": 2, "1": 2}, "2 of 3 seeds"), ({"0": 3}, "1 of 3 seeds")],
)
def test_amount__of_partial_results__says_whether_all_runs_have_so_many_seeds(runs_by_seed, words):
    facts = {"num_runs": 3, "num_evaluations": 0, "num_planned_runs": 6, "num_planned_evaluations": 0, "num_missing": 3}
    assert f"training runs ({words}) and" in amount({**facts, "num_planned_seeds": 3, "seeds": runs_by_seed})


def test_readme__results_of_the_largest_scale_missing__adds_the_largest_without_gaps_under_its_own_heading(partial):
    assert "**Preliminary: 2 of 2 training runs (1 seed) and 3 of 4 evaluations.**" in block()
    whole = partial.with_name("zoo")
    shutil.copytree(partial, whole)
    facts = json.loads((whole / "provenance.json").read_text())
    (whole / "provenance.json").write_text(json.dumps({**facts, "num_missing": 0}))

    text = block()
    first, second = text.split("(results/published/toy/README.md)")
    for part in (first, second):
        assert part.count("### Scale toy") == part.count("| Toys | Row A | Row B |") == 1
        assert part.count("| Toy study, main claim: B beats A | **holds** |") == 1
    assert second.count("| Top-1 (%) \u2191 |") == 0 and "| Parameters (M) " in second  # of the second, the first line
    assert "The published folder has 3 more lines of this table." in second and "more line" not in first
    assert "toy/verdicts.svg" in first and "verdicts.svg" not in second and "Also published" not in text
    assert "(results/published/zoo/README.md)" in second
