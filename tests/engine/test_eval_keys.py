"""Changing any single key of an evaluation changes what it finds; with nothing changed, it finds the same."""

import bases
import eval_field_effects
import pytest
from corrupted_sets import sets_of_roles
from eval_field_effects import eval_config
from every_key import below, short_run
from threaded_server import server_in_a_thread
from tiny_runs import ALONE

from pipeline.engine.compute.timing import StepCost
from pipeline.evals.base import EVALS, Subject
from pipeline.evals.cost import cost, permutation_cost
from pipeline.evals.permutation import split_wire
from pipeline.evals.privacy import gradient_matching
from pipeline.results import ScaleFolder

pytestmark = pytest.mark.slow


@pytest.fixture
def evaluate(record, monkeypatch):
    """What an evaluation finds in a recorded run, which plays all of its roles."""
    for module in (cost, permutation_cost):
        monkeypatch.setattr(module, "time_step", step_that_takes_its_loss)
    monkeypatch.setattr(split_wire, "server_process", server_in_a_thread)
    # Drawing this picture takes longest. Every key that changes it must change something else, too.
    monkeypatch.setattr(gradient_matching, "draw_curves", lambda *given: b"curves")
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
    """Instead of seconds, which differ each time, a number that depends on all that a step is given."""
    loss = method(batch.images, batch.targets, method.draw(batch, 0.5)).loss.item()
    return StepCost([loss + 1000 * steps + len(batch.images)] * 3, warm_up_s=0.0, peak_memory_gib=None)


@pytest.mark.parametrize("key", eval_field_effects.EVALS)
def test_key_of_an_evaluation__changed_by_itself__changes_what_it_finds(evaluate, unchanged, key):
    _, evaluation, name = key.split(".", 2)
    for effect in eval_field_effects.EVALS[key]:
        assert evaluate(evaluation, effect.base, **below(name, effect.other)) != unchanged(evaluation, effect.base)


@pytest.mark.parametrize("name", EVALS.names())
def test_evaluation__nothing_changed__finds_the_same(evaluate, unchanged, name):
    runs = {"mp3": bases.MP3, "mixed": bases.MP3, "droppos": bases.DROPPOS, "perplexity": bases.LANGUAGE}
    runs |= {"segmentation": bases.SCENES, "detection": bases.OBJECTS}
    base = bases.MP3_SOUNDS if name == "mp3_sounds" else runs.get(name.split("_")[0], {})
    assert evaluate(name, base) == unchanged(name, base)
