"""`export`: the encoder of a run in the layout of timm and of the Hub, with a model card."""

import json
from typing import get_args

import bases
import numpy as np
import pytest
import timm
import torch
from every_key import short_run
from PIL import Image
from tiny_runs import PHOTOS, tiny_run
from tiny_vit import build_tiny, tiny_model

from pipeline.cli import main
from pipeline.core.config import merge
from pipeline.core.errors import ConfigError
from pipeline.core.files import digest, write_text
from pipeline.core.registry import TASKS
from pipeline.data.kind import kind_of
from pipeline.engine.loop import build_method
from pipeline.engine.run import resolved_yaml
from pipeline.engine.train import export
from pipeline.export import layout, onnx_file
from pipeline.export.rotary import ratio_for, refuse_other_than_plain_vit
from pipeline.models.places import RotaryKind
from pipeline.results import RunFolder, ScaleFolder
from pipeline.results.records import EvalInputs, EvalResult, Inputs, TrainRecord, write_record

pytestmark = pytest.mark.usefixtures("cpu_site")
FACTS = {"data_fingerprint": "aaaa", "device": "cpu", "precision": "fp32", "commit": "bbbb"}
ROTARY = {
    f"{kind}, {beside}": {"model": {"act_layer": "gelu", "pos_embed": kind, **changes}}
    for kind in get_args(RotaryKind)
    for beside, changes in {
        "alone": {},
        "beside a table": {"add_absolute": True},
        "beside a table, scaled": {"add_absolute": True, "layer_scale": 0.5},
    }.items()
}
ROTARY |= {
    "rope, mean of the patches": {"model": {"act_layer": "gelu", "pos_embed": "rope", "pool": "avg"}},
    "rope, rectangle": {**ROTARY["rope, alone"], "data": {"image_size": [28, 14]}},
    "rope, spoken words": merge(ROTARY["rope_mixed, beside a table"], bases.SOUNDS),
    "rope, beside a table of patches alone": merge(
        ROTARY["rope, beside a table"], {"model": {"arch": "deit3_small_patch16_224"}}
    ),
    "rope, no classifier": merge(bases.MAE, ROTARY["rope_dinov3, alone"]),
}
EXPORTED = {
    "class token": {},
    "mean of the patches": {"model": {"pool": "avg"}},
    "no positions, no classifier": bases.MP3,
    "sin-cos positions": bases.MAE,
    "index table of MJP": {"method": {"name": "mjp", "index": "slots"}},
    "rectangle": {"data": {"image_size": [28, 14]}},
    "Swin": bases.SWIN,
    "Swin without a classifier": bases.DROPPOS_SWIN,
    "ResNet in colour": [bases.CNN, bases.RGB],
    "spoken words": bases.SOUNDS,
    **ROTARY,
}
REFUSED = {
    "BERT": (bases.BERT, "it reads texts"),
    "relative positions": ({"model": {"pos_embed": "relative"}}, "relative positions of this project"),
    "relative beside absolute": ({"model": {"add_relative": True}}, "relative positions of this project"),
    "Swin with positions": ([bases.SWIN, {"model": {"pos_embed": "learn"}}], "a Swin with absolute positions"),
    "rotary with another activation": (
        {"model": {"act_layer": "relu", "pos_embed": "rope"}},
        "the activation gelu and no",
    ),
    "key": ({"method": {"permutation": {"key": "used"}}}, "locked with a key"),
}


def recorded(results, run, files=None, metrics=None, errors=None):
    """The config and the record of a finished run."""
    folder, values = RunFolder(results, run.name), metrics or {"val_top1": 71.25}
    write_text(folder.config, resolved_yaml(run))
    about = {"inputs": Inputs(data="aaaa", init=None), "provenance": FACTS, "files": files or {}}
    write_record(folder.done, TrainRecord(run=run.name, metrics=values, errors=errors or {}, count=40, **about))


def finished(results, run, metrics=None, errors=None):
    """A run with weights that all matter, as training leaves it behind; nothing was trained."""
    method, folder = build_method(run), RunFolder(results, run.name)
    torch.manual_seed(run.seed)
    with torch.no_grad():
        for value in method.state_dict().values():
            if value.is_floating_point():
                value += 0.1 * torch.rand_like(value)
    export(method, folder)
    files = {path.name: digest(path) for path in (folder.encoder, folder.heads)}
    recorded(results, run, files, metrics, errors)
    return method.eval()


@pytest.fixture
def scale(tmp_path, monkeypatch):
    monkeypatch.setattr("pipeline.results.RESULTS", tmp_path / "results")
    return tmp_path / "results" / "demo"


def changed(changes):
    return short_run(*changes) if isinstance(changes, list) else short_run(changes)


@pytest.mark.slow
@pytest.mark.parametrize("kind", EXPORTED)
def test_export__of_every_kind_of_encoder__gives_timm_the_outputs_of_the_run(scale, tmp_path, kind):
    run = changed(EXPORTED[kind])
    method = finished(scale, run)
    assert main(["export", run.name, "--out", str(tmp_path / "out")]) == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"config.json", "model.safetensors", "README.md"}
    model = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
    channels, *size = model.pretrained_cfg["input_size"]
    images = torch.randn(3, channels, *size)
    with torch.no_grad():
        found = model(images)
        close = 1e-5 if kind in ROTARY else 1e-6  # timm adds up a rotation in another order
        assert torch.allclose(found, method.export()(images), rtol=close, atol=close)
        if run.task == "classify":
            assert torch.allclose(found, method.predict(images).logits, rtol=1e-4, atol=1e-4)
    assert found.std() > 1e-3


@pytest.mark.parametrize("kind", REFUSED)
def test_export__of_what_timm_cannot_build__is_refused_with_the_reason(scale, tmp_path, capsys, kind):
    changes, reason = REFUSED[kind]
    run = changed(changes)
    recorded(scale, run)
    assert main(["export", run.name, "--out", str(tmp_path / "out")]) == 1
    assert reason in capsys.readouterr().err and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arch", "found"),
    [
        ("vit_medium_patch16_reg4_gap_256", "no class token, 3 registers"),
        ("vit_base_patch16_clip_224", "a norm before its blocks"),
        ("vit_giant_patch14_dinov2", "gated MLPs"),
    ],
)
def test_rotary_export__of_an_architecture_with_more_than_a_plain_vit__is_refused_with_what_it_has(arch, found):
    encoder = build_tiny(tiny_model(arch=arch, pos_embed="rope"))
    with pytest.raises(ConfigError, match=f"its architecture {arch} has {found}"):
        refuse_other_than_plain_vit(encoder, arch)


@pytest.mark.parametrize(("hidden", "width"), [(54, 49), (402, 400), (1536, 384)])
def test_ratio_for__any_hidden_width__gives_it_back_when_timm_multiplies(hidden, width):
    assert int(width * ratio_for(hidden, width)) == hidden


def test_export__encoder_that_timm_computes_in_another_way__is_refused_and_nothing_is_left(
    scale, tmp_path, capsys, monkeypatch
):
    run = tiny_run()
    finished(scale, run)
    arguments = layout.timm_arguments
    monkeypatch.setattr(layout, "timm_arguments", lambda *given: arguments(*given) | {"act_layer": "gelu"})
    assert main(["export", run.name, "--out", str(tmp_path / "out")]) == 1
    assert "loads the encoder of" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir() if "out" in path.name] == []


def test_export__into_a_folder_that_exists__is_refused(scale, tmp_path, capsys):
    (tmp_path / "out").mkdir()
    assert main(["export", "any", "--out", str(tmp_path / "out")]) == 1
    assert "exists and is never overwritten" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("eval_crop", [0.875, 1.0])
def test_export__view_of_images__is_that_of_validation(scale, tmp_path, eval_crop):
    run = tiny_run(PHOTOS, {"data": {"eval_crop": eval_crop, "mean": [0.4, 0.5, 0.6]}})
    finished(scale, run)
    assert main(["export", run.name, "--out", str(tmp_path / "out")]) == 0
    model = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True)
    view = timm.data.create_transform(**timm.data.resolve_data_config(model.pretrained_cfg), is_training=False)
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 60, 3), dtype=np.uint8))
    pixels, _ = kind_of(run.data).eval_view()((image, 0))
    expected, _ = TASKS.get("classify")(run.data, torch.device("cpu")).eval_batch(pixels[None], torch.zeros(1))
    assert torch.allclose(view(image), expected[0], atol=1e-5)


@pytest.mark.slow
def test_card__tells_what_it_is_its_numbers_and_how_to_load_it(scale, tmp_path):
    run = tiny_run()
    finished(scale, run, {"val_top1": 71.25, "val_loss": 0.5}, {"val_top1": 1.43})
    assert main(["export", run.name, "--out", str(tmp_path / "mine")]) == 0
    card = (tmp_path / "mine" / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: timm\npipeline_tag: image-classification\n")
    assert "| validation after training | val_top1 | 71.25 | 1.4 (40) | not known |" in card
    assert "| validation after training | val_loss | 0.5 | not known | not known |" in card
    assert "Licence of the data: MIT" in card and "120 train and 40 validation images" in card
    assert 'timm.create_model("local-dir:mine", pretrained=True)' in card
    assert f"`{run.name}`" in card and "commit bbbb" in card


def test_card__own_images__leaves_their_licence_to_whoever_publishes(scale, tmp_path):
    run = tiny_run(PHOTOS)
    finished(scale, run)
    main(["export", run.name, "--out", str(tmp_path / "mine")])
    assert "Licence of the data: not known here" in (tmp_path / "mine" / "README.md").read_text()


def evaluation(scale, name, run, weights, value):
    inputs = EvalInputs(weights={"model": weights}, data={})
    given = {"evaluation": "classify", "subjects": {"model": run}, "data": {}, "files": {}, "provenance": {}}
    write_record(
        ScaleFolder(scale).evaluation(name).result,
        EvalResult(metrics={"top1": value}, errors={"top1": 2.5}, count=10, inputs=inputs, **given),
    )


@pytest.mark.slow
def test_card__numbers__are_those_of_these_weights_with_what_seeds_do(scale, tmp_path):
    for seed, value in enumerate((70.0, 72.0, 74.0)):
        run = tiny_run({"seed": seed})
        finished(scale, run, {"val_top1": value})
    finished(scale, tiny_run({"optim": {"epochs": 2}}), {"val_top1": 10.0})  # another recipe is no other seed
    own = digest(RunFolder(scale, run.name).encoder)
    evaluation(scale, "classify-11111111", run.name, own, 69.5)
    evaluation(scale, "classify-22222222", run.name, "0" * 64, 1.5)  # of weights from before
    assert main(["export", run.name, "--out", str(tmp_path / "mine")]) == 0
    card = (tmp_path / "mine" / "README.md").read_text()
    assert "| val_top1 | 74 | not known | 2 over 3 seeds, mean 72 |" in card
    assert "| classify | top1 | 69.5 | 2.5 (10) | not known |" in card and "1.5" not in card.split("## Numbers")[1]


@pytest.mark.slow
def test_card__numbers_of_a_finetuned_run__have_the_seeds_of_those_that_started_from_other_seeds(scale, tmp_path):
    for seed, value in enumerate((70.0, 74.0)):
        start = tiny_run({"seed": seed, "optim": {"epochs": 2}})
        finished(scale, start)
        run = tiny_run({"seed": seed, "init": start.name})
        finished(scale, run, {"val_top1": value})
    assert main(["export", run.name, "--out", str(tmp_path / "mine")]) == 0
    assert "| val_top1 | 74 | not known | 2.8 over 2 seeds, mean 72 |" in (tmp_path / "mine" / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, *(ROTARY[f"{kind}, beside a table, scaled"] for kind in get_args(RotaryKind))])
def test_export__with_onnx__is_what_torch_computes_for_any_batch(scale, tmp_path, capsys, changes):
    onnxruntime = pytest.importorskip("onnxruntime")

    run = changed(changes)
    method = finished(scale, run)
    assert main(["export", run.name, "--out", str(tmp_path / "out"), "--onnx"]) == 0
    assert "onnxruntime gives torch's outputs" in capsys.readouterr().out
    session = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx", providers=["CPUExecutionProvider"])
    for count in (1, 5):
        images = torch.randn(count, 1, 28, 28)
        (found,) = session.run(None, {"images": images.numpy()})
        with torch.no_grad():
            assert torch.allclose(torch.as_tensor(found), method.export()(images), rtol=1e-4, atol=1e-5)
    # The same file, asked for equality to the last bit: it would not be kept.
    with pytest.MonkeyPatch.context() as patch, pytest.raises(onnx_file.CheckpointError, match="nothing was written"):
        patch.setattr(onnx_file, "ROUNDING", 0.0)
        onnx_file.compare(method.export(), torch.randn(2, 1, 28, 28), tmp_path / "out" / "model.onnx")


def test_export__with_onnx_without_its_packages__says_what_to_install(scale, tmp_path, capsys, monkeypatch):
    run = tiny_run()
    finished(scale, run)
    monkeypatch.setattr(onnx_file, "find_spec", lambda name: None if name == "onnxscript" else name)
    assert main(["export", run.name, "--out", str(tmp_path / "out"), "--onnx"]) == 1
    said = capsys.readouterr().err
    assert "onnxscript not found" in said and "patchwork-pipeline[onnx]" in said and not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, ROTARY["rope_dinov3, beside a table"]], ids=["plain", "rotary"])
def test_export__evaluated_as_a_model_of_timm__is_seen_as_its_config_says(scale, tmp_path, capsys, changes):
    """What is exported here is read here: sizes, view and classes come from the folder."""
    run = tiny_run(PHOTOS, {"data": {"eval_crop": 1.0, "mean": [0.4, 0.5, 0.6]}}, changes)
    finished(scale, run)
    main(["export", run.name, "--out", str(tmp_path / "out")])
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    for name in ("ant", "bee"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        Image.new("RGB", (40, 30), "red" if name == "ant" else "blue").save(tmp_path / "photos" / name / "1.png")
    capsys.readouterr()
    arguments = ["--model", config["architecture"], "--weights", str(tmp_path / "out" / "model.safetensors")]
    assert main(["evaluate", *arguments, "--data", str(tmp_path / "photos"), "--scale", "demo"]) == 0
    said = capsys.readouterr().out
    assert "seen as 3 x 28 x 28, mean 0.4, 0.5, 0.6, std 0.25, 0.25, 0.25 (of config.json)" in said
    assert config["num_classes"] == 2
