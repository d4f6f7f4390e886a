"""Configs of texts: what each field changes, and what is refused."""

import pytest
from texts import (
    imdb,
    seen,
    text_config,
    write_imdb,
)

from pipeline.core.config import CONFIGS, Layers, names, read_yaml
from pipeline.core.errors import ConfigError, DataError
from pipeline.data.kind import parse_data
from pipeline.models.encoder import ModelConfig
from pipeline.site import Site, data_folder


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"source": "imbd"}, "unknown source; did you mean 'imdb'?"),
        ({"source": "wikitext2"}, "unknown source; valid: books, imdb, snli"),
        ({"tokenizer": "bert"}, "expected words, spaces, or a .json file inside the set's folder"),
        ({"tokenizer": "/etc/tokenizer.json"}, "or a .json file inside the set's folder"),
        ({"tokenizer": "../tokenizer.json"}, "or a .json file inside the set's folder"),
        ({"num_train": 0}, "words of the train split, but num_train is 0; name a tokenizer file"),
        ({"length": 3}, "greater than or equal to 4"),
        ({"vocab_size": 6}, "greater than 6"),
        ({"image_size": 224}, "unknown key"),
    ],
    ids=str,
)
def test_config__of_texts__says_what_is_wrong(changes, text):
    with pytest.raises(ConfigError) as caught:
        imdb(**changes)
    assert text in str(caught.value)


# Field -> another value and what it changes: what a model sees, the folder, or whether the set is accepted.
BITES = {
    "name": ("other", "folder"),
    "kind": ("language", "refused"),
    "source": ("snli", "refused"),
    "tokenizer": ("spaces", "views"),
    "vocab_size": (8, "views"),
    "length": (5, "views"),
    "part_of": ("reviews", "folder"),
    "num_classes": (3, "refused"),
    "num_train": (5, "refused"),
    "num_val": (3, "refused"),
}


def test_config__of_texts__lists_every_field_below():
    assert BITES.keys() == type(imdb()).model_fields.keys()


@pytest.mark.parametrize("field", BITES)
def test_config__field_changed_by_itself__changes_what_it_is_for(tmp_path, field):
    value, expected = BITES[field]
    write_imdb(tmp_path)

    def look(**changes):
        try:
            cfg = imdb(**changes)
            inputs = [inputs["ids"].tolist() for split in cfg.splits for inputs, _ in seen(cfg, tmp_path, split)]
        except (ConfigError, DataError):
            return {"refused": True}
        return {"views": inputs, "folder": cfg.folder_name}

    before, after = look(), look(**{field: value})
    assert {key for key in before | after if before.get(key) != after.get(key)} >= {expected}
    assert expected == "refused" or (before["views"] == after["views"]) == (expected == "folder")


def test_config__of_texts__has_a_task_of_its_own_and_no_height():
    cfg = imdb()
    assert cfg.input_size == (1, 12) and cfg.tasks == ("text_classify",)
    assert cfg.own_tasks == {"classify": "text_classify"}


def test_configs__of_one_set_with_two_tokenizers__share_a_folder(tmp_path):
    site = Site(data={"imdb": tmp_path})
    cfgs = [parse_data(Layers((name, read_yaml(CONFIGS / "data" / f"{name}.yaml")["data"]))) for name in IMDBS]
    assert {data_folder(site, cfg) for cfg in cfgs} == {tmp_path}
    assert len({cfg.name for cfg in cfgs}) == len(IMDBS)
    assert len({cfg.tokenizer for cfg in cfgs}) == 2


IMDBS = [name for name in names(CONFIGS / "data") if name.startswith("imdb")]


@pytest.mark.parametrize("name", ["books", "books_stream"])
def test_check__model_of_images__is_refused_in_words(name):
    model = ModelConfig(name="vit", arch="vit_tiny_patch16_224")

    with pytest.raises(ValueError, match=f"data set {name} has texts, model.arch vit_tiny_patch16_224 is for images"):
        text_config(name).check(model, 4)

    text_config(name).check(ModelConfig(name="b", arch="bert"), 4)
