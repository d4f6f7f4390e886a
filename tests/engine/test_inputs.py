"""A finished run is finished for its data and for the weights it started from; with others it is trained again."""

import json
import logging

import pytest
from safetensors.torch import save_file
from tiny_runs import ALONE, StopAfter, classify, differing, fit, prepare_in, tiny_run, write_images

from pipeline.core.errors import CheckpointError
from pipeline.core.files import read_lines
from pipeline.engine.inputs import find_inputs
from pipeline.engine.loop import Trainer, build_method
from pipeline.engine.signals import Requeue, StopRequest
from pipeline.engine.train import load_method, train_run
from pipeline.results import RunFolder, ScaleFolder
from pipeline.results.records import Inputs
from pipeline.site import Site

pytestmark = pytest.mark.slow

SHORT = {"optim": {"epochs": 2}}


class Place:
    """A results folder and the data set that its runs are trained on."""

    def __init__(self, root):
        self.results, self.folder = root / "results", write_images(root / "data")
        self.site = Site(device="cpu", data={"small": self.folder}, weights=str(root))
        prepare_in(self.results, self.folder)

    def relabel(self):
        """Prepare the data again, with another label for every image."""
        write_images(self.folder, shift=3)
        prepare_in(self.results, self.folder)

    def train(self, run, stop=None):
        """Train, or until asked to stop; returns the run's folder."""
        paths = RunFolder(self.results, run.name)
        try:
            train_run(run, paths, self.site, stop or StopRequest())
        except Requeue:
            return paths
        paths.publish()
        return paths

    def inputs(self, run):
        return find_inputs(RunFolder(self.results, run.name), self.site, run.data.name, run.init)


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path / "here")


@pytest.fixture
def elsewhere(tmp_path):
    """What a training that knows nothing of earlier ones comes to."""
    return Place(tmp_path / "elsewhere")


def traces(paths):
    """Everything by which two trainings of one run can be told apart."""
    return paths.encoder.read_bytes(), paths.metrics.read_bytes()


def identity(paths):
    return json.loads(paths.started.read_text())["identity"]


def test_train__data_prepared_again_with_other_labels__trains_again(place, elsewhere, caplog):
    run = tiny_run(SHORT)
    paths = place.train(run)
    before, who = paths.record(), identity(paths)
    place.relabel()
    assert not paths.is_finished(place.inputs(run))

    with caplog.at_level(logging.INFO):
        place.train(run)

    elsewhere.relabel()
    assert traces(paths) == traces(elsewhere.train(run))
    assert paths.is_finished(place.inputs(run)) and identity(paths) != who
    now = paths.record().inputs
    assert f"the data changed from {before.inputs.data[:12]} to {now.data[:12]}" in caplog.text
    assert caplog.text.count("from the beginning") == 1 and "finished already" not in caplog.text
    assert json.loads(paths.done.read_text())["inputs"] == now.model_dump()


def test_train__data_prepared_again_with_the_same_labels__trains_nothing(place, caplog):
    run = tiny_run(SHORT)
    paths = place.train(run)
    before = paths.encoder.stat().st_mtime_ns, identity(paths)
    prepare_in(place.results, place.folder)
    with caplog.at_level(logging.INFO):
        place.train(run)
    assert (paths.encoder.stat().st_mtime_ns, identity(paths)) == before
    assert "is finished already" in caplog.text


def test_train__code_edited_while_it_trains__records_the_code_that_began(place, monkeypatch):
    fit_before, today = Trainer.fit, ["before"]
    monkeypatch.setattr("pipeline.engine.train.code_of_run", lambda named: today[0])
    monkeypatch.setattr(Trainer, "fit", lambda self: today.insert(0, "after") or fit_before(self))
    assert place.train(tiny_run(SHORT)).record().provenance["code"] == "before" and today[0] == "after"


def test_train__retrained_init__trains_again_from_its_new_weights(place, caplog):
    first = tiny_run(SHORT)
    second = tiny_run(SHORT, {"init": first.name, "seed": 1})
    place.train(first)
    paths = place.train(second)
    before, who = traces(paths), identity(paths)
    place.relabel()
    place.train(first)
    # Only the weights are other: the run's own data are as they were.
    write_images(place.folder)
    prepare_in(place.results, place.folder)

    caplog.clear()
    place.train(second)

    assert traces(paths)[0] != before[0] and identity(paths) != who
    start = RunFolder(place.results, first.name)
    assert paths.record().inputs.init == start.record().files["encoder.safetensors"]
    assert paths.record().provenance["init"]["sha256"] == paths.record().inputs.init
    assert "the weights it starts from changed from" in caplog.text and "the data changed" not in caplog.text


def test_train__other_file_behind_init__trains_again(place):
    run = tiny_run(SHORT, {"init": "file:start.safetensors"})
    encoder = build_method(run).encoder.state_dict()
    save_file(encoder, place.folder.parent / "start.safetensors")
    paths = place.train(run)
    first = traces(paths)
    save_file({name: value * 2 for name, value in encoder.items()}, place.folder.parent / "start.safetensors")
    assert not paths.is_finished(place.inputs(run))
    place.train(run)
    assert traces(paths)[0] != first[0]


def test_inputs__file_behind_init_missing__says_which_file(place):
    with pytest.raises(
        CheckpointError, match=r"none\.pth not found; expected the weights that init file:none\.pth names"
    ):
        place.inputs(tiny_run({"init": "file:none.pth"}))


def test_resume__after_the_data_changed__starts_from_the_beginning(place, elsewhere, caplog):
    run = tiny_run(SHORT)
    paths = place.train(run, StopAfter(7))
    who = identity(paths)
    assert paths.last_step() == 7
    place.relabel()

    with caplog.at_level(logging.INFO):
        place.train(run)

    elsewhere.relabel()
    assert traces(paths) == traces(elsewhere.train(run))
    assert "resuming" not in caplog.text and "the data changed from" in caplog.text
    assert identity(paths) != who
    assert [line["step"] for line in read_lines(paths.timing)] == [4, 8, 12]
    assert paths.record().provenance["resumed_at_step"] == 0


def test_resume__inputs_unchanged__continues_as_the_same(place, caplog):
    run = tiny_run(SHORT)
    paths = place.train(run, StopAfter(7))
    who = identity(paths)
    with caplog.at_level(logging.INFO):
        place.train(run)
    assert "resuming at step 7" in caplog.text
    assert identity(paths) == who and paths.record().provenance["resumed_at_step"] == 7


def test_checkpoint__of_other_inputs__is_not_used(place, caplog):
    """Whoever put it there: a checkpoint says itself what it was trained from."""
    run = tiny_run(SHORT)
    paths = place.train(run, StopAfter(7))
    paths.identity.unlink()
    place.relabel()
    place.train(run)
    assert "the checkpoint after step 7 was made from other inputs and is ignored" in caplog.text
    assert paths.record().provenance["resumed_at_step"] == 0


def test_checkpoint__of_another_run__is_not_used(place, caplog):
    """Such as one in a folder that somebody has copied or renamed."""
    run, other = tiny_run(SHORT), tiny_run(SHORT, {"seed": 5})
    paths = place.train(other, StopAfter(7))
    paths.identity.unlink()
    paths.state.rename(paths.sibling(run.name).state)
    paths = place.train(run)
    words = (
        f"the checkpoint after step 7 belongs to run {other.name} and is ignored: {run.name} starts from the beginning"
    )
    assert words in caplog.text
    assert paths.record().provenance["resumed_at_step"] == 0


def test_is_finished__asked_often__reads_weights_once(place, monkeypatch):
    run = tiny_run(SHORT)
    paths, read = place.train(run), []
    inputs = place.inputs(run)
    from pipeline.core import files

    digest = files.digest
    monkeypatch.setattr(files, "digest", lambda path: read.append(path.name) or digest(path))
    files._ASKED_HERE.kept.clear()
    assert all(paths.is_finished(inputs) for _ in range(5))
    made = ["config.resolved.yaml", "encoder.safetensors", "heads.safetensors", "metrics.jsonl", "started.json"]
    assert sorted(read) == made
    assert not paths.is_finished(Inputs(data="other", init=None)) and len(read) == len(made)
    paths.heads.write_bytes(b"damaged")
    assert not any(paths.is_finished(inputs) for _ in range(5))
    assert len(read) == len(made) + 1


def test_evaluate__data_changed_since_training__is_refused(place):
    run = tiny_run(SHORT)
    paths = place.train(run)
    place.relabel()
    with pytest.raises(CheckpointError, match=r"the data changed from \w+ to \w+ since run .* train it again"):
        classify(run, paths, place.site)
    assert ScaleFolder(paths.results).evaluations() == []


def zero_40_kb(path):
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle - 20_000 : middle + 20_000] = bytes(40_000)
    path.write_bytes(content)


@pytest.fixture
def large(place):
    """A finished run whose weights are larger than the damage."""
    run = tiny_run({"optim": {"epochs": 1, "warmup_epochs": 0}, "model": {"embed_dim": 64}})
    return run, place.train(run)


@pytest.mark.parametrize("name", ["encoder", "heads"])
def test_evaluate__weights_damaged__is_an_error_and_not_a_number(place, large, name):
    run, paths = large
    path = getattr(paths, name)
    size = path.stat().st_size
    zero_40_kb(path) if name == "encoder" else path.write_bytes(path.read_bytes()[:-1] + b"!")
    assert path.stat().st_size == size
    with pytest.raises(
        CheckpointError, match=rf"{name}\.safetensors has SHA-256 \w+, expected \w+ .*restore it, or train"
    ):
        classify(run, paths, place.site)
    assert ScaleFolder(paths.results).evaluations() == []


def test_evaluate__weights_deleted__says_so(place, large):
    run, paths = large
    paths.encoder.unlink()
    with pytest.raises(CheckpointError, match=r"encoder\.safetensors not found, expected \w+ as train\.json recorded"):
        load_method(run, paths, ALONE)


def test_init__from_a_run_whose_weights_are_damaged__is_refused(place, large):
    run, paths = large
    zero_40_kb(paths.encoder)
    second = tiny_run({"init": run.name, "model": {"embed_dim": 64}, "seed": 1})
    with pytest.raises(CheckpointError, match=r"encoder\.safetensors has SHA-256 \w+, expected \w+"):
        place.train(second)
    assert not RunFolder(place.results, second.name).metrics.exists()


def test_train__weights_damaged_and_trained_again__exports_them_as_they_were(place, large):
    run, paths = large
    before = paths.encoder.read_bytes()
    zero_40_kb(paths.encoder)
    place.train(run)
    assert paths.encoder.read_bytes() == before
    assert (
        differing(
            load_method(run, paths, ALONE).state_dict(), fit(run, place.results, place.folder).method.state_dict()
        )
        == []
    )
