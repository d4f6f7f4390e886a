"""`evaluate` and `attack` by command: a user's own ViT on a user's own folder of images."""

import json

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

from pipeline.cli import main

ARCH, SIDE = "vit_tiny_patch16_224", 24
SIZES = {"embed_dim": 16, "depth": 1, "num_heads": 2}
GIVEN = [word for key, value in SIZES.items() for word in ("--set", f"{key}={value}")]
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
pytestmark = pytest.mark.usefixtures("cpu_site")


@pytest.fixture(autouse=True)
def results(tmp_path, monkeypatch):
    monkeypatch.setattr("pipeline.results.RESULTS", tmp_path / "results")


def own_vit():
    torch.manual_seed(0)
    model = timm.create_model(ARCH, img_size=SIDE, patch_size=8, num_classes=3, **SIZES).eval()
    with torch.no_grad():
        model.head.weight.normal_(std=0.5)
    return model


@pytest.fixture
def weights(tmp_path):
    save_file(own_vit().state_dict(), tmp_path / "mine.safetensors")
    return tmp_path / "mine.safetensors"


@pytest.fixture
def photos(tmp_path):
    """Class folders with images of the size that the model sees."""
    draw = np.random.default_rng(0)
    for name in ("ant", "bee", "cat"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(4):
            pixels = draw.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{number}.png")
    return tmp_path / "photos"


def evaluate(weights, data, *more):
    return main(["evaluate", "--model", ARCH, "--weights", str(weights), "--data", str(data), *GIVEN, *more])


def own_accuracy(photos, mean, std):
    """Plain timm, on every image of the folder."""
    right = []
    for label, folder in enumerate(sorted(photos.iterdir())):
        for file in folder.iterdir():
            pixels = torch.tensor(np.asarray(Image.open(file)) / 255).float().permute(2, 0, 1)
            inputs = (pixels - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
            with torch.no_grad():
                right.append(int(own_vit()(inputs[None]).argmax()) == label)
    return 100 * float(np.mean(right))


@pytest.mark.slow
def test_evaluate__own_vit_on_own_folder__gives_the_accuracy_of_plain_timm(weights, photos, tmp_path, capsys):
    """The crop of the architecture would cut a border off: config.json says that there is none."""
    (tmp_path / "config.json").write_text(json.dumps({"architecture": ARCH, "pretrained_cfg": {"crop_pct": 1.0}}))
    told = "--mean", *map(str, MEAN), "--std", *map(str, STD)
    for more, mean, std, source in (
        ((), (0.5,) * 3, (0.5,) * 3, f"timm's for {ARCH}"),
        (told, MEAN, STD, "as given"),
    ):
        assert evaluate(weights, photos, *more) == 0
        said = capsys.readouterr().out.splitlines()
        assert "img_size 24" in said[0] and "patch_size 8" in said[0] and "3 classes" in said[0]
        assert "12 of 3 classes, seen as 3 x 24 x 24" in said[1] and said[1].endswith(f"({source})")
        assert "0 ant, 1 bee, 2 cat" in said[2]
        (top1,) = (float(line.split()[2]) for line in said if line.split()[:2] == ["classify", "top1"])
        assert top1 == pytest.approx(own_accuracy(photos, mean, std), abs=0.01)


@pytest.mark.slow
def test_evaluate__folder_that_changed__is_looked_at_again(weights, photos, capsys):
    assert evaluate(weights, photos) == 0
    (photos / "bee" / "0.png").unlink()
    capsys.readouterr()
    assert evaluate(weights, photos) == 0
    said = capsys.readouterr().out
    assert "11 of 3 classes" in said and "11 images" in said


@pytest.mark.slow
def test_evaluate__folder_with_other_classes__says_what_applies(weights, photos, capsys):
    (photos / "cat").rename(photos / "bee" / "cat")
    for file in (photos / "bee" / "cat").iterdir():
        file.rename(photos / "ant" / f"cat-{file.name}")
    (photos / "bee" / "cat").rmdir()
    assert evaluate(weights, photos, "classify", "consistency") == 0
    said = capsys.readouterr().out
    assert "n/a: the model has 3 classes" in said and "has 2; expected the same" in said
    assert "consistency      consistency" in said


@pytest.mark.slow
def test_evaluate__with_a_train_split__sets_a_share_of_each_class_aside(weights, photos, capsys):
    assert evaluate(weights, photos, "--train", "knn") == 0
    assert "3 of 3 classes" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "more", "words"),
    [
        ("photos", ["--set", "img_size=48"], "img_size: found 24, expected 48"),
        ("photos", ["--set", "img_size"], "expected KEY=VALUE, such as img_size=96"),
        ("photos", ["--resample-positions"], "add --set img_size=N"),
        ("photos", ["--mean", "0.5"], "--mean is given without the other"),
        ("photos", ["--mean", "0.5", "--std", "0.5"], "--mean has 1 values, the model has 3 channels"),
        ("absent", [], "found no such folder, nor a file of configs/data"),
        ("fashion_mnsit", [], "did you mean 'fashion_mnist'?"),
        ("spoken_words", [], "is of kind audio; expected images"),
        ("photos/ant", [], "no class folders found"),
    ],
)
def test_evaluate__what_cannot_be__is_one_message(weights, photos, capsys, monkeypatch, data, more, words):
    monkeypatch.chdir(photos.parent)
    assert evaluate(weights, data, *more) == 1
    assert words in capsys.readouterr().err


def test_evaluate__folder_without_classes__says_what_is_expected_and_what_needs_none(weights, photos, capsys):
    (photos / "loose.jpg").touch()
    assert evaluate(weights, photos) == 1
    message = capsys.readouterr().err
    assert "found 1 images outside class folders: loose.jpg" in message
    assert "expected: <class>/, or val/<class>/, with PNG, JPEG" in message and "--image FILE" in message


@pytest.mark.slow
def test_evaluate__config_json_that_contradicts_the_file__is_refused(weights, photos, tmp_path, capsys):
    config = {"architecture": ARCH, "num_classes": 4, "model_args": SIZES | {"patch_size": 8}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert evaluate(weights, photos) == 1
    assert "3 by its tensors, 4 by config.json" in capsys.readouterr().err


@pytest.mark.slow
def test_evaluate__folders_in_another_order_than_the_outputs__are_refused(weights, photos, tmp_path, capsys):
    config = {"architecture": ARCH, "label_names": ["bee", "ant", "cat"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert evaluate(weights, photos) == 1
    assert "found ant, bee, cat, expected bee, ant, cat" in capsys.readouterr().err


@pytest.mark.slow
def test_evaluate__image_size_that_is_asked_for__resamples_and_says_so(weights, photos, capsys):
    assert evaluate(weights, photos, "--set", "img_size=48", "--resample-positions") == 0
    said = capsys.readouterr().out
    assert "positions        resampled 3x3 -> 6x6, as asked" in said and "seen as 3 x 48 x 48" in said


def test_evaluate__job_with_arguments_of_a_model__is_refused(capsys):
    assert main(["evaluate", "--job", "some-job", "--data", "photos"]) == 1
    assert "are for --model" in capsys.readouterr().err


def attack(weights, *more):
    return main(["attack", "--model", ARCH, "--weights", str(weights), *GIVEN, "--attack", "april", *map(str, more)])


@pytest.mark.slow
def test_attack__own_vit_on_own_folder__sees_images_in_the_size_of_the_file(weights, photos, tmp_path, capsys):
    out = tmp_path / "out"
    assert attack(weights, "--data", photos, "--count", 2, "--out", out) == 0
    said = capsys.readouterr().out
    assert said.count("img_size 24") == 2 and said.count("seen as    3 x 24 x 24") == 2
    found = [json.loads((out / f"0-{number}" / "numbers.json").read_text()) for number in (1, 2)]
    assert [each["label"] for each in found] == [0, 1]  # one of each class in turn
    assert Image.open(out / "0-1" / "original.png").size == (SIDE, SIDE)
    assert attack(weights, "--data", photos, "--label", 2, "--out", out) == 0  # in place of that of its folder
    assert json.loads((out / "numbers.json").read_text())["label"] == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "words"),
    [
        ([], "give the images to attack"),
        (["--data", "photos", "--image", "photos/ant/0.png"], "either --image FILE, or --data"),
        (["--image", "photos/ant/0.png", "--count", 2], "together with --data"),
        (["--data", "fashion_mnist"], "has no image files"),
        (["--data", "photos", "--set", "img_size=48"], "img_size: found 24, expected 48"),
    ],
)
def test_attack__what_cannot_be__is_one_message(weights, photos, tmp_path, monkeypatch, capsys, more, words):
    monkeypatch.chdir(tmp_path)
    assert attack(weights, *more) == 1
    assert words in capsys.readouterr().err
