"""What every kind of data must do, found in the registry, and mistakes in a new one."""

from pathlib import Path
from typing import ClassVar, Literal

import pytest
import torch
from kind_contract import check_kind_class, check_views
from pydantic import Field
from readable_failures import refuse

from pipeline.core.config import CONFIGS, Layers, read_yaml
from pipeline.data.kind import KINDS, BaseDataConfig, DataKind, kind_of, parse_data
from pipeline.data.samples import Split

EMBEDDED = ("fashion_mnist", "fashion_attributes", "spoken_words", "books", "books_stream")


@pytest.mark.parametrize("name", KINDS.names())
def test_class__of_every_kind__states_what_each_of_its_keys_decides(name):
    refuse(check_kind_class(name, KINDS.get(name)))


@pytest.mark.slow
@pytest.mark.parametrize("name", EMBEDDED)
def test_eval_view__of_every_embedded_set__is_the_same_each_time(name):
    kind = kind_of(parse_data(Layers((name, read_yaml(CONFIGS / "data" / f"{name}.yaml")["data"]))))
    refuse(check_views(kind, kind.read(kind.default_folder(), "val").samples[0]))


# Mistakes


class Numbers(DataKind):
    """Without a mistake: a sample is a number."""

    class Config(BaseDataConfig):
        identity_fields: ClassVar[tuple[str, ...]] = ("largest", "num_train", "num_val")
        kind: Literal["numbers"] = "numbers"
        largest: int = Field(9, ge=1)

        @property
        def input_size(self):
            return 1, 1

    layout, obtained = "train.txt and val.txt", "count"

    def read(self, folder: Path, split: str) -> Split:
        raise NotImplementedError

    def train_view(self):
        return lambda number: (torch.rand(1) + number, 0)

    def eval_view(self):
        return lambda number: (torch.tensor(number), 0)


class RandomView(Numbers):
    def eval_view(self):
        return self.train_view()


class Careless(DataKind):
    class Config(BaseDataConfig):
        identity_fields: ClassVar[tuple[str, ...]] = ("lagest", "num_train", "num_val")
        kind: Literal["numbers"] = "numbers"
        largest: int = 9

    read = train_view = eval_view = Numbers.read


def test_check__kind_without_a_mistake__has_nothing_to_say():
    cfg = Numbers.Config(name="few", num_train=1, num_val=1)
    assert check_kind_class("numbers", Numbers) == check_views(Numbers(cfg), 3) == []


def test_check__view_of_evaluation_that_draws__is_told_where_it_belongs():
    (sentence,) = check_views(RandomView(RandomView.Config(name="few", num_train=1, num_val=1)), 3)
    assert sentence.startswith("RandomView.eval_view sees one sample in two ways, or draws random numbers;")
    assert sentence.endswith("what is random belongs into train_view")


@pytest.mark.parametrize(
    "text",
    [
        "Careless.Config.kind is not 'careless', by which Careless is registered",
        "Careless.Config.largest is a number without a range",
        "Careless.Config names 'lagest' in identity_fields, view_fields, cost_fields, but has no such field",
        "Careless.Config.largest is in none of identity_fields, view_fields, cost_fields, so a set with another",
        "Careless.Config has no input_size; return the height and width",
        'Careless.layout is empty, and messages about a wrong folder show it: layout = "train/',
        'Careless.obtained is empty, and messages about a wrong folder show it: obtained = "record them"',
    ],
)
def test_check__class_with_mistakes__is_told_all_of_them(text):
    assert any(text in sentence for sentence in check_kind_class("careless", Careless))
