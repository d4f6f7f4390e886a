"""Small sets packed into archives exactly as published, and a server on this machine that has them."""

import hashlib
import io
import itertools
import tarfile
import zipfile
from pathlib import Path

from dense_sets import config as dense_config
from dense_sets import data_config, write_ade20k, write_coco
from layouts import CIFAR_COUNTS, WNIDS, config, write_cifar, write_jpeg, write_tiny_imagenet
from texts import IMDB_COUNTS, SNLI_COUNTS, WIKITEXT_COUNTS, text_config, write_imdb, write_snli, write_wikitext
from tiny_sounds import sound_config, write_sounds

from pipeline.data.derived.severities import CORRUPTIONS
from pipeline.published_sets.sets import SetEntry, entry_of

TOKENIZER = b'{"model": {}}'


def packed(folder: Path, name: str) -> bytes:
    """An archive of what is in a folder."""
    buffer = io.BytesIO()
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    if name.endswith(".zip"):
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in paths:
                archive.write(path, path.relative_to(folder))
    else:
        mode = "w" if name.endswith(".tar") else "w:gz"
        with tarfile.open(fileobj=buffer, mode=mode, dereference=True) as archive:  # published ones have no links
            for path in folder.iterdir():
                archive.add(path, path.name)
    return buffer.getvalue()


def served(server, name: str, contents: dict[str, bytes]) -> SetEntry:
    """The facts of a set, with the sizes and checksums of these files; the rest is as published."""
    files = [
        file.model_copy(
            update={"size": len(contents[file.name]), "is_exact": True, "digest": digest_of(contents[file.name])}
        )
        for file in entry_of(name).files
    ]
    server.files |= contents
    return entry_of(name).model_copy(update={"files": tuple(files), "unpacked": None})


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def only_content(name: str, folder: Path) -> dict[str, bytes]:
    """All files of a set with one archive, which holds what is in the folder."""
    (archive,) = [file.name for file in entry_of(name).files if file.is_archive]
    tokenizers = {file.name: TOKENIZER for file in entry_of(name).files if not file.is_archive}
    return {archive: packed(folder, archive), **tokenizers}


def parts_of_coco(folder: Path) -> dict[str, bytes]:
    write_coco(folder / "whole")
    found = {}
    for part in ("train2017", "val2017", "annotations"):
        (folder / part).mkdir()
        (folder / "whole" / part).rename(folder / part / part)
        name = "annotations_trainval2017.zip" if part == "annotations" else f"{part}.zip"
        found[name] = packed(folder / part, name)
    return found


def parts_of_imagenet_c(folder: Path) -> dict[str, bytes]:
    """Published archives have other corruptions beside the fifteen; one of their folders is enough here."""
    kinds = {"noise": 3, "blur": 4, "weather": 4, "digital": 4}
    corruptions = iter(CORRUPTIONS)
    write_jpeg(folder / "a.JPEG", (80, 0, 0))
    for part, count in kinds.items():
        for corruption in [*itertools.islice(corruptions, count), f"extra_{part}"]:
            for severity in range(1, 6):
                for wnid in WNIDS:
                    place = folder / part / corruption / str(severity) / wnid
                    place.mkdir(parents=True)
                    (place / "a.JPEG").hardlink_to(folder / "a.JPEG")
    return {f"{part}.tar": packed(folder / part, f"{part}.tar") for part in kinds}


def natural(folder: Path, name: str) -> dict[str, bytes]:
    for wnid in WNIDS:
        write_jpeg(folder / name.replace("_", "-") / wnid / "a.JPEG", (80, 0, 0))
    return only_content(name, folder)


def cifar(source):
    return lambda folder: only_content(source, write_cifar(folder, source))


# Set -> what its archives hold, and a config with these counts.
SETS = {
    "imagenet_a": (lambda folder: natural(folder, "imagenet_a"), lambda: config("imagenet_a", num_train=0)),
    "imagenet_o": (lambda folder: natural(folder, "imagenet_o"), lambda: config("imagenet_o", num_train=0)),
    "imagenet_c": (parts_of_imagenet_c, lambda: data_config("imagenet_c", num_classes=3, num_val=3)),
    "cifar10": (cifar("cifar10"), lambda: config("cifar10", **CIFAR_COUNTS)),
    "cifar100": (cifar("cifar100"), lambda: config("cifar100", **CIFAR_COUNTS)),
    "tiny_imagenet": (
        lambda folder: only_content("tiny_imagenet", write_tiny_imagenet(folder / "tiny-imagenet-200").parent),
        lambda: config("tiny_imagenet"),
    ),
    "ade20k": (
        lambda folder: only_content("ade20k", write_ade20k(folder, "ADEChallengeData2016")),
        lambda: dense_config("ade20k"),
    ),
    "coco": (parts_of_coco, lambda: dense_config("coco")),
    "speech_commands": (lambda folder: only_content("speech_commands", write_sounds(folder)), sound_config),
    "imdb": (
        lambda folder: only_content("imdb", write_imdb(folder, "aclImdb")),
        lambda: text_config("imdb", **IMDB_COUNTS),
    ),
    "snli": (
        lambda folder: only_content("snli", write_snli(folder, "snli_1.0")),
        lambda: text_config("snli", **SNLI_COUNTS),
    ),
    "wikitext2": (
        lambda folder: only_content("wikitext2", write_wikitext(folder, "wikitext-2")),
        lambda: text_config("wikitext2", **WIKITEXT_COUNTS),
    ),
}


def served_tiny(server, folder: Path) -> SetEntry:
    """The facts of a small Tiny ImageNet that the server has."""
    folder.mkdir()
    return served(server, "tiny_imagenet", SETS["tiny_imagenet"][0](folder))
