"""The study that `describe` writes for a set of one's own, and what runs on images without labels are refused."""

import pytest
import yaml

from pipeline.core.config import CONFIGS, Layers, read_yaml
from pipeline.core.errors import ConfigError
from pipeline.data.kind import parse_data
from pipeline.models.foreign import ForeignView
from pipeline.standalone.evaluated_set import own_set
from pipeline.study import starter
from pipeline.study.resolve import draft
from pipeline.study.resolve.graph import build_graph
from pipeline.study.starter import CPU, GPU, new_study, patch_size, study_name, study_text

COLOUR = {"channels": 3, "mean": [0.5] * 3, "std": [0.2] * 3}
PHOTOS = {
    "name": "photos",
    "kind": "unlabelled",
    "image_size": 64,
    "num_train": 365,
    "num_val": 41,
    "val_share": 0.1,
    **COLOUR,
}
PETS = {"name": "pets", "source": "folder", "image_size": 96, "num_classes": 3, "num_train": 90, "num_val": 9, **COLOUR}
OBJECTS = {**read_yaml(CONFIGS / "data/fashion_scenes_coco.yaml")["data"], "name": "boxes"}
VIEW = ForeignView(64, 3, (0.5,) * 3, (0.2,) * 3, 1.0, "bicubic")
COLUMNS = {"top1": ("classify", "top1"), "knn": ("knn", "knn_last"), "linear": ("linear_probe", "top1")}


def data(content, **changes):
    return parse_data(Layers(("test", {**content, **changes})))


@pytest.fixture
def mine(project):
    """Two described sets, and no study but those that a test writes."""
    for path in (project.configs / "study").glob("*.yaml"):
        path.unlink()
    for content in (PHOTOS, PETS):
        project.write(f"data/{content['name']}.yaml", {"data": content})
    return project


def runs_of(graph):
    return {run.label: run for run in graph.runs.values()}


# The study


@pytest.mark.slow
def test_study__of_images_without_labels__pretrains_on_them_and_finetunes_on_the_labelled_set(mine):
    (mine.configs / "study/photos.yaml").write_text(study_text("photos", data(PHOTOS), data(PETS), GPU))
    graph = build_graph("own")
    runs = runs_of(graph)
    assert {label for label, run in runs.items() if run.data == "photos"} == {"MP3", "DropPos", "MAE"}
    for name in ("MP3", "DropPos", "MAE"):
        finetuned = runs[f"{name}, finetuned"]
        assert finetuned.data == "pets" and graph.runs[finetuned.init].label == name
        assert finetuned.config["data"]["image_size"] == 64 and finetuned.config["model"]["patch_size"] == 8
    assert (
        set(graph.tables) == {"photos.t1", "photos.t2", "photos.f1", "photos.f2"} and len(graph.claims["photos"]) == 3
    )
    cells = graph.tables["photos.t1"].rows["photos.t1.mp3"].cells
    assert not cells["positions"].why


@pytest.mark.slow
@pytest.mark.parametrize(("content", "trained", "tables"), [(PHOTOS, 3, 1), (PETS, 7, 2)])
def test_study__of_one_set__has_what_its_labels_allow(mine, content, trained, tables):
    (mine.configs / "study/own.yaml").write_text(study_text("own", data(content), None, GPU))
    graph = build_graph("own")
    assert {run.data for run in graph.runs.values()} == {content["name"]} and len(graph.runs) == trained
    assert len([key for key in graph.tables if ".t" in key]) == tables


@pytest.mark.parametrize(
    ("size", "patch"), [(224, 16), (256, 16), (96, 8), (64, 8), (32, 4), (28, 4), (100, 10), ([28, 14], 2), (6, 2)]
)
def test_patch_size__divides_the_image_near_the_usual_one(size, patch):
    assert patch_size(size) == patch


def test_patch_size__prime_side__asks_for_another_size():
    with pytest.raises(ConfigError, match=r"227 px have no patch size .* another --image-size, such as 224"):
        patch_size(227)


@pytest.mark.parametrize(
    ("machine", "images", "epochs", "batch"),
    [
        *((GPU, 16, 400, 4), (GPU, 365, 400, 64), (GPU, 5_000, 200, 256), (GPU, 1_281_167, 50, 256)),
        *((CPU, 16, 100, 4), (CPU, 365, 80, 32), (CPU, 5_000, 10, 32)),
    ],
)
def test_study__epochs_and_batches__follow_from_the_number_of_images(machine, images, epochs, batch):
    study = yaml.safe_load(study_text("own", data(PHOTOS, num_train=images), None, machine))
    optim = study["recipes"]["pretrain"]["optim"]
    assert (optim["epochs"], optim["global_batch"], optim["micro_batch"]) == (epochs, batch, batch)


@pytest.mark.parametrize(
    ("of", "labelled", "text"),
    [
        (PETS, PHOTOS, "--labelled photos: pets has labels itself"),
        (PHOTOS, PHOTOS | {"name": "more"}, "--labelled more: its images have no labels"),
        (PHOTOS, PETS | {"channels": 1, "mean": [0.5], "std": [0.2]}, "has 1 channels, photos has 3"),
        (OBJECTS, None, "boxes is of kind detection, and --study writes studies of images with classes or without"),
        (PHOTOS | {"num_train": 15}, None, "has 15 train images, expected 16 or more"),
    ],
)
def test_study__sets_that_do_not_fit__are_refused(of, labelled, text):
    with pytest.raises(ConfigError, match=text):
        study_text("own", data(of), data(labelled) if labelled else None, GPU)


def test_study__that_is_there__is_kept_if_edited_and_never_replaced_if_it_is_not_from_here(tmp_path, monkeypatch):
    monkeypatch.setattr(starter, "CONFIGS", tmp_path)
    path, text = new_study(data(PHOTOS), None, GPU, force=False)
    assert path == tmp_path / "study/photos.yaml"
    path.parent.mkdir()
    path.write_text(text)
    assert new_study(data(PHOTOS), None, GPU, force=False) == (path, text)
    path.write_text(text.replace("epochs: 400", "epochs: 4"))
    with pytest.raises(ConfigError, match="use --force"):
        new_study(data(PHOTOS), None, GPU, force=False)
    assert new_study(data(PHOTOS), None, GPU, force=True)[1] == text
    path.write_text("title: A paper\n")
    with pytest.raises(ConfigError, match="did not write it"):
        new_study(data(PHOTOS), None, GPU, force=True)


@pytest.mark.parametrize(("name", "study"), [("photos", "photos"), ("My-Photos", "my_photos"), ("all", "all_study")])
def test_study_name__of_a_data_set__is_a_name_of_a_target(name, study):
    assert study_name(name) == study


# Images without labels in studies


def table_of(columns):
    return {
        "label": "Table 1",
        "title": "T",
        "columns": {key: {"label": key, "eval": name, "metric": metric} for key, (name, metric) in columns.items()},
        "rows": {
            "pre": {"label": "p", "run": "pre", "paper": False},
            "fine": {"label": "f", "run": "fine", "paper": False},
        },
    }


def write_study(project, runs, columns):
    common = {"model": {"patch_size": 8}, "data": {"image_size": 64}, "optim": {"global_batch": 8, "micro_batch": 8}}
    pre = {
        "label": "pre",
        "method": "mp3",
        "model": "vit_demo",
        "data": "photos",
        "set": {"model": {"pos_embed": "none"}},
    }
    runs = {"pre": pre, "fine": {**pre, "label": "fine", "method": "supervised", "data": "pets", "init": "pre"}, **runs}
    study = {"title": "T", "scales": ["demo"], "common": common, "runs": runs, "tables": {"t1": table_of(columns)}}
    project.write("study/toy.yaml", study)


@pytest.mark.slow
def test_supervised__on_images_without_labels__is_refused_with_the_run_and_the_way_out(mine):
    wrong = {"label": "x", "method": "supervised", "model": "vit_demo", "data": "photos"}
    write_study(mine, {"wrong": wrong, "mjp": {**wrong, "method": "mjp"}}, COLUMNS)
    lines = mine.problems()
    assert len(lines) == 2 and all("toy.yaml: runs." in line for line in lines)
    assert (
        "runs.wrong: (top): the images of photos have no labels, and supervised learns from labels; pretrain on photos"
        in lines[0]
    )
    assert "give mjp a labelled set" in lines[1]


@pytest.mark.slow
def test_evaluations__that_need_labels__do_not_apply_to_a_run_on_images_without(mine):
    write_study(mine, {}, {**COLUMNS, "probe": ("position_probe", "position_top1")})
    rows = build_graph("demo").tables["toy.t1"].rows
    why = "the images of photos have no labels; evaluate a run that is finetuned on a labelled set"
    found = {key: cell.why for key, cell in rows["toy.t1.pre"].cells.items()}
    assert found == {"top1": "method mp3 does not classify", "knn": why, "linear": why, "probe": ""}
    assert {cell.why for cell in rows["toy.t1.fine"].cells.values()} == {""}


@pytest.mark.slow
def test_sets__without_labels__are_refused_where_an_evaluation_or_a_made_set_needs_them(mine):
    mine.write("eval/classify_on.yaml", {"name": "classify_on", "data": {"test": "photos"}})
    write_study(mine, {}, {"other": ("classify_on", "top1")})
    (line,) = mine.problems()
    assert "data.test: the images of photos have no labels, and classify_on needs them" in line
    mine.edit("data/fashion_mnist_c.yaml", "made_from: fashion_mnist", "made_from: photos")
    write_study(mine, {}, {"c": ("corruptions", "error")})
    (line,) = mine.problems()
    assert "data.made_from: the images of photos have no labels" in line


def test_evaluate__timm_model_on_images_without_labels__is_refused(mine, monkeypatch):
    monkeypatch.setattr(draft, "CONFIGS", mine.configs)
    with pytest.raises(ConfigError, match="photos is of kind unlabelled; expected images with classes"):
        own_set("photos", VIEW)


def test_evaluate__timm_model_on_a_set_that_describe_split__takes_its_validation_images(mine, monkeypatch):
    mine.write("data/pets.yaml", {"data": {**PETS, "val_share": 0.1}})
    monkeypatch.setattr(draft, "CONFIGS", mine.configs)
    found = own_set("pets", VIEW)
    assert (found.splits, found.num_val, found.val_share, found.folder_name) == (("val",), 9, 0.1, "pets")
    with pytest.raises(ConfigError, match="nothing to split"):
        data(PETS, val_share=0.1, num_train=0)
