"""Published sets: their facts, how their folders are found below a data root, and what is said where one is missing."""

import errno
import os
import re
from pathlib import Path

import pytest
from dense_sets import data_config, write_ade20k, write_coco
from layouts import message_of, write_celeba, write_cifar, write_imagenet, write_stanford_cars, write_tiny_imagenet
from texts import write_imdb, write_snli, write_wikitext
from tiny_sounds import write_sounds

from pipeline.audit.check import check_site
from pipeline.core.config import CONFIGS, names
from pipeline.core.errors import ConfigError
from pipeline.data.kind import kind_of, source_set
from pipeline.download.obtain import shipped_config
from pipeline.published_sets.find import find_sets
from pipeline.published_sets.sets import catalogue, entry_of
from pipeline.site import Site, data_folder, load_site

# Name of a folder, what it holds, and the set that it is found as.
PLACES = [
    ("tiny-imagenet-200", write_tiny_imagenet, "tiny_imagenet"),
    ("Tiny_ImageNet/tiny-imagenet-200", write_tiny_imagenet, "tiny_imagenet"),
    ("anything", write_tiny_imagenet, "tiny_imagenet"),
    (".", write_tiny_imagenet, "tiny_imagenet"),
    ("imagenet", write_imagenet, "imagenet1k"),
    ("ILSVRC2012", write_imagenet, "imagenet1k"),
    ("ILSVRC/Data/CLS-LOC", write_imagenet, "imagenet1k"),
    (".", lambda folder: write_cifar(folder, "cifar10"), "cifar10"),
    ("CIFAR-10", lambda folder: write_cifar(folder, "cifar10"), "cifar10"),
    ("cifar", lambda folder: write_cifar(folder, "cifar100"), "cifar100"),
    ("coco/2017", write_coco, "coco"),
    ("COCO2017", write_coco, "coco"),
    ("ADEChallengeData2016", write_ade20k, "ade20k"),
    ("ade20k", lambda folder: write_ade20k(folder, "ADEChallengeData2016"), "ade20k"),
    ("SpeechCommands/speech_commands_v0.01", write_sounds, "speech_commands"),
    ("aclImdb", write_imdb, "imdb"),
    ("imdb", lambda folder: write_imdb(folder, "aclImdb"), "imdb"),
    ("snli_1.0", write_snli, "snli"),
    ("wikitext-2", write_wikitext, "wikitext2"),
    ("CelebA", write_celeba, "celeba"),
    ("stanford_cars", write_stanford_cars, "stanford_cars"),
]


def test_catalogue__every_set__has_a_config_of_its_name_and_a_source_that_reads_it():
    assert set(catalogue()) <= set(names(CONFIGS / "data"))
    for name, entry in catalogue().items():
        cfg = shipped_config(name)
        assert cfg.folder_name == name
        assert source_set(cfg) or (entry.source or name) == cfg.source


def test_catalogue__every_published_set_of_configs__is_in_it():
    """A message about any of them has an address, a size and a licence."""
    for name in names(CONFIGS / "data"):
        kind = kind_of(shipped_config(name))
        assert kind.default_folder() or re.search(r"bytes.*licence: ", kind.origin()), name


def test_catalogue__every_file_that_is_downloaded__has_a_checksum_and_an_address():
    files = [file for entry in catalogue().values() if not entry.by_hand for file in entry.files]
    assert len(files) > 15 and all(file.digest and file.address for file in files)
    lengths = {"md5": 32, "sha1": 40, "sha256": 64}
    assert all(len(digest) == lengths[kind] for kind, digest in (file.digest.split(":") for file in files))


def test_catalogue__names_of_folders__belong_to_one_set_each():
    """Both CIFAR sets may lie in one folder, which holds other files for each."""
    everywhere = [name for entry in catalogue().values() for name in {entry.folder, *entry.names} - {"cifar"}]
    assert len(everywhere) == len(set(everywhere))


def test_entry_of__mistyped_name__names_the_nearest():
    with pytest.raises(ConfigError, match=r"did you mean 'cifar10'.* others: `python -m pipeline download`"):
        entry_of("cifar_10")


@pytest.mark.parametrize(("place", "write", "name"), PLACES, ids=[f"{name} in {place}" for place, _, name in PLACES])
def test_find_sets__under_the_names_that_people_use__finds_the_set_and_no_other(tmp_path, place, write, name):
    (tmp_path / place).mkdir(parents=True, exist_ok=True)
    write(tmp_path / place)
    found = find_sets(tmp_path)
    assert {*found} == {name}
    problems = kind_of(shipped_config(name)).read(found[name], "val").problems
    assert [
        line for line in problems if "not found" in line and "tokenizer" not in line and "released" not in line
    ] == []


def test_find_sets__folder_of_the_name_with_other_content__is_not_the_set(tmp_path):
    (tmp_path / "imagenet/train/cats").mkdir(parents=True)
    (tmp_path / "tiny-imagenet-200/train").mkdir(parents=True)
    assert find_sets(tmp_path) == {}


def test_find_sets__later_version_of_speech_commands__is_not_the_first(tmp_path):
    write_sounds(tmp_path / "speech_commands")
    assert [*find_sets(tmp_path)] == ["speech_commands"]
    (tmp_path / "speech_commands/backward").mkdir()
    assert find_sets(tmp_path) == {}


def test_find_sets__two_folders_that_look_alike__only_the_one_with_the_name_counts(tmp_path):
    write_tiny_imagenet(tmp_path / "a")
    write_tiny_imagenet(tmp_path / "b")
    assert find_sets(tmp_path) == {}
    write_tiny_imagenet(tmp_path / "tiny-imagenet")
    assert find_sets(tmp_path) == {"tiny_imagenet": tmp_path / "tiny-imagenet"}


def test_find_sets__folders_of_sets_that_are_made_where_missing__are_left_to_the_site_file(tmp_path):
    (tmp_path / "imagenet-c/fog/1").mkdir(parents=True)
    assert find_sets(tmp_path) == {}


def test_find_sets__folders_of_others_that_may_not_be_read__are_passed_over(tmp_path, monkeypatch):
    write_tiny_imagenet(tmp_path / "tiny-imagenet-200")
    (tmp_path / "private").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "private/inside")
    stat = os.stat

    def refused(path, **options):
        if "private/" in os.fspath(path) or str(path).endswith("/link"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", refused)
    assert find_sets(tmp_path) == {"tiny_imagenet": tmp_path / "tiny-imagenet-200"}


# The site


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Writes a site file and loads it."""

    def load(text):
        (tmp_path / "mine.yaml").write_text(text)
        monkeypatch.setenv("PATCHWORK_SITE", str(tmp_path / "mine.yaml"))
        return load_site()

    return load


def test_site__with_a_data_root__opens_what_lies_there(tmp_path, site):
    write_tiny_imagenet(tmp_path / "sets/tiny-imagenet-200")
    found = site(f"data_root: {tmp_path}/sets")
    assert data_folder(found, data_config("tiny_imagenet")) == tmp_path / "sets/tiny-imagenet-200"
    assert data_folder(found, data_config("tiny_imagenet_known")) == tmp_path / "sets/tiny-imagenet-200"


def test_site__that_names_a_folder__has_that_one_and_not_what_lies_in_the_data_root(tmp_path, site):
    write_tiny_imagenet(tmp_path / "sets/tiny-imagenet-200")
    found = site(f"data_root: {tmp_path}/sets\ndata: {{tiny_imagenet: /elsewhere}}")
    assert data_folder(found, data_config("tiny_imagenet")) == Path("/elsewhere")


def test_data_folder__set_that_is_nowhere__says_what_was_looked_for_what_it_costs_and_the_command(tmp_path, site):
    (tmp_path / "sets/cifar-10-batches-py").mkdir(parents=True)
    message = message_of(data_folder, site(f"data_root: {tmp_path}/sets"), data_config("cifar10"))
    wanted = "a folder named cifar10 or cifar-10 or cifar that contains cifar-10-batches-bin"
    assert f"looked in {tmp_path}/sets for {wanted}" in message
    assert f"found {tmp_path}/sets/cifar-10-batches-py, the python version, a pickle, which can run code" in message
    assert "`python -m pipeline download cifar10`: 170,052,171 bytes, about 184 MB unpacked" in message
    assert "licence: none stated" in message and "https://www.cs.toronto.edu/~kriz/cifar.html" in message


def test_data_folder__without_a_data_root__says_that_there_could_be_one():
    message = message_of(data_folder, Site(), data_config("imagenet1k"))
    assert "the site file names no `data_root`" in message and "an account is needed" in message


def test_origin__set_of_ones_own_that_is_read_like_a_published_one__says_so():
    own = kind_of(data_config("coco", name="mine")).origin()
    assert own.startswith("as the public data set coco: `python -m pipeline download coco`") and "of your own" in own
    made = kind_of(data_config("fashion_scenes_coco")).origin()
    assert made == "`python -m pipeline prepare` makes it from fashion_mnist"


def test_check_site__data_root_of_a_wrong_type__names_the_key(tmp_path):
    (tmp_path / "mine.yaml").write_text("data_root: [a, b]")
    with pytest.raises(ConfigError, match=r"data_root: found \['a', 'b'\]"):
        check_site(tmp_path / "mine.yaml")
