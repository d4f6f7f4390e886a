"""The short forms of a study file: each rule on a small example, each mistake with the place that was written."""

import pytest
import yaml

from pipeline.cli import main
from pipeline.core.config import CONFIGS, names
from pipeline.core.errors import ConfigError
from pipeline.study.expand import SHORT_FORMS, expand
from pipeline.study.study_file import read_study


def written(text: str) -> dict:
    return yaml.safe_load(text)


def expanded(text: str) -> dict:
    return expand(written(text)).content


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        expand(written(text))
    return str(caught.value).splitlines()


# like


def test_like__another_entry__is_merged_deep_and_lists_are_replaced():
    found = expanded("""
        runs:
          a: {label: A, recipe: [x, y], set: {model: {pool: avg, depth: 2}}}
          b: {like: a, label: B, recipe: [z], set: {model: {pool: cls}}}
    """)

    assert found["runs"]["b"] == {"label": "B", "recipe": ["z"], "set": {"model": {"pool": "cls", "depth": 2}}}
    assert found["runs"]["a"] == {"label": "A", "recipe": ["x", "y"], "set": {"model": {"pool": "avg", "depth": 2}}}


def test_like__of_an_entry_that_is_like_a_third_and_stands_below__has_all_of_it():
    found = expanded("runs: {c: {like: b, z: 3}, b: {like: a, y: 2}, a: {x: 1}}")

    assert found["runs"] == {"c": {"x": 1, "y": 2, "z": 3}, "b": {"x": 1, "y": 2}, "a": {"x": 1}}


@pytest.mark.parametrize("section", ["recipes", "runs", "tables", "figures"])
def test_like__in_every_section__is_known(section):
    assert expanded(f"{section}: {{a: {{x: 1}}, b: {{like: a}}}}")[section]["b"] == {"x": 1}


@pytest.mark.parametrize("part", ["columns", "rows"])
def test_like__in_columns_and_rows__is_that_of_the_same_table(part):
    found = expanded(f"tables: {{t1: {{{part}: {{a: {{x: 1}}, b: {{like: a, y: 2}}}}}}}}")

    assert found["tables"]["t1"][part]["b"] == {"x": 1, "y": 2}


# over


def test_over__axis_in_place__makes_an_entry_of_each_value():
    found = expanded("""
        runs:
          first: {label: First}
          r_*: {label: "Run, *", x: 0, over: {size: {small: {label: a small one, x: 1}, large: A large one, plain: }}}
          last: {label: Last}
    """)

    assert list(found["runs"]) == ["first", "r_small", "r_large", "r_plain", "last"]
    assert found["runs"]["r_large"] == {"label": "Run, A large one", "x": 0}
    assert found["runs"]["r_plain"]["label"] == "Run, plain"


def test_over__grid__goes_through_the_last_axis_first_and_fills_stars_in_order():
    found = expanded("""
        runs:
          r_*_*:
            label: "* with *"
            init: p_*
            over: {a: {1: {set: {x: 1}}, 2: {set: {x: 2}}}, b: {u: {set: {y: 3}}, v: }}
    """)

    assert list(found["runs"]) == ["r_1_u", "r_1_v", "r_2_u", "r_2_v"]
    assert found["runs"]["r_2_u"] == {"label": "2 with u", "init": "p_2", "set": {"x": 2, "y": 3}}


def test_over__what_an_axis_changes__wins_over_the_entry():
    assert expanded("runs: {r*: {budget: 1, over: {e: {1: {budget: 0.5}}}}}")["runs"]["r1"]["budget"] == 0.5


def test_over__names_of_axes__are_those_of_the_study_which_is_left_without_them():
    found = expanded("axes: {e: {1: {budget: 0.5}, 2: }}\nruns: {r*: {label: Run *, over: [e]}, s*: {over: e}}")

    assert found == {
        "runs": {
            "r1": {"label": "Run 1", "budget": 0.5},
            "r2": {"label": "Run 2"},
            "s1": {"label": "1", "budget": 0.5},
            "s2": {"label": "2"},
        }
    }


@pytest.mark.parametrize(
    ("reference", "filled"), [("init: p_*", "p_a"), ("run: {one: p_*, two: q}", {"one": "p_a", "two": "q"})]
)
def test_over__stars_in_references__are_keys(reference, filled):
    entry = expanded(f"runs: {{r_*: {{{reference}, over: {{e: {{a: Label}}}}}}}}")["runs"]["r_a"]

    assert entry[reference.split(":")[0]] == filled and entry["label"] == "Label"


def test_over__empty_label__leaves_no_gap():
    assert expanded('runs: {r*: {label: "MP3 * on X", over: {e: {1: ""}}}}')["runs"]["r1"]["label"] == "MP3 on X"


def test_over__empty_list_in_an_entry_that_is_like_a_grid__makes_a_single_one():
    found = expanded("axes: {e: {1: }}\nruns: {r*: {over: [e], x: 1}, single: {like: r*, over: [], label: One}}")

    assert found["runs"]["single"] == {"x": 1, "label": "One"}


def test_over__in_columns__fills_metrics():
    found = expanded("""
        column_sets:
          positions: {at_*: {label: "at *", metric: at_*, over: {eta: {0: "0", 25: {label: "0.25", x: 0.25}}}}}
        tables: {t1: {columns: positions}}
    """)

    columns = found["tables"]["t1"]["columns"]
    assert columns["at_0"] == {"label": "at 0", "metric": "at_0"}
    assert columns["at_25"] == {"label": "at 0.25", "metric": "at_25", "x": 0.25}


# along

ALONG = """
    axes: {eta: {low: {label: "0.1", x: 0.1, set: {ratio: 0.1}}, high: {label: "0.9", x: 0.9, set: {ratio: 0.9}}}}
    runs:
      p_*: {label: "P, *", over: [eta]}
      f_*: {label: "F, *", along: [eta], init: p_*}
      f_*_*: {label: "F, *, *", along: [eta], over: {pos: {abs: , none: {set: {pos: none}}}}, init: p_*}
    tables: {t1: {rows: {eta-*: {along: [eta], run: {pre: p_*, fine: f_*_abs}}}}}
"""


def test_along__run__takes_keys_and_labels_and_no_change():
    runs = expanded(ALONG)["runs"]

    assert runs["p_low"] == {"label": "P, 0.1", "set": {"ratio": 0.1}}
    assert runs["f_low"] == {"label": "F, 0.1", "init": "p_low"}


def test_along__with_over__comes_first():
    runs = expanded(ALONG)["runs"]

    assert runs["f_high_none"] == {"label": "F, 0.9, none", "init": "p_high", "set": {"pos": "none"}}


def test_along__row__takes_label_and_x():
    rows = expanded(ALONG)["tables"]["t1"]["rows"]

    assert rows["eta-low"] == {"label": "0.1", "x": 0.1, "run": {"pre": "p_low", "fine": "f_low_abs"}}


# Column sets and notes

SETS = """
    column_sets: {one: {a: {label: A}}, two: {b: {label: B}, c: {like: b, label: C}}}
    notes: {first: First., second: Second.}
"""


@pytest.mark.parametrize(
    ("columns", "found"),
    [
        ("one", ["a"]),
        ("[two, one]", ["b", "c", "a"]),
        ("[one, {d: {like: a, label: D}}, two]", ["a", "d", "b", "c"]),
        ("{e: {label: E}}", ["e"]),
    ],
)
def test_columns__names_of_sets_and_further_ones__are_in_the_order_written(columns, found):
    table = expanded(f"{SETS}\n    tables: {{t1: {{columns: {columns}}}}}")["tables"]["t1"]

    assert list(table["columns"]) == found
    assert [column["label"] for column in table["columns"].values()] == [key.upper() for key in found]


@pytest.mark.parametrize(
    ("own", "note"), [("notes: [first], note: Own.", "First. Own."), ("notes: [second, first]", "Second. First.")]
)
def test_notes__named__stand_before_the_tables_own(own, note):
    assert expanded(f"{SETS}\n    figures: {{f1: {{{own}}}}}")["figures"] == {"f1": {"note": note}}


# As a whole


def test_expand__twice__changes_nothing_more():
    once = expanded(ALONG + SETS)

    assert expand(once).content == once and expand(once).origins == {}


def test_expand__its_input__stays_as_it_was():
    raw = written(ALONG)
    expand(raw)

    assert raw == written(ALONG)


@pytest.mark.slow
@pytest.mark.parametrize("study", names(CONFIGS / "study"))
def test_expand__every_study_of_the_project__has_no_short_form_left(study):
    content = read_study(CONFIGS / "study" / f"{study}.yaml").expanded.content

    assert expand(content).content == content
    assert not content.keys() & set(SHORT_FORMS)
    assert "*" not in "".join([*content["runs"], *content.get("tables", {}), *content.get("figures", {})])


@pytest.mark.parametrize(
    "shape",
    ["runs: 3", "runs: [a]", "runs: {a: 3}", "tables: {t1: 3}", "tables: {t1: {rows: [a]}}", "tables: {t1: {rows: }}"],
)
def test_expand__shapes_that_are_wrong__are_left_to_validation(shape):
    assert expanded(shape) == written(shape)


# Mistakes


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("runs: {a: {}, b: {like: aa}}", "runs.b.like: no sibling entry 'aa'; did you mean 'a'? valid: a, b"),
        (
            "runs: {a: {like: b}, b: {like: a}}",
            "runs.a.like: entries refer to each other with `like`: a -> b -> a; break the cycle",
        ),
        (
            "runs: {d: {like: c}, c: {like: b}, a: {like: c}, b: {like: a}}",
            "runs.a.like: entries refer to each other with `like`: a -> c -> b -> a; break the cycle",
        ),
        ("runs: {a: {like: [b]}, b: {}}", "runs.a.like: found ['b'], expected the key of one sibling entry"),
        ("runs: {r*: {over: {e: [1, 2]}}}", "runs.r*.over.e: found [1, 2]; expected a map of the axis's values"),
        ("runs: {r*: {over: {}}}", "runs.r*.over: found {}, expected the name of an axis"),
        ("runs: {r*: {over: [3]}}", "runs.r*.over.0: found 3, expected the name of an axis"),
        (
            "runs: {r_*: {label: R}}",
            "runs.r_*: found *, which stands for the value of an axis; name the axis in `over` or `along`",
        ),
        (
            "tables: {t1: {rows: {r: {run: r_*}}}}",
            "tables.t1.rows.r.run: found *, which stands for the value of an axis; name the axis in `over` or `along`",
        ),
        (
            "axis: {e: {1: }}\nruns: {r*: {over: [e]}}",
            "axis: unknown key; did you mean 'axes'? nearest: axes, claims,",
        ),
        ("axes: [eta]", "axes: found ['eta']; expected a map"),
        ("axes: {eta: 3}", "axes.eta: found 3; expected a map of the axis's values"),
        ("column_sets: shuffled", "column_sets: found 'shuffled'; expected a map"),
        ("notes: [mean]", "notes: found ['mean']; expected a map"),
        ("runs: {r: {over: {e: {1: }}}}", "runs.r: found 0 * in the key for 1 axes; write one for each"),
        (
            "runs: {r*: {label: R, over: {e: {1: }}}}",
            "runs.r*.label: found 0 * for 1 axes; write one for each, or no label",
        ),
        (
            "runs: {r*: {init: p_*_*, over: {e: {1: }}}}",
            "runs.r*.init: found 2 * for 1 axes; write at most one for each",
        ),
        (
            "axes: {eta: {1: }}\nruns: {r*: {over: [ets]}}",
            "runs.r*.over.0: no axis 'ets'; did you mean 'eta'? valid: eta",
        ),
        (
            "axes: {eta: {1: }}\nruns: {r*: {along: [ets]}}",
            "runs.r*.along.0: no axis 'ets'; did you mean 'eta'? valid: eta",
        ),
        ("runs: {r*: {over: {e: 3}}}", "runs.r*.over.e: found 3; expected a map of the axis's values"),
        ("runs: {r*: {over: {e: {0.10: }}}}", "runs.r*.over.e.0.1: found the key 0.1, expected text; put it in quotes"),
        ("runs: {r*: {over: {e: {1: }}}, r1: {}}", "runs.r1: defines 'r1', as does runs.r*; rename one of them"),
        (
            "axes: {e: {1: }}\ntables: {t1: {rows: {r*: {over: [e]}}}}",
            "tables.t1.rows.r*.over: columns and rows use the study's axes",
        ),
        (
            "column_sets: {one: {}}\ntables: {t1: {columns: [onne]}}",
            "tables.t1.columns.0: no column set 'onne'; did you mean",
        ),
        ("notes: {one: x}\ntables: {t1: {notes: [onne]}}", "tables.t1.notes.0: no note 'onne'; did you mean 'one'?"),
    ],
)
def test_expand__mistake__names_its_place_and_what_is_near(text, line):
    assert problems(text)[0].startswith(line)


def test_like__entries_in_a_circle_and_others_that_lead_to_it__are_one_line():
    assert len(problems("runs: {d: {like: c}, c: {like: b}, a: {like: c}, b: {like: a}}")) == 1


def test_expand__several_mistakes__come_all_at_once():
    assert len(problems("runs: {a: {like: x}, b: {over: {e: {1: }}}}\ntables: {t1: {columns: s}}")) == 3


STUDY = """\
title: Mine
axes:
  eta:
    low: {label: "0.1", set: {method: {mask_ratio: 0.1}}}
    high: {label: "0.9", set: {method: {mask_ratoi: 0.9}}}
runs:
  p_*: {label: "P, *", over: [eta], method: mp3, model: deit_s, data: imagenet1k, set: {model: {pos_embed: none}}}
  f_*: {label: "F, *", along: [eta], method: supervised, model: deit_s, data: imagenet1k, init: p_*}
tables:
  t1:
    label: Table 1
    title: Mine
    columns: {top1: {label: Top-1, eval: classify, metric: top1, direction: up}}
    rows:
      eta-*: {along: [eta], run: f_*}
scales: [demo]
"""


@pytest.fixture
def mine(project):
    for path in (project.configs / "study").glob("*.yaml"):
        path.unlink()
    (project.configs / "study/mine.yaml").write_text(STUDY)
    return project


@pytest.mark.slow
def test_check__mistake_in_an_axis__is_one_line_that_names_where_it_was_written(mine):
    lines = mine.problems()

    assert len(lines) == 1
    assert lines[0].startswith(
        "configs/study/mine.yaml: axes.eta.high.set.method.mask_ratoi: unknown key; did you mean"
    )
    assert lines[0].endswith("(line 5)")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "begin", "line"),
    [
        ("init: p_*", "init: q_*", "runs.f_*.init: no run 'q_low'; did you mean 'p_low'?", 8),
        ("init: p_*", "innit: p_*", "runs.f_*.innit: unknown key; did you mean 'init'?", 8),
        ("run: f_*", "run: g_*", "tables.t1.rows.eta-*.run: no run 'g_low'; did you mean '", 15),
        ("run: f_*", "rnu: f_*", "tables.t1.rows.eta-*.rnu: unknown key; did you mean 'run'?", 15),
        ("over: [eta]", "over: [etta]", "runs.p_*.over.0: no axis 'etta'; did you mean 'eta'?", 7),
        (
            "model: deit_s, data: imagenet1k, set",
            "model: dait_s, data: imagenet1k, set",
            "runs.p_*.model: no model 'dait_s'",
            7,
        ),
    ],
)
def test_check__mistake_in_a_grid__names_the_entry_and_the_line_that_were_written(mine, old, new, begin, line):
    mine.edit("study/mine.yaml", "mask_ratoi", "mask_ratio")
    mine.edit("study/mine.yaml", old, new)

    found = mine.problems()[0]

    assert found.startswith(f"configs/study/mine.yaml: {begin}")
    assert found.endswith(f"(line {line})")


@pytest.mark.slow
def test_check__expanded__prints_what_the_file_means(mine, capsys):
    assert main(["check", "--expanded", "mine"]) == 0

    text = capsys.readouterr().out
    assert yaml.safe_load(text) == expand(written(STUDY)).content
    assert text.startswith("# configs/study/mine.yaml, expanded\n")


def test_check__expanded_of_an_unknown_study__names_the_nearest(mine, capsys):
    assert main(["check", "--expanded", "mini"]) == 1

    assert "did you mean 'mine'?" in capsys.readouterr().err
