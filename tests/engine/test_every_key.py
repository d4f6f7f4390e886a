"""Every key bites: each field of every config class, changed alone, changes what a run does.

A recipe's key that is read, put into the run's name and then ignored makes no error; here it does. The fields are
found by walking the classes, the values are in bites.py.
"""

from fnmatch import fnmatch

import bites
import pytest
from every_key import SHORT, Recorder, differences, eval_fields, method_fields, model_fields, nested, run_fields
from safetensors.torch import save_file
from tiny_runs import ALONE, tiny_run

from pipeline.config import merge
from pipeline.engine.loop import build_method
from pipeline.engine.signals import StopRequest
from pipeline.engine.train import train_run
from pipeline.evals.base import EVALS
from pipeline.methods.base import METHODS
from pipeline.results import RunFolder

TABLE = {**bites.RUN, **bites.MODELS, **bites.METHODS}
BITES = {f"{key} {number}": (key, bite) for key, entries in TABLE.items() for number, bite in enumerate(entries)}
FIELDS = {*run_fields(), *model_fields(), *method_fields(), *eval_fields()}
METHOD_NAMES = {f"method.{name}.name" for name in METHODS.names()}
LABELS = {key for key in FIELDS if any(fnmatch(key, pattern) for pattern in bites.LABELS)}


def test_table__every_field_of_every_class__says_how_it_bites_or_why_not():
    listed = {*TABLE, *bites.EVALS}
    assert sorted(FIELDS - listed - LABELS - bites.NOT_SCIENCE.keys()) == [], "say in bites.py how these bite"
    assert sorted((listed | bites.NOT_SCIENCE.keys()) - FIELDS) == [], "there are no such fields"
    assert [pattern for pattern in bites.LABELS if not any(fnmatch(key, pattern) for key in FIELDS)] == []
    assert sorted(listed & (LABELS | bites.NOT_SCIENCE.keys())) == [], "these are in two lists"


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """Records a run; beside it lie the files that some of them start from."""
    recorder = Recorder(tmp_path_factory.mktemp("every_key"))
    finer = {"data": {"image_size": 56}}
    files = {"other": {}, "finer": finer, "finer_swin": merge(bites.SWIN, finer, {"model": {"pos_embed": "learn"}})}
    for name, changes in files.items():
        encoder = build_method(tiny_run(SHORT, {"seed": 5}, changes)).export()
        save_file(encoder.state_dict(), recorder.folder / f"{name}.safetensors")
    return recorder


@pytest.mark.slow
@pytest.mark.parametrize("case", BITES)
def test_key__changed_alone__changes_what_it_is_for(record, case):
    key, bite = BITES[case]
    base, changed = record([bite.base]), record([bite.base, nested(key, bite.other), bite.with_it])
    assert differences(base, changed) == bite.expected


# Evaluations


@pytest.fixture(scope="module")
def evaluate(record):
    """Metrics of an evaluation of a recorded run; partners are finished runs called first and second."""
    results = record.prepared
    partners = {}
    for name, seed in (("first", 11), ("second", 12)):
        run = tiny_run(SHORT, {"seed": seed, "optim": {"base_lr": 1e-2, "epochs": 8}})
        train_run(run, RunFolder(results, run.name), record.site(), StopRequest())
        RunFolder(results, run.name).publish()
        partners[name] = run.name

    def metrics(name, base, **fields):
        kind, run = EVALS.get(name), tiny_run(SHORT, base)
        if "partner" in kind.Config.model_fields:
            fields["partner"] = partners[fields.get("partner", "first")]
        evaluation = kind(kind.Config(name=name, **fields), run, RunFolder(results, run.name), record.site(), ALONE)
        return evaluation.compute(record([base]).method)

    return metrics


@pytest.mark.slow
@pytest.mark.parametrize("key", bites.EVALS)
def test_key_of_an_evaluation__changed_alone__changes_its_numbers(evaluate, key):
    _, evaluation, name = key.split(".")
    for bite in bites.EVALS[key]:
        base, changed = evaluate(evaluation, bite.base), evaluate(evaluation, bite.base, **{name: bite.other})
        assert base != changed


# Names


def fingerprint(key, value, *around):
    return tiny_run(SHORT, *around, nested(key, value)).fingerprint


@pytest.mark.parametrize("case", [case for case, (_, bite) in BITES.items() if bite.at != "refused"])
def test_fingerprint__key_that_bites_changed__is_another(case):
    key, bite = BITES[case]
    assert fingerprint(key, bite.other, bite.base, bite.with_it) != tiny_run(SHORT, bite.base).fingerprint


@pytest.mark.parametrize("key", ["data.source", "data.num_classes", "data.num_train", "data.num_val"])
def test_fingerprint__key_of_the_data_changed__is_another(key):
    (bite,) = TABLE[key]
    assert fingerprint(key, bite.other) != tiny_run(SHORT).fingerprint


# Another method is another class; that two of them have two names is tested with configs.
@pytest.mark.parametrize("key", sorted(key for key in LABELS if not fnmatch(key, "eval.*") and key not in METHOD_NAMES))
def test_fingerprint__label_changed__is_another(key):
    *_, which, name = key.split(".")
    base = bites.BASES.get(which, {})
    other = {"name": "other", "code_epoch": 2}.get(name, "released")
    assert fingerprint(key, other, base) != tiny_run(SHORT, base).fingerprint


@pytest.mark.parametrize("key", bites.NOT_SCIENCE)
def test_fingerprint__key_that_is_no_science_changed__is_the_same(key):
    assert fingerprint(key, 7) == tiny_run(SHORT).fingerprint


@pytest.mark.parametrize("key", [*bites.EVALS, *[f"eval.{name}.code_epoch" for name in EVALS.names()]])
def test_fingerprint_of_an_evaluation__key_changed__is_another(key):
    _, name, field = key.split(".")
    config = EVALS.get(name).Config
    for other in [bite.other for bite in bites.EVALS.get(key, [])] or [2]:
        assert config(**{field: other}).fingerprint != config().fingerprint


@pytest.mark.parametrize("name", EVALS.names())
def test_fingerprint_of_an_evaluation__group_changed__is_the_same(name):
    config = EVALS.get(name).Config
    assert config(group="others").fingerprint == config().fingerprint
