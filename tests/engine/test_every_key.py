"""Every key has an effect: each field of every config class, changed alone, changes what a run does.

A recipe's key that is read, put into the run's name and then ignored makes no error; here it does. The fields are
found by walking the classes, the values are in field_effects.py.
"""

from fnmatch import fnmatch

import bases
import eval_field_effects
import field_effects
import method_field_effects
import pytest
from eval_field_effects import eval_config
from every_key import (
    EARLY,
    below,
    differences,
    eval_fields,
    method_fields,
    model_fields,
    nested,
    run_fields,
    short_run,
)
from readable_failures import refuse

from pipeline.evals.base import EVALS
from pipeline.methods.base import METHODS

TABLE = {**field_effects.RUN, **field_effects.OTHER_DATA, **field_effects.MODELS, **method_field_effects.METHODS}
FIELD_EFFECTS = {
    f"{key} {number}": (key, effect) for key, entries in TABLE.items() for number, effect in enumerate(entries)
}
FIELDS = {*run_fields(), *model_fields(), *method_fields(), *eval_fields()}
METHOD_NAMES = {f"method.{name}.name" for name in METHODS.names()}
LABELS = {key for key in FIELDS if any(fnmatch(key, pattern) for pattern in field_effects.LABELS)}


def test_table__every_field_of_every_class__says_its_effect_or_why_it_has_none():
    listed = {*TABLE, *eval_field_effects.EVALS}
    refuse([how_to_try(key) for key in sorted(FIELDS - listed - LABELS - field_effects.NOT_SCIENCE.keys())])
    assert sorted((listed | field_effects.NOT_SCIENCE.keys()) - FIELDS) == [], "there are no such fields"
    assert [pattern for pattern in field_effects.LABELS if not any(fnmatch(key, pattern) for key in FIELDS)] == []
    assert sorted(listed & (LABELS | field_effects.NOT_SCIENCE.keys())) == [], "these are in two lists"


def how_to_try(key):
    """What people read who added a field."""
    family, name, field = [*key.split(".", 2), ""][:3]
    example = {
        "method": f'"{field}": [FieldEffect(VALUE, "updates")] below "{name}" in tests/engine/method_field_effects.py',
        "eval": f'"{key}": [FieldEffect(VALUE, "validation")] in tests/engine/eval_field_effects.py',
    }.get(family, f'"{key}": [FieldEffect(VALUE, "updates")] in tests/engine/field_effects.py')
    return (
        f"{key}: no test changes this field, so nobody would notice that it does nothing; add a value that must be "
        f"seen, and where a run shows it first (start, batches, draws, updates or validation): {example}"
    )


def test_field__that_no_test_changes__is_told_where_a_value_is_missing():
    for key, place in (
        ("method.mine.strength", "method_field_effects"),
        ("eval.mine.k", "eval_field_effects"),
        ("optim.new", "/field_effects"),
    ):
        assert place in how_to_try(key) and f'{key.rpartition(".")[2]}": [FieldEffect(VALUE' in how_to_try(key)


@pytest.mark.slow
@pytest.mark.parametrize("case", FIELD_EFFECTS)
def test_key__changed_by_itself__changes_what_it_is_for(record, case):
    key, effect = FIELD_EFFECTS[case]
    base, changes = [effect.base], [effect.base, nested(key, effect.other), effect.with_it]
    if effect.at != "validation" and differences(*map(record.first_update, (base, changes)), EARLY) == effect.early:
        return  # other updates and another validation follow from these
    assert differences(record(base), record(changes)) == effect.expected


# Names


def fingerprint(key, value, *around):
    return short_run(*around, nested(key, value)).fingerprint


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case, (_, effect) in FIELD_EFFECTS.items() if effect.at != "refused"])
def test_fingerprint__key_with_an_effect_changed__is_another(case):
    key, effect = FIELD_EFFECTS[case]
    assert fingerprint(key, effect.other, effect.base, effect.with_it) != short_run(effect.base).fingerprint


@pytest.mark.parametrize("key", ["data.source", "data.num_classes", "data.num_train", "data.num_val"])
def test_fingerprint__key_of_the_data_changed__is_another(key):
    (effect,) = TABLE[key]
    assert fingerprint(key, effect.other) != short_run().fingerprint


# Another method is another class; that two of them have two names is tested with configs.
@pytest.mark.parametrize("key", sorted(key for key in LABELS if not fnmatch(key, "eval.*") and key not in METHOD_NAMES))
def test_fingerprint__label_changed__is_another(key):
    *_, which, name = key.split(".")
    base = bases.BASES.get(which, {})
    other = {"name": "other", "code_epoch": 2}.get(name, "released")
    assert fingerprint(key, other, base) != short_run(base).fingerprint


@pytest.mark.parametrize("key", field_effects.NOT_SCIENCE)
def test_fingerprint__key_that_is_no_science_changed__is_the_same(key):
    assert fingerprint(key, 7) == short_run().fingerprint


# The name of a result has these, its subjects and its data sets (tests/study/test_evaluations.py).
@pytest.mark.slow
@pytest.mark.parametrize("key", [*eval_field_effects.EVALS, *[f"eval.{name}.code_epoch" for name in EVALS.names()]])
def test_science_of_an_evaluation__key_changed__is_another(key):
    _, name, field = key.split(".", 2)
    for other in [effect.other for effect in eval_field_effects.EVALS.get(key, [])] or [2]:
        assert eval_config(name, **below(field, other)).science() != eval_config(name).science()


@pytest.mark.parametrize("name", EVALS.names())
@pytest.mark.parametrize("other", [{"group": "others"}, {"needs": {"gpu": False, "memory_gb": 7, "hours": 3}}], ids=str)
def test_science_of_an_evaluation__where_it_runs_changed__is_the_same(name, other):
    assert eval_config(name, **other).science() == eval_config(name).science()
