"""`attack`: one image, recovered from the gradient of a training step on it, by command."""

import json
import os
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import ExifTags, Image
from safetensors.torch import save_file
from tiny_runs import build_trainer, publish, tiny_run
from trusted_archives import unpack

from pipeline.cli import main
from pipeline.core.files import write_text
from pipeline.engine.run import resolved_yaml
from pipeline.launch import gpus
from pipeline.launch.gpus import holders
from pipeline.privacy import matching
from pipeline.privacy.april import reason_other_algebra

# 49 tokens of 16 pixels each: with a width of 64 every equation of APRIL has one solution.
SOLVABLE = {"model": {"patch_size": 4, "embed_dim": 64}}
WITHOUT_LPIPS = "device: cpu\nthreads: 1\n"


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A machine without a GPU and without weights for LPIPS."""
    path = tmp_path / "site.yaml"
    path.write_text(WITHOUT_LPIPS)
    monkeypatch.setenv("PATCHWORK_SITE", str(path))
    return path


@pytest.fixture(scope="module")
def photograph(tmp_path_factory):
    """Smooth colours with a bright square, wider than high."""
    y, x = np.mgrid[0:1:200j, 0:1:260j]
    pixels = np.stack([x, y, 1 - x], axis=2) * 200
    pixels[60:120, 90:150] += 50
    path = tmp_path_factory.mktemp("image") / "square.png"
    Image.fromarray(pixels.astype(np.uint8)).save(path)
    return path


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Of timm's smallest ViTs, plain, with registers and distilled, and of a residual network."""
    folder = tmp_path_factory.mktemp("weights")
    for name in ("test_vit", "test_vit2", "test_resnet", "deit_tiny_distilled_patch16_224"):
        torch.manual_seed(0)
        model = timm.create_model(name, num_classes=7)
        save_file(
            {key: value.contiguous() for key, value in model.state_dict().items()}, folder / f"{name}.safetensors"
        )
    return folder


@pytest.fixture
def runs(results, images, tmp_path, monkeypatch):
    """Three runs of one scale whose weights are exported; nothing has been trained."""
    monkeypatch.setattr("pipeline.results.RESULTS", tmp_path)
    scale = results.rename(tmp_path / "demo")
    protected = {"optim": {"protection": {"noise": 0.1}}}
    pretrained = {"method": {"name": "mp3"}, "model": {"pos_embed": "none"}}
    made = [build_trainer(tiny_run(SOLVABLE, change), scale, images) for change in ({}, protected, pretrained)]
    for trainer in made:
        publish(trainer)
        write_text(trainer.paths.config, resolved_yaml(trainer.run))
    return [trainer.run for trainer in made]


def attack(model, image, *more, kind="april"):
    return main(["attack", "--model", str(model), "--image", str(image), "--attack", kind, *map(str, more)])


def test_attack__on_a_machine_with_gpus__holds_one_as_other_jobs_do(tmp_path, monkeypatch, capsys):
    def attack_images(request, site):
        yield f"on {os.environ[gpus.VISIBLE]}, held by {holders()[0].job}"

    (tmp_path / "gpus.yaml").write_text("gpus: [3]\n")
    monkeypatch.setattr(gpus, "LOCKS", tmp_path / "locks")
    monkeypatch.setattr(gpus, "_found_gpus", dict)
    monkeypatch.setattr("pipeline.standalone.attack.attack_images", attack_images)
    monkeypatch.setenv("PATCHWORK_SITE", str(tmp_path / "gpus.yaml"))
    for name in (gpus.VISIBLE, "CUDA_DEVICE_ORDER"):  # both are as they were afterwards
        monkeypatch.setenv(name, "3")
    assert attack("test_vit", "square.png") == 0
    assert capsys.readouterr().out == "on 3, held by test_vit\n" and holders() == []


def pixels(path):
    return np.asarray(Image.open(path), dtype=float) / 255


def psnr(folder, one="recovered", other="original"):
    return -10 * np.log10(np.mean((pixels(folder / f"{one}.png") - pixels(folder / f"{other}.png")) ** 2))


@pytest.mark.slow
def test_attack__on_a_run__recovers_its_image_and_says_what_the_attacker_had(runs, site, photograph, tmp_path, capsys):
    assert attack(runs[0].name, photograph, "--label", 3) == 0
    folder = tmp_path / "attacks" / f"{runs[0].name}-square-april"
    found = json.loads((folder / "numbers.json").read_text())
    said = capsys.readouterr().out
    assert pixels(folder / "original.png").shape == (28, 28)  # grey, in the size of the run's images
    assert found["metrics"]["psnr"] > 50 and found["metrics"]["ssim"] > 0.999
    assert (found["label"], found["label_is_predicted"]) == (3, False)
    assert "float64" in found["given"] and f"has {found['given']}" in said
    assert "for this attack, the norm and the skip connections of the model's first block were removed" in said
    assert found["provenance"]["device"] == "cpu" and found["seconds"] > 0
    assert found["metrics"]["lpips"] is None and "images of 28 px are too small for AlexNet" in said
    assert f"PSNR {found['metrics']['psnr']:.2f} dB" in said and said.rstrip().endswith(str(folder))
    assert sorted(path.name for path in folder.iterdir()) == [
        *("ceiling.png", "comparison.png", "numbers.json", "original.png", "recovered.png")
    ]


@pytest.mark.slow
def test_attack__on_a_run_whose_clients_protect_their_gradients__sees_protected_ones(runs, site, photograph, tmp_path):
    out = [tmp_path / "bare", tmp_path / "protected"]
    for run, folder in zip(runs[:2], out, strict=True):
        assert attack(run.name, photograph, "--out", folder, "--label", 1) == 0
    found = [json.loads((folder / "numbers.json").read_text()) for folder in out]
    assert found[1]["protection"]["noise"] == 0.1
    assert found[0]["metrics"]["psnr"] > 30 + found[1]["metrics"]["psnr"]
    assert found[0]["ceiling"]["psnr"] == pytest.approx(found[1]["ceiling"]["psnr"], abs=1)


@pytest.mark.slow
def test_attack__on_a_timm_model__comes_to_the_ceiling_of_its_equations(site, weights, photograph, tmp_path, capsys):
    out = tmp_path / "out"
    code = attack("test_vit", photograph, "--weights", weights / "test_vit.safetensors", "--out", out)
    assert code == 0
    found, said = json.loads((out / "numbers.json").read_text()), capsys.readouterr().out
    assert pixels(out / "original.png").shape == (160, 160, 3)
    assert found["metrics"]["psnr"] == pytest.approx(psnr(out), abs=1e-6)
    assert found["ceiling"]["psnr"] == pytest.approx(psnr(out, "ceiling"), abs=1e-6)
    assert found["metrics"]["psnr"] == pytest.approx(found["ceiling"]["psnr"], abs=0.01)
    assert found["metrics"]["rank"] == 64  # equations for 100 patches
    # Without a label it is the model's own prediction, which timm makes, too.
    torch.manual_seed(0)
    model = timm.create_model("test_vit", num_classes=7).eval()
    stated = timm.data.resolve_data_config(model.pretrained_cfg)
    seen = timm.data.create_transform(**stated)(Image.open(photograph))
    with torch.no_grad():
        expected = int(model(seen[None]).argmax())
    assert found["label"] == expected and found["label_is_predicted"]
    assert f"{expected}, which the model predicts: no --label was given" in said


@pytest.mark.slow
def test_attack__on_a_photograph_that_was_turned__attacks_it_as_it_was_taken(site, weights, photograph, tmp_path):
    """As `evaluate` sees it."""
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    with Image.open(photograph) as upright:
        upright.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "turned.png", exif=exif)
    for image in (photograph, tmp_path / "turned.png"):
        more = "--weights", weights / "test_vit.safetensors", "--out", tmp_path / image.stem
        assert attack("test_vit", image, *more) == 0
    seen = [pixels(tmp_path / name / "original.png") for name in ("square", "turned")]
    assert np.array_equal(*seen)


@pytest.mark.slow
def test_attack__on_several_images__gives_each_a_folder(site, weights, photograph, tmp_path, capsys):
    other = shutil.copy(photograph, tmp_path / "square.png")
    files = [photograph, other]
    out = tmp_path / "out"
    code = main(
        [
            *("attack", "--model", "test_vit", "--weights", str(weights / "test_vit.safetensors")),
            *("--image", *map(str, files), "--label", "0", "6", "--attack", "april", "--out", str(out)),
        ]
    )
    assert code == 0 and capsys.readouterr().out.count("recovered  PSNR") == 2
    labels = [json.loads((out / name / "numbers.json").read_text())["label"] for name in ("square-1", "square-2")]
    assert labels == [0, 6]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("test_resnet", "test_resnet is not a plain ViT"),
        ("test_vit2", "this model differs: it has"),
        ("deit_tiny_distilled_patch16_224", "this model differs: it is a VisionTransformerDistilled"),
        ("test_vitt", "timm has no architecture 'test_vitt'; did you mean 'test_vit'"),
    ],
)
def test_attack__on_what_it_is_not_for__says_so(site, weights, photograph, tmp_path, capsys, name, words):
    file = weights / f"{name}.safetensors"
    assert attack(name, photograph, "--out", tmp_path / "out", *(["--weights", file] if file.exists() else [])) == 1
    assert words in capsys.readouterr().err and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "words"), [({}, ""), ({"pre_norm": True}, "norm_pre stands before its first block")]
)
def test_april__on_tokens_that_are_normalised_first__is_refused(changes, words):
    reason = reason_other_algebra(timm.create_model("test_vit", **changes))
    assert words in reason and bool(words) == bool(reason)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["cosine", "gradvit"])
def test_attack__by_search__draws_its_way_and_says_how_far_it_came(runs, site, photograph, tmp_path, capsys, kind):
    out = tmp_path / "out"
    assert attack(runs[0].name, photograph, "--label", 3, "--iterations", 20, "--out", out, kind=kind) == 0
    found, said = json.loads((out / "numbers.json").read_text()), capsys.readouterr().out
    assert {path.name for path in out.iterdir()} == {
        *("comparison.png", "loss.png", "numbers.json", "original.png", "recovered.png")
    }
    assert found["config"]["iterations"] == 20 and found["config"]["batch"] == 1
    assert (found["config"]["registration"] > 0) == (kind == "gradvit")
    assert found["metrics"]["psnr"] == pytest.approx(psnr(out), abs=1e-6)
    assert found["metrics"]["label_accuracy"] == 100 and "label 3, which is right" in said
    mean = np.full((28, 28), round(255 * 0.286) / 255)  # of the run's data
    blank = -10 * np.log10(np.mean((pixels(out / "original.png") - mean) ** 2))
    assert found["metrics"]["blank_psnr"] == pytest.approx(blank, abs=1e-6)
    assert f"distance {found['metrics']['gradient_distance']:.3g} after 20 iterations" in said


@pytest.mark.slow
def test_attack__by_search__longer__comes_closer(runs, site, photograph, tmp_path):
    distances = []
    for iterations in (2, 40):
        out = tmp_path / str(iterations)
        assert attack(runs[0].name, photograph, "--iterations", iterations, "--out", out, kind="cosine") == 0
        distances.append(json.loads((out / "numbers.json").read_text())["metrics"]["gradient_distance"])
    assert distances[1] < 0.8 * distances[0]


@pytest.mark.slow
def test_attack__by_search__stopped_and_started_again__continues(runs, site, photograph, tmp_path, monkeypatch):
    more = "--iterations", 10, "--label", 1, "--out"
    assert attack(runs[0].name, photograph, *more, tmp_path / "whole", kind="cosine") == 0
    advance, calls = matching.Attack.advance, []

    def stopping(self, state, steps):
        calls.append(state.step)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return advance(self, state, steps)

    monkeypatch.setattr(matching.Attack, "advance", stopping)
    assert attack(runs[0].name, photograph, *more, tmp_path / "stopped", kind="cosine") == 75
    assert not (tmp_path / "stopped" / "numbers.json").exists()
    assert attack(runs[0].name, photograph, *more, tmp_path / "stopped", kind="cosine") == 0
    assert calls[3] == calls[2] > 0 and not (tmp_path / "stopped" / "parts").exists()
    whole, continued = (pixels(tmp_path / name / "recovered.png") for name in ("whole", "stopped"))
    assert np.array_equal(whole, continued)


@pytest.mark.slow
def test_attack__iterations_that_cannot_be__are_refused(runs, site, photograph, capsys):
    assert attack(runs[0].name, photograph, "--iterations", 5) == 1
    assert "--iterations is for cosine and gradvit" in capsys.readouterr().err
    assert attack(runs[0].name, photograph, "--iterations", 0, kind="cosine") == 1
    assert "command line: iterations" in capsys.readouterr().err


@pytest.mark.slow
def test_attack__on_a_run_that_is_not_there__lists_those_that_are(runs, site, photograph, capsys):
    assert attack("mjp-of-tomorrow", photograph) == 1
    error = capsys.readouterr().err
    assert "no finished run has a name that begins or ends with 'mjp-of-tomorrow'" in error
    assert all(run.name in error for run in runs)


@pytest.mark.slow
def test_attack__on_a_pretraining__says_that_it_does_not_classify(runs, site, photograph, capsys):
    assert attack(runs[2].name, photograph) == 1
    assert "does not classify images" in capsys.readouterr().err


@pytest.mark.slow
def test_attack__with_weights_for_a_run__is_refused(runs, site, photograph, capsys):
    assert attack(runs[0].name, photograph, "--weights", "x.pth") == 1
    assert "is a run and has its own" in capsys.readouterr().err


@pytest.mark.slow
def test_attack__on_weights_without_a_classifier__says_what_is_missing(site, weights, photograph, tmp_path, capsys):
    model = timm.create_model("test_vit", num_classes=0)
    save_file({key: value.contiguous() for key, value in model.state_dict().items()}, tmp_path / "x.safetensors")
    assert attack("test_vit", photograph, "--weights", tmp_path / "x.safetensors") == 1
    assert "has no head.weight; expected the weights of a classifier" in capsys.readouterr().err


@pytest.mark.parametrize(("content", "words"), [(None, "not found"), (b"not an image", "could not be read")])
def test_attack__on_a_file_that_is_no_image__is_one_message(site, tmp_path, capsys, content, words):
    path = tmp_path / "x.png"
    if content:
        path.write_bytes(content)
    assert attack("test_vit", path) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"DataError: --image {path} {words}") and error.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("labels", "words"), [(["7"], "has the classes 0 to 6"), (["1", "2"], "2 values for 1 images")]
)
def test_attack__with_labels_that_cannot_be__is_one_message(site, weights, photograph, tmp_path, capsys, labels, words):
    more = "--weights", weights / "test_vit.safetensors", "--out", tmp_path / "out", "--label", *labels
    assert attack("test_vit", photograph, *more) == 1
    assert words in capsys.readouterr().err and not (tmp_path / "out").exists()


@pytest.mark.slow
def test_attack__into_a_folder_that_cannot_be_written__is_one_message(site, weights, photograph, tmp_path, capsys):
    (tmp_path / "out").write_text("a file is in the way")
    more = "--weights", weights / "test_vit.safetensors", "--out", tmp_path / "out"
    assert attack("test_vit", photograph, *more) == 1
    assert f"could not write {tmp_path / 'out'}" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.data
def test_attack__on_a_photograph__also_tells_lpips(site, weights, tmp_path, capsys):
    folder = Path(os.environ.get("PATCHWORK_DATA", ""))
    if not (folder / "lpips-alexnet").is_dir():
        pytest.skip("PATCHWORK_DATA does not name the development data")
    site.write_text(f"{WITHOUT_LPIPS}lpips: {folder / 'lpips-alexnet/alexnet_features.safetensors'}\n")
    name = "imagenet-samples-256/n01440764/n01440764_tench.JPEG"
    with tarfile.open(folder / "imagenet-samples-256/imagenet-samples-256.tar") as archive:
        unpack(archive, tmp_path, [archive.getmember(name)])
    out = tmp_path / "out"
    assert attack("test_vit", tmp_path / name, "--weights", weights / "test_vit.safetensors", "--out", out) == 0
    found = json.loads((out / "numbers.json").read_text())
    assert found["metrics"]["lpips"] == pytest.approx(found["ceiling"]["lpips"], abs=0.01)
    assert found["metrics"]["lpips"] > 0.5 and "LPIPS 1." in capsys.readouterr().out
