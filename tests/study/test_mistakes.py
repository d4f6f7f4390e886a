"""Every mistake a user can make in a config ends in one message that names the file and the key."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.cli import main
from pipeline.config import CONFIGS, names
from pipeline.errors import ConfigError
from pipeline.site import load_site
from pipeline.study.graph import load_graph

STUDY, EXPECTED, DEMO = "study/mjp.yaml", "expected/mjp.yaml", "scale/demo.yaml"
MJP, FASHION = "method/mjp.yaml", "data/fashion_mnist.yaml"
REPOSITORY = Path(__file__).resolve().parents[2]
FIRST_HOLDS = '"mjp.t4.b-no-pe:consistency == 100"'

# what is wrong -> file, text, text put in its place, and the beginning of the one line that must come out
MISTAKES = {
    "key of a method": (
        MJP,
        "shuffle_ratio:",
        "shufle_ratio:",
        f"{MJP}: method.shufle_ratio: unknown key; did you mean 'shuffle_ratio'?",
    ),
    "key of a data set": (
        FASHION,
        "hflip",
        "hfilp",
        f"{FASHION}: data.augment.hfilp: unknown key; did you mean 'hflip'?",
    ),
    "key in set": (
        STUDY,
        "pos_embed: none",
        "pos_embd: none",
        f"{STUDY}: runs.b.set: model.pos_embd: unknown key; did you mean 'pos_embed'?",
    ),
    "key of a scale": (
        DEMO,
        "replace_model",
        "replace_modle",
        f"{DEMO}: replace_modle: unknown key; did you mean 'replace_model'?",
    ),
    "key of a scale's run": (
        DEMO,
        "warmup_epochs: 0.5",
        "warmup_epoch: 0.5",
        f"{DEMO}: run: optim.warmup_epoch: unknown key; did you mean 'warmup_epochs'?",
    ),
    "key of a scale's evaluation": (
        DEMO,
        "classify: {shuffle_ratio",
        "classify: {shufle_ratio",
        f"{DEMO}: eval.classify: shufle_ratio: unknown key",
    ),
    "key of a common recipe": (
        STUDY,
        "\nrecipes:",
        "\ncommon: {optim: {wheight_decay: 0.05}}\n\nrecipes:",
        f"{STUDY}: common: optim.wheight_decay: unknown key; did you mean 'weight_decay'?",
    ),
    "key of a table": (
        STUDY,
        "title: Which",
        "noet: x\n    title: Which",
        f"{STUDY}: tables.t4.noet: unknown key; did you mean 'note'?",
    ),
    "key of a column": (
        STUDY,
        "direction: up, tolerance: 0.4",
        "direction: up, tolerence: 0.4",
        f"{STUDY}: tables.t4.columns.1.delta_top1.tolerence: unknown key; did you mean 'tolerance'?",
    ),
    "key of a run": (
        STUDY,
        "a: {label: DeiT-S,",
        "a: {lable: x, label: DeiT-S,",
        f"{STUDY}: runs.a.lable: unknown key; did you mean 'label'?",
    ),
    "wrong type": (
        DEMO,
        "epochs: 4\n",
        "epochs: five\n",
        f"{DEMO}: run: optim.epochs: found 'five'; input should be a valid integer",
    ),
    "wrong choice": (
        STUDY,
        "{dal: linear}",
        "{dal: liner}",
        f"{STUDY}: runs.i.set: method.dal: found 'liner'; input should be 'none', 'pca', 'linear' or 'nonlinear'",
    ),
    "out of range": (
        MJP,
        "shuffle_ratio: 0.03",
        "shuffle_ratio: 3",
        f"{MJP}: method.shuffle_ratio: found 3; input should be less than or equal to 1",
    ),
    "decimal comma": (
        EXPECTED,
        "16.21",
        "16,21",
        f"{EXPECTED}: rows.mjp.t1.deit-s.21.[key]: found 21; input should be a valid string",
    ),
    "number that is text": (
        EXPECTED,
        "16.21",
        "16.21%",
        f"{EXPECTED}: rows.mjp.t1.deit-s.diff_norm: found '16.21%'; input should be a valid number",
    ),
    "no such method": (
        STUDY,
        "set: {method: {dal: linear}}",
        "method: mjpp",
        f"{STUDY}: runs.i.method: no method 'mjpp'; did you mean 'mjp'?",
    ),
    "no such model": (
        STUDY,
        "a: {label: DeiT-S, method: supervised, model: deit_s,",
        "a: {label: DeiT-S, method: supervised, model: deit_m,",
        f"{STUDY}: runs.a.model: no model 'deit_m'; did you mean 'deit_s'?",
    ),
    "no such data": (
        STUDY,
        "a: {label: DeiT-S, method: supervised, model: deit_s, data: imagenet1k,",
        "a: {label: DeiT-S, method: supervised, model: deit_s, data: imagenet2k,",
        f"{STUDY}: runs.a.data: no data 'imagenet2k'; did you mean 'imagenet1k'?",
    ),
    "unknown method name": (
        MJP,
        "name: mjp",
        "name: mjpp",
        f"{MJP}: method.name: method 'mjpp' is unknown; did you mean 'mjp'?",
    ),
    "no method name": (MJP, "  name: mjp\n", "", f"{MJP}: method.name: "),
    "method name is a list": (MJP, "name: mjp", "name: [mjp]", f"{MJP}: method.name: "),
    "method is no mapping": (
        "method/supervised.yaml",
        "method:\n  name: supervised",
        "method: supervised",
        "method/supervised.yaml: method: found 'supervised', expected a mapping",
    ),
    "evaluation name": (
        "eval/classify.yaml",
        "name: classify",
        "name: clasify",
        "eval/classify.yaml: name: evaluation 'clasify' is unknown; did you mean 'classify'?",
    ),
    "scale's evaluation": (
        DEMO,
        "classify: {",
        "clasify: {",
        f"{DEMO}: eval: no eval 'clasify'; did you mean 'classify'?",
    ),
    "scale replaces nothing": (
        DEMO,
        "deit_s: vit_demo",
        "deit_ss: vit_demo",
        f"{DEMO}: replace_model: no model 'deit_ss'; did you mean 'deit_s'?",
    ),
    "scale replaces by nothing": (
        DEMO,
        "deit_s: vit_demo",
        "deit_s: vit_dmo",
        f"{DEMO}: replace_model.deit_s: no model 'vit_dmo'; did you mean 'vit_demo'?",
    ),
    "micro-batch": (
        DEMO,
        "micro_batch: 50",
        "micro_batch: 7",
        f"{DEMO}: run: optim.global_batch: global_batch 50 is not a multiple of micro_batch 7",
    ),
    "warm-up": (
        DEMO,
        "warmup_epochs: 0.5",
        "warmup_epochs: 5",
        f"{DEMO}: run: optim.warmup_epochs: warmup_epochs 5.0 must be below epochs 4",
    ),
    "batch above the data": (
        DEMO,
        "global_batch: 50",
        "global_batch: 5050",
        f"{DEMO}: run: optim.global_batch: optim.global_batch 5050 exceeds data.num_train 5000; "
        f"data.num_train is in configs/{FASHION}",
    ),
    "odd micro-batch with mixup": (
        STUDY,
        "{pos_embed: none}",
        "{pos_embed: none}, optim: {micro_batch: 25}, data: {augment: {mixup: 1}}",
        f"{STUDY}: runs.b.set: optim.micro_batch: mixup and cutmix pair images",
    ),
    "patch": (
        "model/vit_demo.yaml",
        "patch_size: 4",
        "patch_size: 5",
        "model/vit_demo.yaml: model.patch_size: model.patch_size 5 does not divide data.image_size 28; "
        f"data.image_size is in configs/{FASHION}",
    ),
    "source": (
        FASHION,
        "source: fashion_mnist",
        "source: fashion",
        f"{FASHION}: data.source: found 'fashion'; unknown source; did you mean 'fashion_mnist'?",
    ),
    "init of no run": (
        STUDY,
        "a: {label: DeiT-S,",
        "a: {init: j15, label: DeiT-S,",
        f"{STUDY}: runs.a.init: no run 'j15'; did you mean 'j015'?",
    ),
    "init of itself": (
        STUDY,
        "a: {label: DeiT-S,",
        "a: {init: a, label: DeiT-S,",
        f"{STUDY}: runs.a.init: runs start from each other: a -> a; break the cycle",
    ),
    "init in set": (STUDY, "{pos_embed: none}", "{pos_embed: none}, init: a", f"{STUDY}: runs.b.set: init: "),
    "metric of training": (
        STUDY,
        "metric: params_m",
        "metric: parms_m",
        f"{STUDY}: column_sets.params_m.params_m.metric: train has no metric 'parms_m'; did you mean 'params_m'?",
    ),
    "column's evaluation": (
        STUDY,
        "eval: train",
        "eval: trian",
        f"{STUDY}: column_sets.params_m.params_m.eval: no eval 'trian'",
    ),
    "two sources of a column": (
        STUDY,
        "delta: top1",
        "eval: classify, delta: top1",
        f"{STUDY}: tables.t4.columns.1.delta_top1.eval: found eval, delta, against; give eval and metric, ",
    ),
    "half a source of a column": (
        STUDY,
        "delta: top1, ",
        "",
        f"{STUDY}: tables.t4.columns.1.delta_top1.against: found against; give",
    ),
    "delta of no column": (
        STUDY,
        "delta: top1",
        "delta: top2",
        f"{STUDY}: tables.t4.columns.1.delta_top1.delta: no measured column 'top2'; did you mean 'top1'?",
    ),
    "delta of itself": (
        STUDY,
        "delta: top1",
        "delta: delta_top1",
        f"{STUDY}: tables.t4.columns.1.delta_top1.delta: no measured column 'delta_top1'",
    ),
    "against no row": (
        STUDY,
        "against: a-deit-s",
        "against: a-deit",
        f"{STUDY}: tables.t4.columns.1.delta_top1.against: no row 'a-deit'; did you mean 'a-deit-s'?",
    ),
    "row of no run": (
        STUDY,
        "run: d}\n      g003",
        "run: dd}\n      g003",
        f"{STUDY}: tables.t3.rows.g000.run: no run 'dd'",
    ),
    "row without numbers": (
        STUDY,
        "      b-no-pe:",
        "      k: {label: K, run: j}\n      b-no-pe:",
        f"{STUDY}: tables.t4.rows.k: configs/{EXPECTED} has no row 'mjp.t4.k'; did you mean 'mjp.t4.",
    ),
    "number of no column": (
        EXPECTED,
        "mjp.t4.d-dal-nln: {",
        "mjp.t4.d-dal-nln: {top5: 95, ",
        f"{EXPECTED}: rows.mjp.t4.d-dal-nln.top5: the table has no such column; did you mean 'top1'?",
    ),
    "headline of no table": (
        STUDY,
        "t3: [g003",
        "t99: [g003",
        f"{STUDY}: headline.t99: no table or figure 't99'; did you mean 't",
    ),
    "headline of no row": (
        STUDY,
        "t3: [g003",
        "t3: [g033",
        f"{STUDY}: headline.t3: no row 'g033'; did you mean 'g003'?",
    ),
    "metric of no column": (
        STUDY,
        "g000: {label",
        "g000: {metrics: {top2: top1}, label",
        f"{STUDY}: tables.t3.rows.g000.metrics.top2: rows.g000.metrics.top2 names no column; did you mean 'top1'?",
    ),
    "weights that are trained nowhere": (
        STUDY,
        "a: {label: DeiT-S,",
        "a: {train: false, label: DeiT-S,",
        f"{STUDY}: runs.a.train: init is None, and train: false evaluates a weight file; write init: file:<path>",
    ),
    "no seeds": (STUDY, "\nrecipes:", "\nseeds: 0\n\nrecipes:", f"{STUDY}: seeds: found 0; input should be greater"),
    "short form of a run": (
        STUDY,
        "a: {label: DeiT-S,",
        "a: {allong: [x], label: DeiT-S,",
        f"{STUDY}: runs.a.allong: unknown key; did you mean 'along'?",
    ),
    "table's name": (
        STUDY,
        "  t4:\n",
        "  claims:\n",
        f"{STUDY}: tables.claims.[key]: found 'claims'; the key of a table begins with t, such as t3",
    ),
    "figure's name": (
        STUDY,
        "  f6:\n",
        "  curves:\n",
        f"{STUDY}: figures.curves.[key]: found 'curves'; the key of a figure begins with f, such as f3",
    ),
    "table without rows": (
        STUDY,
        "    rows:\n      shuffled: {label: Shuffled more and more}",
        "    rows: {}",
        f"{STUDY}: figures.f2.rows: dictionary should have at least 1 item",
    ),
    "picture in a table": (
        STUDY,
        "metric: params_m,",
        "file: params.png,",
        f"{STUDY}: column_sets.params_m.params_m.file: a table shows numbers; put pictures into a figure of",
    ),
    "zero on a logarithmic axis": (
        STUDY,
        "DeiT-S with and without MJP\n    kind: lines\n",
        "DeiT-S with and without MJP\n    kind: lines\n    log_x: true\n",
        f"{STUDY}: figures.f3a.log_x: columns.at_00 has x 0.0, and log_x needs numbers above 0",
    ),
    "levels of a figure without lines": (
        STUDY,
        "curve: val_top1\n",
        "curve: val_top1\n    levels: [deit-s]\n",
        f"{STUDY}: figures.f6.levels: levels and log_x are for kind: lines; found kind: curves",
    ),
    "curve that nobody logs": (
        STUDY,
        "curve: val_top1\n",
        "curve: val_topp1\n",
        f"{STUDY}: figures.f6.curve: training logs no 'val_topp1'; did you mean 'val_top1'?",
    ),
    "curve of no run": (
        STUDY,
        "top-1 (%)\n    rows:\n      deit-s: {label: DeiT-S, run: a}\n",
        "top-1 (%)\n    rows:\n      deit-s: {label: DeiT-S}\n",
        f"{STUDY}: figures.f6.rows.deit-s: no run for the curve; name one in `run`, or the reason in `why`",
    ),
    "claim on a picture": (
        STUDY,
        FIRST_HOLDS,
        '"mjp.f2.shuffled:shuffled > 1"',
        f"{STUDY}: claims.c01.holds: no cell mjp.f2.shuffled:shuffled: mjp.f2 shows pictures or curves, which are no",
    ),
    "claim on no row": (
        STUDY,
        FIRST_HOLDS,
        '"mjp.t4.b-no:consistency == 100"',
        f"{STUDY}: claims.c01.holds: no cell mjp.t4.b-no:consistency: no row 'mjp.t4.b-no'; "
        "did you mean 'mjp.t4.b-no-pe'?",
    ),
    "claim on no column": (
        STUDY,
        FIRST_HOLDS,
        '"mjp.t4.b-no-pe:consistancy == 100"',
        f"{STUDY}: claims.c01.holds: no cell mjp.t4.b-no-pe:consistancy: no column 'consistancy'; "
        "did you mean 'consistency'?",
    ),
    "claim with code": (STUDY, FIRST_HOLDS, "\"__import__('os').getpid() > 0\"", f"{STUDY}: claims.c01.holds: "),
    "claim on nothing": (STUDY, FIRST_HOLDS, '"1 < 2"', f"{STUDY}: claims.c01.holds: '1 < 2' names no cell"),
    "claim that asks min of one": (
        STUDY,
        FIRST_HOLDS,
        '"min(mjp.t4.b-no-pe:top1) > 1"',
        f"{STUDY}: claims.c01.holds: ",
    ),
    "YAML": (STUDY, "\nruns:", "\nruns: [", f"{STUDY}: not valid YAML: "),
    "key written twice": (
        STUDY,
        "\nclaims:",
        "\ntitle: x\n\nclaims:",
        f"{STUDY}: title: written a second time in line ",
    ),
}


@pytest.mark.parametrize(("file", "old", "new", "line"), MISTAKES.values(), ids=MISTAKES.keys())
def test_check__one_mistake__is_one_line_that_names_file_and_key(project, capsys, file, old, new, line):
    project.edit(file, old, new)

    code = main(["check", "--scale", "demo"])

    output = capsys.readouterr()
    assert (code, output.out) == (1, "")
    assert output.err.startswith(f"ConfigError: configs/{line}")
    # The set of known classes has the model, and nearly the images, of the whole one: some mistakes are made in both.
    _, *others = output.err.splitlines()
    assert [text for text in others if "fashion_mnist_known" not in text] == []


def test_check__mistyped_key_that_is_required__names_both_the_wrong_and_the_missing(project):
    project.edit(FASHION, "num_train", "num_trian")

    assert [line.split("; ")[0] for line in project.problems()] == [
        f"configs/{FASHION}: data.num_train: required, not given",
        f"configs/{FASHION}: data.num_trian: unknown key",
    ]


def test_check__runs_that_start_from_each_other__are_one_line_with_the_cycle(project):
    project.edit(STUDY, "  e: {like: j,", "  e: {like: j, init: g,")
    project.edit(STUDY, "  g: {like: j,", "  g: {like: j, init: i,")
    project.edit(STUDY, "  i: {like: j,", "  i: {like: j, init: e,")

    (line,) = project.problems()

    assert line.startswith(f"configs/{STUDY}: runs.e.init: runs start from each other: e -> g -> i -> e;")


def test_check__mistakes_in_several_files__come_all_at_once(project):
    project.edit(MJP, "dal_weight", "dal_wait")
    project.edit(DEMO, "epochs: 4\n", "epochs: 0\n")
    project.edit(STUDY, "b: {like: a,", "b: {like: a, init: zz,")
    project.edit(STUDY, "metric: params_m", "metric: parms_m")
    project.edit(STUDY, FIRST_HOLDS, '"mjp.t4.b-no-pe:consistency"')
    project.edit(EXPECTED, "mjp.t3.g000: {", "mjp.t3.g000: {top5: 1, ")

    places = [": ".join(line.split(": ")[:2]) for line in project.problems()]
    assert sorted(places) == [
        f"configs/{EXPECTED}: rows.mjp.t3.g000.top5",
        f"configs/{MJP}: method.dal_wait",
        f"configs/{DEMO}: run",
        f"configs/{STUDY}: claims.c01.holds",
        f"configs/{STUDY}: column_sets.params_m.params_m.metric",
        f"configs/{STUDY}: runs.b.init",
    ]


def test_check__files_that_do_not_parse__are_all_named(project):
    project.edit(DEMO, "comparable", "comparible")
    project.edit(STUDY, "\ntitle:", "\ntitel:")
    (project.configs / EXPECTED).write_text("rows: [")

    files = [line.split(": ")[0] for line in project.problems()]

    assert list(dict.fromkeys(files)) == [f"configs/{DEMO}", f"configs/{STUDY}", f"configs/{EXPECTED}"]


def test_check__run_that_starts_from_a_wrong_one__adds_no_line_of_its_own(project):
    project.edit(STUDY, "e: {like: j, label: DeiT-S + JP, ", "e: {like: j, init: b, label: DeiT-S + JP, ")
    project.edit(STUDY, "pos_embed: none", "pos_embd: none")

    (line,) = project.problems()

    assert line.startswith(f"configs/{STUDY}: runs.b.set: model.pos_embd: unknown key")


def test_check__no_such_scale__names_the_nearest(project, capsys):
    assert main(["check", "--scale", "dmo"]) == 1
    assert capsys.readouterr().err.startswith("ConfigError: configs/scale/dmo.yaml: no such file; did you mean 'demo'?")


def test_check__valid_configs__says_what_would_run(project, capsys):
    assert main(["check", "--scale", "demo"]) == 0

    graph = load_graph("demo")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:-1]] == list(graph.runs)
    assert lines[-1].startswith(f"scale demo: configs are valid: {len(graph.runs)} runs, ")


@pytest.mark.slow
def test_check__in_a_process_of_its_own__ends_in_one_message_without_traceback(tmp_path):
    for folder in ("configs", "pipeline"):
        shutil.copytree(REPOSITORY / folder, tmp_path / folder, ignore=shutil.ignore_patterns("*.gz"))
    path = tmp_path / "configs" / MJP
    path.write_text(path.read_text().replace("dal_weight", "dal_wait"))

    command = [sys.executable, "-m", "pipeline", "check"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)

    assert (result.returncode, result.stdout) == (1, "")
    assert re.fullmatch(r"ConfigError: configs/method/mjp\.yaml: method\.dal_wait: unknown key; .*\n", result.stderr)


# The site


def test_site__mistyped_key__names_file_key_and_nearest(project, capsys):
    project.edit("site/local.yaml", "checkpoint_s", "checkpoints_s")

    assert main(["train", "--run", "any"]) == 1
    assert capsys.readouterr().err.startswith(
        "ConfigError: configs/site/local.yaml: checkpoints_s: unknown key; did you mean 'checkpoint_s'?"
    )


def test_site__named_by_the_environment_but_not_there__names_the_nearest(project, monkeypatch):
    monkeypatch.setenv("PATCHWORK_SITE", "slrum")

    with pytest.raises(ConfigError, match=r"configs/site/slrum\.yaml: no such file; did you mean 'slurm'\?"):
        load_site()


@pytest.mark.parametrize("site", names(CONFIGS / "site"))
def test_site__every_one_we_ship__is_sound(site, monkeypatch):
    monkeypatch.setenv("PATCHWORK_SITE", site)

    assert load_site().processes >= 1


def test_site__relative_and_home_folders__become_absolute(project, monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("SCRATCH", "/scratch")
    project.edit("site/local.yaml", "data: {}", "data: {a: images, b: ~/images, c: $SCRATCH/images}")

    assert load_site().data == {
        "a": project.root / "images",
        "b": Path("/home/someone/images"),
        "c": Path("/scratch/images"),
    }
