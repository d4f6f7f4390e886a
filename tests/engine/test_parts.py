"""Parts of a long evaluation: computed once, kept over a kill, never taken over from other inputs."""

import numpy as np

from pipeline.evals.parts import Parts, key_of


class Counter:
    """Returns how often it was called, as evaluations return arrays."""

    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return {"calls": np.array(self.calls), "values": np.arange(3.0)}


def test_once__asked_again_by_another_process__returns_what_was_kept(tmp_path):
    count = Counter()
    first = Parts(tmp_path / "parts", "key").once("fog", count)
    again = Parts(tmp_path / "parts", "key").once("fog", count)
    assert count.calls == 1
    assert again["calls"] == first["calls"] == 1 and again["values"].tolist() == [0.0, 1.0, 2.0]


def test_once__another_part_or_other_inputs__is_computed(tmp_path):
    count = Counter()
    Parts(tmp_path, "key").once("fog", count)
    assert Parts(tmp_path, "key").once("snow", count)["calls"] == 2
    assert Parts(tmp_path, "other").once("fog", count)["calls"] == 3


def test_once__damaged_file__is_computed_again(tmp_path):
    count = Counter()
    parts = Parts(tmp_path, "key")
    parts.once("fog", count)
    (tmp_path / "fog-key.npz").write_bytes(b"PK\x03\x04 cut off")
    assert parts.once("fog", count)["calls"] == 2
    assert parts.once("fog", count)["calls"] == 2


def test_once__without_a_folder__keeps_nothing():
    count = Counter()
    assert [Parts().once("fog", count)["calls"] for _ in range(2)] == [1, 2]


def test_left__names_parts_that_must_be_computed(tmp_path):
    parts = Parts(tmp_path, "key")
    for name in ("fog", "snow"):
        parts.once(name, Counter())
    (tmp_path / "snow-key.npz").write_bytes(b"PK\x03\x04 cut off")
    assert parts.left(["fog", "snow", "frost"]) == ["snow", "frost"]
    assert Parts(tmp_path, "other").left(["fog"]) == Parts().left(["fog"]) == ["fog"]


def test_forget__removes_parts_of_all_inputs(tmp_path):
    parts = Parts(tmp_path / "parts", "key")
    parts.once("fog", Counter())
    Parts(tmp_path / "parts", "other").once("fog", Counter())
    parts.forget()
    assert not (tmp_path / "parts").exists()


def test_key__follows_every_fact():
    assert key_of({"a": 1}, "x") == key_of({"a": 1}, "x")
    assert len({key_of({"a": 1}, "x"), key_of({"a": 2}, "x"), key_of({"a": 1}, "y")}) == 3


class Training:
    """Adds up the numbers of its epochs."""

    def __init__(self):
        self.total = 0

    def state_dict(self):
        return {"total": self.total}

    def load_state_dict(self, state):
        self.total = state["total"]


def test_epochs__left_in_the_third__go_on_with_it_in_the_state_after_the_second(tmp_path):
    parts, training = Parts(tmp_path, "key"), Training()
    for epoch in parts.epochs("victim", 5, training):
        training.total += 10**epoch
        if epoch == 2:
            break
    again, seen = Training(), []
    for epoch in Parts(tmp_path, "key").epochs("victim", 5, again):
        seen.append(epoch)
        again.total += 10**epoch
    assert seen == [2, 3, 4] and again.total == 11111


def test_epochs__of_other_inputs_or_without_a_folder__start_from_the_first(tmp_path):
    for _ in Parts(tmp_path, "key").epochs("victim", 2, Training()):
        pass
    for parts in (Parts(tmp_path, "other"), Parts()):
        assert [*parts.epochs("victim", 3, Training())] == [0, 1, 2]


def test_once__of_a_part_with_epochs__keeps_the_result_only(tmp_path):
    parts, count = Parts(tmp_path, "key"), Counter()

    def trained():
        for _ in parts.epochs("victim", 2, Training()):
            pass
        return count()

    parts.once("victim", trained)
    assert [path.name for path in tmp_path.iterdir()] == ["victim-key.npz"]
