"""COCO in its published layout and in its format: what is read, handled and refused, and what `prepare` keeps of it."""

import json
import shutil

import numpy as np
import pytest
from dense_sets import config, data_config, edit_list, list_path, write_coco
from layouts import message_of, write_jpeg

from pipeline.core.errors import ConfigError
from pipeline.data.dense.objects import ObjectTable
from pipeline.data.dense.outlines import bitmap, bounds
from pipeline.data.kind import kind_of
from pipeline.data.readers.coco import outline_of
from pipeline.data.store.opening import open_split
from pipeline.data.store.prepare import prepare


def refusal(folder, **changes):
    return message_of(prepare, config("coco", **changes), folder, folder / "out", progress=False)


def prepared(cfg, folder, out):
    return prepare(cfg, folder, out, progress=False)


# What is read


def test_coco__small_set__has_objects_in_the_order_of_images_and_labels_in_that_of_category_ids(tmp_path):
    samples = open_split(config("coco"), write_coco(tmp_path), "train")
    assert [samples.name(index) for index in range(2)] == [f"train2017/{number:012d}.jpg" for number in (7, 9)]
    assert [samples.image_id(index) for index in range(2)] == [7, 9]
    assert samples.category_ids == [1, 3, 90]
    first, second = samples[0].objects, samples[1].objects
    assert first.ids.tolist() == [12, 13, 14] and second.ids.tolist() == [11]
    assert first.labels.tolist() == [2, 1, 1] and second.labels.tolist() == [3]
    assert first.crowds.tolist() == [0, 0, 1] and first.areas.tolist() == [440, 16, 40]
    found = [bitmap(outline, 40, 60) for outline in first.outlines]
    # 20 x 20, and a triangle of 10 x 8 / 2, give or take its edges; exactly 8 x 2 and one column.
    assert abs(int(found[0].sum()) - 440) < 8
    assert found[1].sum() == 16 and found[1][4:12, 1:3].all()
    assert found[2].sum() == 40 and found[2][:, 0].all()


def test_coco__images_without_objects__are_left_out_only_of_train_and_only_if_asked(tmp_path):
    write_coco(tmp_path)
    assert len(open_split(config("coco"), tmp_path, "val")) == 2
    everything = open_split(config("coco", drop_empty=False, num_train=3), tmp_path, "train")
    assert [len(everything[index].objects) for index in range(3)] == [3, 0, 1]


def test_coco__image_with_only_a_crowd__is_left_out_of_train(tmp_path):
    edit_list(write_coco(tmp_path), lambda content: content["annotations"][0].update(iscrowd=1))
    assert len(open_split(config("coco", num_train=1), tmp_path, "train")) == 1


def test_coco__area_missing__is_counted_and_iscrowd_missing_is_none(tmp_path):
    def change(content):
        for key in ("area", "iscrowd"):
            del content["annotations"][0][key]

    edit_list(write_coco(tmp_path), change)
    objects = open_split(config("coco"), tmp_path, "train")[1].objects
    assert objects.areas.tolist() == [400] and objects.crowds.tolist() == [0]


def test_coco__area_of_0__stays_as_published(tmp_path):
    edit_list(write_coco(tmp_path), lambda content: content["annotations"][0].update(area=0))
    assert open_split(config("coco"), tmp_path, "train")[1].objects.areas.tolist() == [0]


def test_coco__box_without_height_as_train2017_has_two__is_kept_and_counted(tmp_path):
    flat = {"segmentation": [[29.65, 38.33, 29.65, 38.33, 29.68, 38.33, 29.68, 38.33]]}
    flat |= {"bbox": [29.65, 38.33, 1.03, 0.0], "area": 0.0}
    edit_list(write_coco(tmp_path), lambda content: content["annotations"][1].update(flat))
    manifest = prepared(config("coco"), tmp_path, tmp_path / "out")
    assert manifest.splits["train"].boxes_without_extent == 1


def test_coco__short_polygon_next_to_another__is_left_out(tmp_path):
    edit_list(write_coco(tmp_path), lambda content: content["annotations"][0]["segmentation"].append([1.0, 2, 3, 4]))
    (outline,) = open_split(config("coco"), tmp_path, "train")[1].objects.outlines
    assert len(outline) == 1


def test_outline__point_as_far_beyond_the_image_as_it_is_long__is_far_along_its_own_side_only():
    outline_of([[0.0, 0, 110, 0, 0, 10]], 40, 60)
    with pytest.raises(ValueError, match="far outside"):
        outline_of([[0.0, 0, 10, 0, 0, 110]], 40, 60)


def test_coco__own_names_of_folders_and_lists__are_read(tmp_path):
    write_coco(tmp_path, names=("pictures", "pictures/val"))
    for split in ("train", "val"):
        list_path(tmp_path, split).rename(tmp_path / f"{split}.json")
    cfg = config(
        "coco",
        **{"train_images": "pictures", "val_images": "pictures/val"},
        **{"train_annotations": "train.json", "val_annotations": "val.json"},
    )
    # A file that is not listed, which a list of one's own may leave out.
    write_jpeg(tmp_path / "pictures" / "more.jpg", (0, 0, 0))
    assert prepared(cfg, tmp_path, tmp_path / "out").splits["train"].objects == 4


def test_coco__grey_pictures__are_seen_in_the_channels_of_the_config(tmp_path):
    write_coco(tmp_path)
    write_jpeg(tmp_path / "train2017" / f"{7:012d}.jpg", 90, (60, 40), mode="L")
    assert open_split(config("coco"), tmp_path, "train")[0].image.mode == "RGB"
    grey = config("coco", channels=1, mean=[0.5], std=[0.5])
    assert open_split(grey, tmp_path, "train")[1].image.mode == "L"


# What is refused


def first(**changes):
    return lambda content: content["annotations"][0].update(changes)


def without(part, key):
    return lambda content: content[part][0].pop(key)


def twice(part):
    return lambda content: content[part].append(content[part][0])


RUNS = {"size": [40, 60], "counts": [2400]}
MISTAKES = {
    "negative width": (first(bbox=[10, 5, -3, 20]), "1 annotations whose bbox has a negative width or height: 11"),
    "not finite": (first(bbox=[10, 5, float("nan"), 2]), "annotations whose bbox is not four finite numbers"),
    "infinite": (first(bbox=[10, 5, float("inf"), 2]), "annotations whose bbox is not four finite numbers"),
    "three numbers": (first(bbox=[10, 5, 3]), "annotations whose bbox is not four finite numbers"),
    "no box": (without("annotations", "bbox"), "annotations whose bbox is not four finite numbers"),
    "outside": (first(bbox=[70, 5, 3, 3]), "annotations whose bbox leaves the image by more than 2 pixels: 11"),
    "sticks out": (first(bbox=[50, 5, 13, 3]), "annotations whose bbox leaves the image by more than 2 pixels"),
    "above": (first(bbox=[5, -3, 13, 3]), "annotations whose bbox leaves the image by more than 2 pixels"),
    "a crowd's box": (first(bbox=[5, -3, 13, 3], iscrowd=1), "annotations whose bbox leaves the image"),
    "short polygons": (first(segmentation=[[1, 2, 3, 4]]), "whose polygons all have fewer than 6 numbers: 11"),
    "odd polygon": (first(segmentation=[[1, 2, 3, 4, 5, 6, 7]]), "with a polygon of an odd number of numbers: 11"),
    "far polygon": (first(segmentation=[[1, 2, 3, 4, 1e9, 6]]), "with a polygon far outside the image: 11"),
    "flat polygon": (first(segmentation=[1, 2, 3, 4, 5, 6]), "segmentation is not a list of polygons"),
    "polygon of text": (first(segmentation=[["1"] * 6]), "segmentation is not a list of polygons"),
    "no polygon": (first(segmentation=[]), "annotations without a segmentation, from which masks are made: 11"),
    "no segmentation": (without("annotations", "segmentation"), "annotations without a segmentation"),
    "run lengths of another size": (first(segmentation={**RUNS, "size": [60, 40]}), "have another size than the image"),
    "too few runs": (first(segmentation={**RUNS, "counts": [7]}), "do not add up to the pixels of the image: 11"),
    "negative runs": (first(segmentation={**RUNS, "counts": [2500, -100]}), "are not whole numbers from 0 on"),
    "runs break off": (first(segmentation={**RUNS, "counts": "T"}), "with compressed run lengths that break off: 11"),
    "no runs": (first(segmentation={"size": [40, 60]}), "run lengths (RLE) are not whole numbers"),
    "negative area": (first(area=-1), "annotations whose area is no finite number from 0 on: 11"),
    "a crowd of 2": (first(iscrowd=2), "annotations whose iscrowd is neither 0 nor 1: 11"),
    "unknown image": (first(image_id=99), "1 annotations of images that are not listed: 11"),
    "unknown category": (first(category_id=2), "1 annotations of categories that are not listed: 11"),
    "text as id": (first(image_id="9"), "annotations without whole numbers `id`, `image_id` and `category_id`"),
    "annotation twice": (twice("annotations"), "1 annotations whose id another one has: 11"),
    "image twice": (twice("images"), "1 images whose id or file_name another one has: 000000000009.jpg"),
    "category twice": (twice("categories"), "1 categories whose id or name another one has: toothbrush"),
    "no width": (without("images", "width"), "images without `id`, `file_name`, `width` and `height`"),
    "no name": (without("categories", "name"), "categories without a whole number `id` and a `name`"),
    "leads out": (lambda content: content["images"][0].update(file_name="../x.jpg"), "leads out of the folder"),
    "other categories": (lambda content: content["categories"][0].update(name="people"), "have other categories"),
    "one category less": (lambda content: content["categories"].pop(1), "train: found 2 categories, expected 3"),
    "missing": (lambda content: content["images"][0].update(file_name="x.jpg"), "1 images of annotations/instances_"),
    "other size": (lambda content: content["images"][1].update(height=41), "found 60x40 pixels, annotations/instanc"),
    "no images": (lambda content: content.pop("images"), "found no list of images; expected an object of images, "),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_coco__mistake_in_the_list__is_refused_with_the_entry(tmp_path, name):
    change, message = MISTAKES[name]
    edit_list(write_coco(tmp_path), change)
    found = refusal(tmp_path)
    assert message in found and "what to do: " in found


def test_coco__several_mistakes__are_reported_at_once(tmp_path):
    write_coco(tmp_path)
    for name in ("negative width", "unknown image"):
        edit_list(tmp_path, MISTAKES[name][0] if name != "unknown image" else unknown_second)
    assert "number of problems: 2" in refusal(tmp_path)


def unknown_second(content):
    content["annotations"][1]["image_id"] = 99


@pytest.mark.parametrize("text", ["", '{"images": [', "[1, 2]", "\xff"], ids=["empty", "cut off", "a list", "no text"])
def test_coco__wrong_json__is_refused(tmp_path, text):
    list_path(write_coco(tmp_path)).write_bytes(text.encode("latin-1"))
    found = refusal(tmp_path)
    assert "annotations/instances_train2017.json: " in found
    assert "truncated or damaged JSON file" in found or "expected an object of images" in found


def test_coco__no_list_and_no_folder__are_refused(tmp_path):
    list_path(write_coco(tmp_path)).unlink()
    shutil.rmtree(tmp_path / "val2017")
    found = refusal(tmp_path)
    assert "annotations/instances_train2017.json: not found" in found and "val2017: folder not found" in found


def test_coco__files_that_no_list_names__are_left_out_and_counted(tmp_path, caplog):
    write_coco(tmp_path)
    expected = len(open_split(config("coco"), tmp_path, "train"))
    for number in range(3):
        (tmp_path / "train2017" / f"extra{number}.jpg").write_bytes(b"never opened")
    with caplog.at_level("INFO"):
        assert len(open_split(config("coco"), tmp_path, "train")) == expected
    assert "train2017: 3 files that annotations/instances_train2017.json does not list are left out" in caplog.text


def test_coco__damaged_picture__is_named(tmp_path):
    path = write_coco(tmp_path) / "train2017" / f"{9:012d}.jpg"
    path.write_bytes(path.read_bytes()[:200])
    assert f"train2017/{9:012d}.jpg: found an image that cannot be decoded" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scale": [2.0, 0.1]}, "two numbers above 0, the smaller one first"),
        ({"train_images": "../elsewhere"}, "a path inside the set's folder"),
        ({"mean": [0.5]}, "mean has 1 values, channels is 3"),
        ({"source": "voc"}, "source: found 'voc'"),
    ],
    ids=str,
)
def test_config__of_a_mistake__is_refused(changes, message):
    with pytest.raises(ConfigError) as caught:
        config("coco", **changes)
    assert message in str(caught.value)


# What prepare keeps


def test_find__after_prepare__has_the_same_objects_and_reads_no_list(tmp_path):
    cfg, out = config("coco"), tmp_path / "results" / "data" / "coco"
    prepared(cfg, write_coco(tmp_path), out)
    for split in ("train", "val"):
        read, found = (open_split(cfg, tmp_path, split, index) for index in (None, out))
        for name in ObjectTable.__dataclass_fields__:
            assert np.array_equal(getattr(read.table, name), getattr(found.table, name)), name
    # An index with other bytes, which nobody else would notice: it is what is read.
    index = out / "val.safetensors"
    index.write_bytes(index.read_bytes()[:40])
    message = message_of(open_split, cfg, tmp_path, "val", out)
    assert "expected an index of objects; run `python -m pipeline prepare" in message


@pytest.mark.parametrize("key", ["bbox", "area", "segmentation", "category_id", "iscrowd", "id"])
def test_fingerprint__any_part_of_an_annotation_changed__is_another_one_and_the_stamp_notices(tmp_path, key):
    cfg, out = config("coco"), tmp_path / "results" / "data" / "coco"
    before = prepared(cfg, write_coco(tmp_path), out)
    other = {"bbox": [10, 5, 20, 21], "area": 401, "category_id": 1, "iscrowd": 1, "id": 77}
    other["segmentation"] = [[10.0, 5.0, 30.0, 5.0, 30.0, 25.0, 10.0, 26.0]]
    edit_list(tmp_path, lambda content: content["annotations"][1].update({key: other[key]}))
    assert "found other file names or labels than were verified" in message_of(open_split, cfg, tmp_path, "train", out)
    assert len(open_split(cfg, tmp_path, "val", out)) == 2
    after = prepared(cfg, tmp_path, out)
    assert after.splits["train"].fingerprint != before.splits["train"].fingerprint
    assert after.splits["val"] == before.splits["val"]


def test_manifest__same_set_elsewhere__has_the_same_bytes(tmp_path):
    cfg, out = config("coco"), tmp_path / "results" / "data" / "coco"
    prepared(cfg, write_coco(tmp_path / "a"), out)
    before = (out / "manifest.json").read_bytes()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    prepared(cfg, tmp_path / "b", out)
    assert (out / "manifest.json").read_bytes() == before


# The real set


def test_config__as_published__has_the_published_counts():
    cfg = data_config("coco")
    without_objects = 1021  # of 118,287: those that have no annotation but crowds
    assert cfg.num_train == 118287 - without_objects and cfg.num_val == 5000 and cfg.num_classes == 80
    assert data_config("coco_256").model_dump(exclude={"image_size"}) == cfg.model_dump(exclude={"image_size"})


@pytest.mark.slow
def test_coco__real_images__are_prepared_with_all_that_is_in_them(coco_mini, tmp_path):
    cfg = data_config("coco", num_train=114, num_val=60)
    train, val = prepared(cfg, coco_mini, tmp_path).splits.values()
    assert (train.objects, train.crowds, val.objects, val.crowds) == (1116, 12, 526, 7)
    assert (train.images_without_objects, val.images_without_objects) == (0, 1)
    assert train.per_class_min >= 1
    assert kind_of(cfg).find(coco_mini, "val", tmp_path).samples.category_ids[-1] == 90


def test_coco__real_images_without_objects__are_left_out(coco_small):
    content = json.loads(list_path(coco_small).read_text())
    owners = {entry["image_id"] for entry in content["annotations"]}
    samples = open_split(data_config("coco", num_train=len(owners), num_val=32), coco_small, "train")
    assert len(content["images"]) == 53 and {samples.image_id(index) for index in range(len(samples))} == owners


@pytest.mark.slow
def test_coco__real_polygons__fill_the_published_boxes(coco_mini):
    """Published boxes are bounds of the polygons, which pixels follow within one, but for the ends of thin tips."""
    samples = open_split(data_config("coco", num_train=114, num_val=60), coco_mini, "val")
    off = []
    for index in range(len(samples)):
        objects = samples.table.objects(index)
        height, width = samples.table.sizes[index]
        for outline, box in zip(objects.outlines, objects.boxes, strict=True):
            published = np.array([box[0], box[1], box[0] + box[2], box[1] + box[3]])
            off.append(abs(bounds(bitmap(outline, height, width)[None])[0] - published).max())
    assert len(off) == 526 and np.median(off) < 0.5 and np.quantile(off, 0.9) < 1 and max(off) < 4
