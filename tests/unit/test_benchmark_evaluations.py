"""The benchmark of evaluations: they run for real, beside the forward pass alone, and the table is Markdown."""

import json
import sys

import pytest
import yaml
from benchmark_script import load_benchmark

evaluations = load_benchmark("evaluations")
# 16 patches of an image of 64 px; of the smallest ViT of the project's own, the forward pass is most of the time.
MINI = {"model": {"name": "mini", "arch": "vit_tiny_patch16_224", "embed_dim": 16, "depth": 1, "num_heads": 2}}


@pytest.mark.slow
def test_main__on_a_cpu__measures_every_evaluation_and_the_forward_pass(tmp_path, monkeypatch, capsys):
    (tmp_path / "mini.yaml").write_text(yaml.safe_dump(MINI))
    model = str(tmp_path / "mini")
    options = {"device": "cpu", "model": model, "count": 200, "workers": 0, "rounds": 2, "views": "device"}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    monkeypatch.setattr(sys, "argv", ["evaluations.py", *words, "--out", str(tmp_path / "out.json")])
    evaluations.main()
    written = json.loads((tmp_path / "out.json").read_text())
    assert [each["name"] for each in written["evaluations"]] == [*evaluations.CASES]
    assert [each["passes"] for each in written["evaluations"]] == [1, 2, 2, 1]
    forward = written["forward"]["images_per_s"]
    for each in written["evaluations"]:
        assert (each["model"], each["image_size"], each["batch"], each["count"]) == (model, 64, 128, 200)
        assert each["ratio"] == pytest.approx(each["passes"] * each["steady_images_per_s"] / forward)
        assert each["images_per_s"] > 0 and each["start_s"] >= 0
    header, rule, *rows = capsys.readouterr().out.splitlines()[-6:]
    assert {each.count("|") for each in (header, rule, *rows)} == {9} and len(rows) == 4


def test_options__count_that_severities_cannot_share__is_refused(capsys):
    with pytest.raises(SystemExit):
        evaluations.parse_options(["--count", "30"])
    assert "expected a multiple of 200" in capsys.readouterr().err
