"""The graph as a user meets it: real Snakemake, real training, real reruns."""

import json
import os
import re
import signal
import subprocess
import time

import pytest

LOCAL = ("--profile", "workflow/profiles/local")


@pytest.fixture(scope="module")
def done(small_project):
    """The small project after `snakemake demo`, stopped once in the middle of training."""
    interrupted = interrupt_training(small_project)
    result = small_project.snakemake("demo", *LOCAL)
    assert result.returncode == 0, result.stdout + result.stderr
    small_project.interrupted = interrupted
    return small_project


def interrupt_training(project):
    """Ctrl-C, as a terminal sends it, once a checkpoint is there; returns the runs that were cut short."""
    project.edit("configs/site/local.yaml", "checkpoint_s: 15", "checkpoint_s: 0.2")
    process = subprocess.Popen(
        ["snakemake", "demo", *LOCAL],
        cwd=project.root,
        env=project.env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    state = project.root / "results/demo/state"
    deadline = time.monotonic() + 300
    while not list(state.glob("*/step-*.pt")) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    process.wait(timeout=120)
    folders = [path.parent for path in state.glob("*/step-*.pt")]
    return {
        path.name for path in folders if not (project.root / "results/demo/runs" / path.name / "train.json").exists()
    }


@pytest.mark.slow
def test_interrupted_demo__started_again__continues_from_its_checkpoints(done):
    assert done.interrupted, "no run was cut short"
    for run in done.interrupted:
        record = json.loads((done.root / f"results/demo/runs/{run}/train.json").read_text())
        assert record["provenance"]["resumed_at_step"] > 0
        lines = map(json.loads, (done.root / f"results/demo/runs/{run}/metrics.jsonl").open())
        assert [line["step"] for line in lines if "loss" in line] == [10, 20, 30, 36]


@pytest.mark.slow
def test_demo__second_time__does_nothing(done):
    assert done.jobs("demo", *LOCAL) == {}


@pytest.mark.slow
def test_demo__summary__shows_table_claims_time_and_report(done):
    text = done.run("python", "-m", "pipeline", "summary", "--scale", "demo").stdout
    ours = json.loads((done.root / "results/demo/tables/headline/mjp.t1.json").read_text())
    top1 = ours["rows"][0]["cells"]["top1"]["ours"]
    assert f"{top1:.1f} (79.8)" in text
    assert re.search(r"claims of mjp at scale demo: \d+ true, \d+ false, \d+ undecided", text)
    assert re.search(r"train_run \d+ s in 3 jobs", text)
    assert text.rstrip().endswith("report: results/demo/report/headline.html")


@pytest.mark.slow
def test_change__comment_in_config_and_code__reruns_nothing(done):
    for file in (
        "configs/study/mjp.yaml",
        "configs/method/mjp.yaml",
        "pipeline/methods/mjp.py",
        "pipeline/engine/loop.py",
    ):
        path = done.root / file
        path.write_text(path.read_text() + "\n# a comment\n")
    assert done.jobs("demo", *LOCAL) == {}


@pytest.mark.slow
def test_change__tolerance__redraws_that_table_only(done):
    study = done.root / "configs/study/mjp.yaml"
    before = study.read_text()
    try:
        study.write_text(before.replace("tolerance: 0.4", "tolerance: 0.6"))  # stands in Table 4 alone
        assert done.jobs("demo", *LOCAL) == {"draw_table": 1, "judge_claims": 1, "write_report": 1, "demo": 1}
    finally:
        study.write_text(before)
    assert done.jobs("demo", *LOCAL) == {}


@pytest.mark.slow
def test_change__one_field_of_one_run__reruns_it_its_evaluations_and_the_tables_that_show_it(done):
    study = done.root / "configs/study/mjp.yaml"
    before = study.read_text()
    try:
        # Run d is in Tables 3 and 4, not in Table 1.
        study.write_text(before.replace("shuffle: none", "dal_weight: 0.02\n        shuffle: none"))
        jobs = done.jobs("demo", *LOCAL)
    finally:
        study.write_text(before)
    assert jobs == {
        "train_run": 1,
        "evaluate_run": 1,
        "draw_table": 2,
        "judge_claims": 1,
        "track_results": 1,
        "write_report": 1,
        "demo": 1,
    }


@pytest.mark.slow
def test_change__evaluation_config__reruns_evaluations_without_training(done):
    scale = done.root / "configs/scale/demo.yaml"
    before = scale.read_text()
    try:
        scale.write_text(before.replace("consistency: {shuffle_ratio: 0.5}", "consistency: {shuffle_ratio: 0.4}"))
        jobs = done.jobs("demo", *LOCAL)
    finally:
        scale.write_text(before)
    assert jobs["evaluate_run"] == 3 and "train_run" not in jobs


@pytest.mark.slow
def test_targets__paper_and_table__are_known(done):
    assert done.jobs("mjp_table1", *LOCAL) == {"draw_table": 1, "mjp_table1": 1}
    assert done.jobs("mjp", *LOCAL) == {"draw_table": 3, "judge_claims": 1, "mjp": 1}


@pytest.mark.slow
def test_resolved_config__alone__trains_the_same_run_again(done):
    run = next((done.root / "results/demo/runs").glob("supervised-*"))
    weights = (run / "encoder.safetensors").read_bytes()
    config = done.root / "again.yaml"
    config.write_text((run / "config.resolved.yaml").read_text())
    target = done.root / "results/again/data"
    target.parent.mkdir(parents=True)
    os.symlink(done.root / "results/demo/data", target)
    result = done.run("python", "-m", "pipeline", "train", "--scale", "again", "--config", str(config))
    assert result.returncode == 0, result.stderr
    assert (done.root / "results/again/runs" / run.name / "encoder.safetensors").read_bytes() == weights


@pytest.mark.slow
def test_report__of_the_demo__opens_in_a_browser_with_provenance(done, browser):
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    requests, errors = [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.goto((done.root / "results/demo/report/headline.html").as_uri())
    table = json.loads((done.root / "results/demo/tables/headline/mjp.t1.json").read_text())
    cell = table["rows"][0]["cells"]["top1"]
    button = page.get_by_role("button").filter(has_text=f"{cell['ours']:.1f}").first
    button.click()
    assert cell["provenance"]["config_fingerprint"] in page.locator(":popover-open").inner_text()
    assert requests == [page.url] and errors == []
    assert len(page.screenshot()) > 20_000
    page.close()


@pytest.mark.slow
def test_tracking__after_the_demo__has_runs_evaluations_curves_and_tags(done):
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{done.root}/results/mlflow.db")
    experiment = client.get_experiment_by_name("patchwork-demo").experiment_id
    runs = client.search_runs([experiment], max_results=100)
    parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    assert len(parents) == 3 and len(runs) == 3 + 6
    for run in parents:
        assert run.data.tags["study"] == "mjp" and run.data.tags["scale"] == "demo" and run.data.tags["commit"]
        assert "mjp.t" in run.data.tags["table"] and run.data.params["optim.epochs"] == "3"
        lines = (done.root / "results/demo/runs" / run.info.run_name / "metrics.jsonl").read_text().splitlines()
        logged = [(p["step"], p["loss"]) for p in map(json.loads, lines) if "loss" in p]
        assert [(p.step, p.value) for p in client.get_metric_history(run.info.run_id, "loss")] == logged
    # Mirroring again adds nothing.
    assert done.run("python", "-m", "pipeline", "track", "--scale", "demo").returncode == 0
    again = client.search_runs([experiment], max_results=100)
    assert len(again) == len(runs)
    assert len(client.get_metric_history(parents[0].info.run_id, "loss")) == len(
        client.get_metric_history(parents[0].info.run_id, "lr")
    )


@pytest.mark.slow
def test_tracking__server_is_down__one_message_and_nothing_lost(done):
    result = done.run("python", "-m", "pipeline", "track", "--scale", "demo", MLFLOW_TRACKING_URI="http://127.0.0.1:9")
    assert result.returncode == 1
    assert "did not take the results" in result.stderr and "nothing is lost" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_dvc__repro_after_snakemake__records_without_rerunning(done):
    for command in (["git", "init", "-q"], ["git", "add", "Snakefile"]):
        assert done.run(*command).returncode == 0
    result = done.run("dvc", "repro")
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("Nothing to be done") + result.stderr.count("Nothing to be done") == 2
    assert "up to date" in done.run("dvc", "status").stdout
    assert list((done.root / "results/demo/runs").glob("*/train.json")), "DVC deleted its outputs"
    assert "state" not in (done.root / "dvc.lock").read_text()


@pytest.mark.slow
def test_dry_run__slurm_profile_on_a_laptop__lists_every_job_at_paper_scale(clean_project):
    jobs = clean_project.jobs("--profile", "slurm", "all")
    assert jobs["train_run"] == 14 and jobs["evaluate_run"] == 14
    assert jobs["prepare_data"] == 1 and jobs["draw_table"] == 3


@pytest.mark.slow
def test_mistakes__in_configs__stop_before_the_graph_with_one_message(clean_project):
    clean_project.edit("configs/method/mjp.yaml", "shuffle_ratio: 0.03", "shufle_ratio: 0.03")
    clean_project.edit("configs/scale/demo.yaml", "global_batch: 50", "global_batch: 55")
    result = clean_project.snakemake("-n", "demo")
    output = result.stdout + result.stderr
    assert result.returncode != 0 and "Traceback" not in output
    assert "configs/method/mjp.yaml: method.shufle_ratio: unknown key; did you mean 'shuffle_ratio'?" in output
    assert "global_batch 55 is not a multiple of micro_batch 50" in output
    assert "Building DAG" not in output


@pytest.mark.slow
def test_failing_job__damaged_data__its_message_reaches_the_terminal(clean_project):
    path = clean_project.root / "pipeline/data/fashion_mnist/train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:100_000])
    result = clean_project.snakemake("demo", *LOCAL)
    output = result.stdout + result.stderr
    assert result.returncode != 0
    assert "DataError" in output and "train-images-idx3-ubyte.gz" in output and "Traceback" not in output


@pytest.mark.slow
def test_lint__snakemake_and_snakefmt__are_clean(clean_project):
    lint = clean_project.snakemake("--lint")
    assert lint.returncode == 0, lint.stdout + lint.stderr
    assert clean_project.run("snakefmt", "--check", "Snakefile", "workflow").returncode == 0
