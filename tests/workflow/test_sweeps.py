"""Sweeps and `--config set=...` through Snakemake, on a finished project: what is shared is not trained again."""

import pytest
from small import EPOCHS

pytestmark = pytest.mark.slow


def test_sweep__over_a_value_that_is_finished__draws_its_table_and_figure_and_trains_nothing(done):
    over = ("--over", f"optim.epochs={EPOCHS}", "--name", "again")
    planned = done.run("python", "-m", "pipeline", "sweep", "mjp.a", *over, "-n")
    assert planned.returncode == 0 and "train_run" not in planned.stdout + planned.stderr
    assert not (done.root / "configs/study/sweep_again.yaml").exists()

    result = done.run("python", "-m", "pipeline", "sweep", "mjp.a", *over)

    assert result.returncode == 0, result.stdout + result.stderr
    assert "Finished jobid" in result.stderr and "train_run" not in result.stderr
    table = done.read("results/demo/tables/all/sweep_again.t1.json")
    (row,) = table["rows"]
    run = done.read(f"results/demo/runs/{row['cells']['value']['run']}/train.json")
    assert row["cells"]["value"]["ours"] == run["metrics"]["val_top1"]
    lines = result.stdout.splitlines()
    value = f"{run['metrics']['val_top1']:.2f} (1 seed)"
    (best,) = [line for line in lines if "<- highest" in line]
    assert best.startswith(f"epochs {EPOCHS}  ") and value in best
    assert lines[-1] == "picture: results/demo/figures/all/sweep_again.f1.svg" and (done.root / lines[-1][9:]).exists()
    assert done.jobs("sweep_again") == {}


def test_set__of_one_call__makes_tables_of_its_own_and_leaves_the_study_fresh(done):
    file = done.root / "results/demo/tables/all/mjp.t4.json"
    assert done.snakemake("mjp_table4").returncode == 0
    before = file.read_bytes()
    jobs = done.jobs("mjp_table4", "--config", "set={optim: {base_lr: 2e-3}}")
    assert (jobs["train_run"], jobs["draw_table"]) == (3, 1)
    assert [*done.root.glob("configs/study/mjp_*")] == []  # a dry run writes none

    result = done.snakemake("mjp_table4", "--config", f"set={{optim: {{epochs: {EPOCHS}}}}}")  # as it was

    assert result.returncode == 0, result.stdout + result.stderr
    (study,) = done.root.glob("configs/study/mjp_epochs_*.yaml")
    assert f"# mjp with optim.epochs {EPOCHS}, made by " in study.read_text() and "train_run" not in result.stderr
    assert f"{study.stem}, Table 4" in result.stdout and "\nmjp, Table 4" not in result.stdout
    changed = done.read(f"results/demo/tables/all/{study.stem}.t4.json")
    assert [row["cells"]["top1"]["ours"] for row in changed["rows"]] == [
        row["cells"]["top1"]["ours"] for row in done.read("results/demo/tables/all/mjp.t4.json")["rows"]
    ]
    assert file.read_bytes() == before and done.jobs("mjp_table4") == {}


def test_set__mistyped_key__is_one_message(done):
    result = done.snakemake("mjp", "-n", "--config", "set={optim: {epochz: 1}}")
    said = result.stdout + result.stderr
    assert result.returncode == 1 and "--config set: optim.epochz: unknown key; did you mean 'epochs'?" in said
    assert "Traceback" not in said and "Building DAG" not in said
