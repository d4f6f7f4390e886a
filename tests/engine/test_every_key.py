"""Every key bites: each field of every config class, changed alone, changes what a run does.

A recipe's key that is read, put into the run's name and then ignored makes no error; here it does. The fields are
found by walking the classes, the values are in bites.py.
"""

from fnmatch import fnmatch

import bases
import bites
import eval_bites
import method_bites
import pytest
from corrupted_sets import sets_of_roles
from every_key import (
    Recorder,
    below,
    differences,
    eval_fields,
    method_fields,
    model_fields,
    nested,
    run_fields,
    short_run,
)
from safetensors.torch import save_file
from threaded_server import server_in_a_thread
from tiny_runs import ALONE

from pipeline.config import merge
from pipeline.engine.loop import build_method
from pipeline.engine.timing import StepCost
from pipeline.evals import cost, permutation_cost, split_wire
from pipeline.evals.base import EVALS, Subject
from pipeline.methods.base import METHODS
from pipeline.results import ScaleFolder

TABLE = {**bites.RUN, **bites.OTHER_DATA, **bites.MODELS, **method_bites.METHODS}
BITES = {f"{key} {number}": (key, bite) for key, entries in TABLE.items() for number, bite in enumerate(entries)}
FIELDS = {*run_fields(), *model_fields(), *method_fields(), *eval_fields()}
METHOD_NAMES = {f"method.{name}.name" for name in METHODS.names()}
LABELS = {key for key in FIELDS if any(fnmatch(key, pattern) for pattern in bites.LABELS)}


def test_table__every_field_of_every_class__says_how_it_bites_or_why_not():
    listed = {*TABLE, *eval_bites.EVALS}
    assert sorted(FIELDS - listed - LABELS - bites.NOT_SCIENCE.keys()) == [], "say in bites.py how these bite"
    assert sorted((listed | bites.NOT_SCIENCE.keys()) - FIELDS) == [], "there are no such fields"
    assert [pattern for pattern in bites.LABELS if not any(fnmatch(key, pattern) for key in FIELDS)] == []
    assert sorted(listed & (LABELS | bites.NOT_SCIENCE.keys())) == [], "these are in two lists"


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """Records a run; beside it lie the files that some of them start from."""
    recorder = Recorder(tmp_path_factory.mktemp("every_key"))
    finer = {"data": {"image_size": 56}}
    files = {"other": {}, "finer": finer, "finer_swin": merge(bases.SWIN, finer, {"model": {"pos_embed": "learn"}})}
    for name, changes in files.items():
        encoder = build_method(short_run({"seed": 5}, changes)).export()
        save_file(encoder.state_dict(), recorder.folder / f"{name}.safetensors")
    return recorder


@pytest.mark.slow
@pytest.mark.parametrize("case", BITES)
def test_key__changed_alone__changes_what_it_is_for(record, case):
    key, bite = BITES[case]
    base, changed = record([bite.base]), record([bite.base, nested(key, bite.other), bite.with_it])
    assert differences(base, changed) == bite.expected


# Evaluations


def eval_config(name, **fields):
    return EVALS.get(name).Config(**merge(eval_bites.EVAL_FIELDS.get(name, {}), fields))


@pytest.fixture
def evaluate(record, monkeypatch):
    """What an evaluation finds in a recorded run, which plays all of its roles."""
    for module in (cost, permutation_cost):
        monkeypatch.setattr(module, "time_step", step_that_takes_its_loss)
    monkeypatch.setattr(split_wire, "server_process", server_in_a_thread)
    results = ScaleFolder(record.prepared)

    def found(name, base, **fields):
        kind, run = EVALS.get(name), short_run(base)
        subject = Subject(run, record([base]).method)
        data, made = sets_of_roles(kind, run.data, record.images, results)
        site = record.site()
        site = site.model_copy(update={"data": {**site.data, **made}})
        evaluation = kind(eval_config(name, **fields), data, results, site, ALONE)
        outcome = evaluation.compute(**dict.fromkeys(kind.roles(), subject))
        return outcome.metrics, outcome.files

    return found


@pytest.fixture(scope="module")
def known():
    return {}


@pytest.fixture
def unchanged(evaluate, known):
    """What an evaluation finds with its own fields; computed once for all keys, as it is the same each time."""

    def found(name, base):
        key = f"{name} {base}"
        if key not in known:
            known[key] = evaluate(name, base)
        return known[key]

    return found


def step_that_takes_its_loss(method, batch, precision, compiled, steps):
    """In place of seconds, which differ each time, a number that depends on all that a step is given."""
    loss = method(batch.images, batch.targets, method.draw(batch, 0.5)).loss.item()
    return StepCost([loss + 1000 * steps + len(batch.images)] * 3, warm_up_s=0.0, peak_memory_gib=None)


@pytest.mark.slow
@pytest.mark.parametrize("key", eval_bites.EVALS)
def test_key_of_an_evaluation__changed_alone__changes_what_it_finds(evaluate, unchanged, key):
    _, evaluation, name = key.split(".", 2)
    for bite in eval_bites.EVALS[key]:
        assert evaluate(evaluation, bite.base, **below(name, bite.other)) != unchanged(evaluation, bite.base)


@pytest.mark.slow
@pytest.mark.parametrize("name", EVALS.names())
def test_evaluation__nothing_changed__finds_the_same(evaluate, unchanged, name):
    runs = {"mp3": bases.MP3, "mixed": bases.MP3, "droppos": bases.DROPPOS, "perplexity": bases.LANGUAGE}
    runs |= {"segmentation": bases.SCENES, "detection": bases.OBJECTS}
    base = bases.MP3_SOUNDS if name == "mp3_sounds" else runs.get(name.split("_")[0], {})
    assert evaluate(name, base) == unchanged(name, base)


# Names


def fingerprint(key, value, *around):
    return short_run(*around, nested(key, value)).fingerprint


@pytest.mark.parametrize("case", [case for case, (_, bite) in BITES.items() if bite.at != "refused"])
def test_fingerprint__key_that_bites_changed__is_another(case):
    key, bite = BITES[case]
    assert fingerprint(key, bite.other, bite.base, bite.with_it) != short_run(bite.base).fingerprint


@pytest.mark.parametrize("key", ["data.source", "data.num_classes", "data.num_train", "data.num_val"])
def test_fingerprint__key_of_the_data_changed__is_another(key):
    (bite,) = TABLE[key]
    assert fingerprint(key, bite.other) != short_run().fingerprint


# Another method is another class; that two of them have two names is tested with configs.
@pytest.mark.parametrize("key", sorted(key for key in LABELS if not fnmatch(key, "eval.*") and key not in METHOD_NAMES))
def test_fingerprint__label_changed__is_another(key):
    *_, which, name = key.split(".")
    base = bases.BASES.get(which, {})
    other = {"name": "other", "code_epoch": 2}.get(name, "released")
    assert fingerprint(key, other, base) != short_run(base).fingerprint


@pytest.mark.parametrize("key", bites.NOT_SCIENCE)
def test_fingerprint__key_that_is_no_science_changed__is_the_same(key):
    assert fingerprint(key, 7) == short_run().fingerprint


# The name of a result has these, its subjects and its data sets (tests/study/test_evaluations.py).
@pytest.mark.parametrize("key", [*eval_bites.EVALS, *[f"eval.{name}.code_epoch" for name in EVALS.names()]])
def test_science_of_an_evaluation__key_changed__is_another(key):
    _, name, field = key.split(".", 2)
    for other in [bite.other for bite in eval_bites.EVALS.get(key, [])] or [2]:
        assert eval_config(name, **below(field, other)).science() != eval_config(name).science()


@pytest.mark.parametrize("name", EVALS.names())
@pytest.mark.parametrize("other", [{"group": "others"}, {"needs": {"gpu": False, "memory_gb": 7, "hours": 3}}], ids=str)
def test_science_of_an_evaluation__where_it_runs_changed__is_the_same(name, other):
    assert eval_config(name, **other).science() == eval_config(name).science()
