"""Sets of corrupted images: made from another set, resumed, made again, read as published, refused when incomplete."""

import io
import json
import shutil

import numpy as np
import pytest
from corrupted_sets import OneSource, corrupted_config
from layouts import config, message_of, write_imagenet
from PIL import Image

from pipeline.core.config import CONFIGS, Layers, read_yaml
from pipeline.data.derived import corrupting
from pipeline.data.derived.corrupted import class_of, origin_of, severity_of
from pipeline.data.derived.corruptions import corrupt, seed_of
from pipeline.data.derived.severities import CORRUPTIONS, SEVERITIES
from pipeline.data.kind import kind_of, parse_data
from pipeline.data.store.opening import compare_folder, open_split
from pipeline.data.store.prepare import prepare
from pipeline.results import ScaleFolder

FOG = "fog"


@pytest.fixture
def source(tmp_path):
    """Three photographs of three classes in ImageNet's layout, as a prepared set."""
    folder, data = write_imagenet(tmp_path / "imagenet"), config("imagenet")
    for number, path in enumerate(sorted((folder / "val").glob("*/*"))):
        pixels = np.random.default_rng(number).integers(0, 256, (6, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((64, 48)).save(path, "JPEG", quality=95)
    results = ScaleFolder(tmp_path / "results")
    prepare(data, folder, results.manifest(data.name).parent, progress=False)
    return OneSource(data, folder, results)


def part_of(source, corruption=FOG, **changes):
    cfg = corrupted_config(source.data, quality=85, source_crop=0.8, **changes)
    return kind_of(cfg).parts()[corruption]


def prepared(source, cfg, folder, workers=0):
    return prepare(cfg, folder, source.results.manifest(cfg.name).parent, workers, progress=False, sources=source)


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.glob("*/*/*/*"))}


def refusal(source, cfg, folder, *options):
    return message_of(lambda: prepare(cfg, folder, folder.parent / "out", 0, False, *options))


@pytest.mark.slow
def test_make__from_photographs__resizes_crops_corrupts_and_saves_as_the_published_script(source, tmp_path):
    cfg = part_of(source)
    manifest = prepared(source, cfg, tmp_path / "made")
    assert manifest.splits["val"].count == 3 * len(SEVERITIES) == cfg.count("val")
    assert manifest.classes == source.classes(source.data.name)
    name = "n01440764/ILSVRC2012_val_00000001.JPEG"
    clean = Image.open(source.folder / "val" / name).resize((53, 40), Image.Resampling.BILINEAR)
    clean = np.asarray(clean)[4:36, 10:42]  # 32 / 0.8 = 40, then the centre of 40 x 53
    expected = io.BytesIO()
    pixels = corrupt(clean, FOG, 3, "cifar", seed_of(name, FOG, 3))
    Image.fromarray(pixels).save(expected, "JPEG", quality=85, optimize=True)
    assert (tmp_path / "made" / FOG / "3" / name).read_bytes() == expected.getvalue()


@pytest.mark.slow
def test_make__in_processes__writes_the_same_files_as_in_one(source, tmp_path):
    for workers in (0, 2):
        prepared(source, part_of(source, "glass_blur"), tmp_path / str(workers), workers)
    assert contents(tmp_path / "0") == contents(tmp_path / "2") != {}


@pytest.mark.slow
def test_make__half_made_folder__is_completed_and_what_was_there_is_kept(source, tmp_path):
    cfg, made = part_of(source), tmp_path / "made"
    prepared(source, cfg, made)
    before, files = contents(made), sorted(made.glob("*/*/*/*"))
    kept = files[2].stat().st_mtime_ns
    files[0].unlink()
    files[1].write_bytes(b"")  # as a machine that crashed leaves it
    shutil.rmtree(made / FOG / "4")
    prepared(source, cfg, made)
    assert contents(made) == before and files[2].stat().st_mtime_ns == kept


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["cut", "other bytes", "another image", "list cut", "list lost"])
def test_make__file_that_is_not_as_it_was_made__is_written_again(source, tmp_path, damage):
    cfg, made = part_of(source), tmp_path / "made"
    prepared(source, cfg, made)
    before, files = contents(made), sorted(made.glob("*/*/*/*"))
    content, listed = files[1].read_bytes(), made / FOG / corrupting.LIST
    if damage == "cut":
        files[1].write_bytes(content[: len(content) // 2])
    elif damage == "other bytes":
        files[1].write_bytes(content[:-1] + b"x")
    elif damage == "another image":
        files[1].write_bytes(files[0].read_bytes())
    elif damage == "list cut":
        listed.write_text(listed.read_text()[:-9])
    else:
        listed.unlink()
    index = source.results.manifest(cfg.name).parent
    if "list" not in damage:
        assert "does not hold the val images that were verified" in message_of(compare_folder, cfg, made, index)
    prepared(source, cfg, made)
    compare_folder(cfg, made, index)
    assert contents(made) == before and len(listed.read_text().splitlines()) == 3


@pytest.mark.slow
@pytest.mark.parametrize("change", ["parameters", "source", "code", "version"])
def test_make__other_recipe__leaves_nothing_of_the_old_one(source, tmp_path, monkeypatch, change):
    made, cfg = tmp_path / "made", part_of(source)
    prepared(source, cfg, made)
    before = contents(made)
    (made / FOG / "1" / "n01440764" / "old.JPEG").write_bytes(b"old")
    if change == "parameters":
        cfg = part_of(source, table="imagenet")
    elif change == "code":
        monkeypatch.setattr(corrupting, "maker_code", lambda cfg: "other code")
    elif change == "version":
        monkeypatch.setattr(corrupting, "VERSION", 2)
    else:
        path = next((source.folder / "val").glob("*/*"))
        Image.new("RGB", (64, 48), "red").save(path)
        prepare(source.data, source.folder, source.results.manifest(source.data.name).parent, progress=False)
    prepared(source, cfg, made)
    assert contents(made).keys() == before.keys() and (contents(made) == before) is (change in ("code", "version"))


def test_make__published_folder__is_read_and_never_touched(source, tmp_path):
    made = tmp_path / "made"
    prepared(source, part_of(source), made)
    (made / FOG / "recipe.json").unlink()
    (made / "speckle_noise" / "1").mkdir(parents=True)  # one of ImageNet-C's extra corruptions
    path = next(made.glob("fog/2/*/*"))
    Image.new("RGB", (32, 32), "red").save(path, "JPEG")
    published = contents(made)
    prepared(source, part_of(source, table="imagenet"), made)
    assert contents(made) == published and not (made / FOG / "recipe.json").exists()


def test_make__published_folder_that_is_incomplete__is_refused_and_unchanged(source, tmp_path):
    made = tmp_path / "made"
    prepared(source, part_of(source), made)
    (made / FOG / "recipe.json").unlink()
    next(made.glob("fog/2/*/*")).unlink()
    before = contents(made)
    assert "not made here, and they are not the whole set" in refusal(source, part_of(source), made, source)
    assert contents(made) == before


@pytest.mark.slow
def test_make__grey_images__writes_grey_files_and_the_names_of_classes_survive(tmp_path):
    data = parse_data(Layers(("test", read_yaml(CONFIGS / "data" / "fashion_mnist.yaml")["data"])))
    results = ScaleFolder(tmp_path / "results")
    prepare(data, kind_of(data).default_folder(), results.manifest(data.name).parent, progress=False)
    source = OneSource(data, kind_of(data).default_folder(), results)
    cfg = kind_of(corrupted_config(data)).parts()["jpeg_compression"]
    manifest = prepared(source, cfg, tmp_path / "made")
    assert manifest.splits["val"].modes == {"L": 50} and set(manifest.classes) == set(source.classes(data.name))
    assert (tmp_path / "made" / "jpeg_compression" / "5" / "T-shirt%2Ftop").is_dir()


def test_read__samples__say_their_severity_class_and_clean_image(source, tmp_path):
    cfg = part_of(source)
    prepared(source, cfg, tmp_path / "made")
    samples = open_split(cfg, tmp_path / "made", "val", source.results.manifest(cfg.name).parent)
    names = [samples.name(index) for index in range(len(samples))]
    assert [severity_of(name) for name in names] == [1] * 3 + [2] * 3 + [3] * 3 + [4] * 3 + [5] * 3
    assert [class_of(name) for name in names[:3]] == ["n01440764", "n01443537", "n02084071"]
    assert origin_of(names[0]) == origin_of(names[3]) == "n01440764/ILSVRC2012_val_00000001"


def remove_severity(folder):
    shutil.rmtree(folder / FOG / "3")


def remove_all(folder):
    shutil.rmtree(folder / FOG)


def remove_image(folder):
    next(folder.glob("fog/2/*/*")).unlink()


def rename_image(folder):
    path = next(folder.glob("fog/2/n01440764/*"))
    path.rename(path.with_name("other.JPEG"))


def damage_image(folder):
    next(folder.glob("fog/2/*/*")).write_bytes(b"\xff\xd8 and no more")


@pytest.mark.parametrize(
    ("harm", "expected"),
    [
        (remove_severity, "fog: severity 3 not found"),
        (remove_all, "fog: folder not found"),
        (remove_image, "fog/2: found 2 images, expected 3"),
        (rename_image, "fog/2: found other images than in severity 1"),
        (damage_image, "cannot be decoded"),
    ],
)
def test_read__folder_with_a_fault__is_refused_with_the_place(source, tmp_path, harm, expected):
    made, cfg = tmp_path / "made", part_of(source)
    prepared(source, cfg, made)
    harm(made)
    message = refusal(source, cfg, made)
    assert expected in message and "<corruption>/<severity>/<class>/<image>" in message


def test_parts__of_the_whole_set__share_its_folder_and_count_their_own_files(source):
    whole = corrupted_config(source.data)
    parts = kind_of(whole).parts()
    assert tuple(parts) == CORRUPTIONS and {cfg.folder_name for cfg in parts.values()} == {whole.name}
    assert {cfg.name for cfg in parts.values()} == {f"{whole.name}-{name}" for name in CORRUPTIONS}
    assert {cfg.count("val") for cfg in parts.values()} == {15} and whole.count("val") == 15 * 15
    assert kind_of(parts[FOG]).parts() == {}


@pytest.mark.parametrize("changes", [{"corruption": "frog"}, {"per_class": 1, "num_val": 4}, {"num_train": 5}], ids=str)
def test_config__that_means_nothing__is_refused(source, changes):
    with pytest.raises(ValueError):
        corrupted_config(source.data, **changes)


CLEAN = {"imagenet_c": "imagenet1k", "tiny_imagenet_c": "tiny_imagenet", "fashion_mnist_c": "fashion_mnist"}


@pytest.mark.parametrize("name", CLEAN)
def test_config_files__of_corrupted_sets__fit_the_sets_they_are_made_from(name):
    made, clean = (
        parse_data(Layers((key, read_yaml(CONFIGS / "data" / f"{key}.yaml")["data"]))) for key in (name, CLEAN[name])
    )
    same = ("image_size", "channels", "num_classes", "mean", "std")
    assert [getattr(made, key) for key in same] == [getattr(clean, key) for key in same]
    assert made.made_from == clean.name and made.source_crop == clean.eval_crop
    assert made.num_val == (made.per_class or clean.num_val // clean.num_classes) * clean.num_classes


def test_recipe__in_the_folder__says_what_the_files_were_made_from(source, tmp_path):
    prepared(source, part_of(source), tmp_path / "made")
    recipe = json.loads((tmp_path / "made" / FOG / "recipe.json").read_text())
    assert recipe["made_from"] == source.data.name and recipe["table"] == "cifar" and recipe["quality"] == 85
    assert recipe["images"] == source.fingerprint(source.data.name)
