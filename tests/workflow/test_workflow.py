"""The graph as a user meets it: real Snakemake, real training, real reruns."""

import gzip
import hashlib
import json
import os
import re
import shutil
from collections import Counter

import pytest
import yaml
from disks import small_disk
from project import ROOT, counted_jobs
from small import LOCAL, NO_HOOKS

pytestmark = pytest.mark.slow

# What any new number of one study leads to.
ONE_STUDY = {"judge_claims": 1, "write_report": 1, "demo": 1}


def row_of(project, row_id):
    """A row of a table or figure that the demo has drawn."""
    study, table_name, _ = row_id.split(".", 2)
    kind = "figures" if table_name.startswith("f") else "tables"
    table = project.read(f"results/demo/{kind}/headline/{study}.{table_name}.json")
    return next(row for row in table["rows"] if row["id"] == row_id)


def test_interrupted_demo__started_again__continues_from_its_checkpoints(done, finished):
    interrupted = json.loads((finished / "interrupted.json").read_text())
    assert interrupted, "no run was cut short"
    for run in interrupted:
        provenance = done.read(f"results/demo/runs/{run}/train.json")["provenance"]
        assert provenance["resumed_at_step"] > 0
        lines = map(json.loads, (done.root / f"results/demo/runs/{run}/metrics.jsonl").open())
        steps = provenance["steps"]
        assert steps in (16, 24)  # of 8 steps an epoch: pretraining, training
        assert [line["step"] for line in lines if "loss" in line] == [*range(10, steps, 10), steps]


def test_demo__second_time__does_nothing(done):
    assert done.jobs("demo", *LOCAL) == {}


def test_demo__summary__shows_table_claims_time_and_report(done):
    text = done.run("python", "-m", "pipeline", "summary", "--scale", "demo").stdout
    top1 = row_of(done, "mjp.t1.deit-s")["cells"]["top1"]["ours"]
    assert re.search(rf"{top1:.1f} \+/- \d\.\d \(79\.8\)", text)
    for study in ("mjp", "mp3"):
        assert re.search(rf"claims of {study} at scale demo: \d+ \w", text)
    assert re.search(r"train_run \d+ s in 5 jobs", text)
    graph = done.graph("demo")
    others = len(graph.tables) - len(graph.selected("headline"))
    assert f"{others} more tables and figures, and the other rows: snakemake all" in text
    assert text.rstrip().endswith("report: results/demo/report/headline.html")


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


def test_change__data_moved_and_prepared_by_hand__reruns_nothing(done, tmp_path, monkeypatch):
    shutil.copytree(done.root / "pipeline/data/fashion_mnist", tmp_path / "moved")
    (tmp_path / "site.yaml").write_text(f"data: {{fashion_mnist: {tmp_path / 'moved'}}}\n")
    monkeypatch.setitem(done.env, "PATCHWORK_SITE", str(tmp_path / "site.yaml"))
    manifest = done.root / "results/demo/data/fashion_mnist/manifest.json"
    written = manifest.stat().st_mtime
    result = done.run("python", "-m", "pipeline", "prepare", "--data", "fashion_mnist")
    assert result.returncode == 0, result.stderr
    assert manifest.stat().st_mtime > written and done.jobs("demo", *LOCAL) == {}


def test_change__site_names_a_folder_with_other_labels__prepares_it_and_trains_on_it(done, tmp_path, monkeypatch):
    shutil.copytree(done.root / "pipeline/data/fashion_mnist", tmp_path / "other")
    labels = tmp_path / "other/train-labels-idx1-ubyte.gz"
    content = gzip.decompress(labels.read_bytes())
    labels.write_bytes(gzip.compress(content[:-2] + bytes([content[-1], content[-2]])))
    (tmp_path / "site.yaml").write_text(f"data: {{fashion_mnist: {tmp_path / 'other'}}}\n")
    monkeypatch.setitem(done.env, "PATCHWORK_SITE", str(tmp_path / "site.yaml"))
    jobs = done.jobs("demo", *LOCAL)
    assert jobs["prepare_data"] == 1 and jobs["train_run"] == len(done.graph("demo").runs)


def test_change__tolerance__redraws_that_table_only(done):
    with done.changed("configs/study/mjp.yaml", "tolerance: 0.4", "tolerance: 0.6"):  # stands in Table 4 alone
        assert done.jobs("demo", *LOCAL) == {"draw_table": 1, "judge_claims": 1, "write_report": 1, "demo": 1}


def test_change__claim__is_judged_again_and_no_table_is_drawn(done):
    with done.changed("configs/study/mjp.yaml", "a-deit-s:consistency) < 0.5", "a-deit-s:consistency) < 0.7"):
        assert done.jobs("demo", *LOCAL) == ONE_STUDY


def test_change__one_field_of_one_run__reruns_it_its_evaluations_and_the_tables_that_show_it(done):
    # Run d is in Tables 3 and 4, not in Table 1.
    with done.changed("configs/study/mjp.yaml", "shuffle: none", "dal_weight: 0.02\n        shuffle: none"):
        jobs = done.jobs("demo", *LOCAL)
    assert jobs == {"train_run": 1, "evaluate": 1, "draw_table": 2, **ONE_STUDY}


def test_change__one_field_of_pretraining__reruns_it_and_what_starts_from_it_and_no_other_study(done):
    with done.changed("configs/scale/demo.yaml", "mp3: {mask_ratio: 0.5}", "mp3: {mask_ratio: 0.6}"):
        jobs = done.jobs("demo", *LOCAL)
        of_mjp = done.jobs("results/demo/tables/headline/mjp.claims.json", *LOCAL)
    assert jobs == {"train_run": 2, "evaluate": 1, "draw_table": 1, "draw_figure": 1, **ONE_STUDY}
    assert of_mjp == {}


def test_change__evaluation_config__reruns_evaluations_without_training(done):
    ratio = "consistency: {{shuffle_ratio: {}}}"
    with done.changed("configs/scale/demo.yaml", ratio.format(0.5), ratio.format(0.4)):
        jobs = done.jobs("demo", *LOCAL)
    assert jobs["evaluate"] == 3 and "train_run" not in jobs


def test_finetuning__from_a_pretraining_run__starts_after_it_and_records_its_weights(done, finished):
    graph = done.graph("demo")
    (name,) = [name for name, run in graph.runs.items() if run.init]
    start, end = done.root / "results/demo/runs" / graph.runs[name].init, done.root / "results/demo/runs" / name
    assert start.name.startswith("mp3-")
    assert (start / "train.json").stat().st_mtime < (end / "config.resolved.yaml").stat().st_mtime
    init = json.loads((end / "train.json").read_text())["provenance"]["init"]
    trained_from = finished / "clone" / start.relative_to(done.root) / "encoder.safetensors"
    assert init["num_matched"] > 0 and init["source"] == str(trained_from)
    assert init["sha256"] == hashlib.sha256((start / "encoder.safetensors").read_bytes()).hexdigest()
    assert set(init["fresh"]) == {"pos_embed", "head.weight", "head.bias"}


@pytest.mark.parametrize("page", ["README.md", "GUIDE.md"])
def test_pages__python_after_the_demo__runs_as_it_is_written(done, page):
    """The blocks of CONTRIBUTING are files; tests/workflow/test_recipes.py writes and runs them."""
    text = (ROOT / page).read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    assert len(blocks) == {"README.md": 0, "GUIDE.md": 1}[page]
    assert "load_encoder(" not in re.sub(r"```python\n.*?```", "", text, flags=re.S)  # nothing that is not run here
    for block in blocks:
        (done.root / "block.py").write_text(f"{block}\nprint(type(encoder).__module__, encoder.training)")
        result = done.run("python", "block.py")
        assert (result.returncode, result.stdout) == (0, "timm.models.vision_transformer False\n"), result.stderr


def test_shared_baseline__of_two_studies__is_trained_once(done):
    graph = done.graph("demo")
    (shared,) = [name for name, run in graph.runs.items() if run.studies == ["mjp", "mp3"]]
    ours, theirs = row_of(done, "mjp.t1.deit-s"), row_of(done, "mp3.t3.vit-abs")
    assert ours["runs"] == {"": [shared]} and theirs["runs"] == {"cifar100": [shared]}
    assert ours["cells"]["top1"]["ours"] == theirs["cells"]["cifar100_top1"]["ours"]
    assert sorted(path.parent.name for path in done.root.glob("results/demo/runs/*/train.json")) == sorted(graph.runs)


def test_position_accuracy__of_the_pretraining_run__is_in_its_table(done):
    row = row_of(done, "mp3.f3.train-cifar100")
    graph = done.graph("demo")
    (name,) = [name for name in graph.evaluations_of(row["runs"][""][0]) if name.startswith("mp3_positions-")]
    path = f"results/demo/evals/{name}/result.json"
    measured = done.read(path)["metrics"]
    assert {key: cell["ours"] for key, cell in row["cells"].items()} == measured
    assert {cell["provenance"]["file"] for cell in row["cells"].values()} == {path}
    assert all(0 < value < 100 for value in measured.values())


def test_cell__without_a_run_for_its_role__says_why(done):
    cell = row_of(done, "mp3.t3.mp3-abs")["cells"]["tiny_top1"]
    assert cell["ours"] is None and cell["verdict"] == "not run"
    assert cell["reason"] == "left out of the small project"


def test_targets__paper_and_table__are_known(done):
    assert done.jobs("mjp_table1", *LOCAL) == {"draw_table": 1, "mjp_table1": 1}
    # Tables and figures without a headline row too; their runs are those of the demo.
    graph = done.graph("demo")
    assert graph.selected("headline", "mp3") == ["mp3.t3", "mp3.f3"]
    for study in ("mjp", "mp3"):
        drawn = Counter(
            "draw_figure" if graph.tables[key].figure else "draw_table" for key in graph.selected("all", study)
        )
        assert min(drawn["draw_table"], drawn["draw_figure"]) > 0
        assert done.jobs(study, *LOCAL) == {**drawn, "judge_claims": 1, "write_report": 1, study: 1}


def test_resolved_config__by_itself__trains_the_same_run_again(done):
    runs = done.graph("demo").runs
    name = next(name for name, run in runs.items() if name.startswith("supervised-") and not run.init)
    run = done.root / "results/demo/runs" / name
    weights = (run / "encoder.safetensors").read_bytes()
    config = done.root / "again.yaml"
    config.write_text((run / "config.resolved.yaml").read_text())
    target = done.root / "results/again/data"
    target.parent.mkdir(parents=True)
    os.symlink(done.root / "results/demo/data", target)
    result = done.run("python", "-m", "pipeline", "train", "--scale", "again", "--config", str(config))
    assert result.returncode == 0, result.stderr
    assert (done.root / "results/again/runs" / run.name / "encoder.safetensors").read_bytes() == weights


def test_report__of_the_demo__opens_in_a_browser_with_provenance(done, browser):
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    requests, errors = [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    first = done.root / "results/demo/report/headline.html"
    page.goto(first.as_uri())
    page.locator("#contents").get_by_role("link", name="MJP").click()
    cell = row_of(done, "mjp.t1.deit-s")["cells"]["top1"]
    page.locator("a.cell").filter(has_text=f"{cell['ours']:.1f}").first.click()
    line = page.locator("tr:target")
    line.get_by_role("link", name=cell["provenance"]["file"]).click()
    assert cell["provenance"]["eval_fingerprint"] in page.locator("details:target").inner_text()
    inside = (first.as_uri(), first.with_suffix("").as_uri() + "/", "data:")
    assert all(url.startswith(inside) for url in requests) and errors == []
    assert len(page.screenshot()) > 20_000
    page.close()


def test_tracking__after_the_interrupted_demo__has_every_run_evaluation_and_table_and_each_point_once(done):
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{done.root}/results/mlflow.db")
    experiments = [client.get_experiment_by_name(name) for name in ("patchwork-demo", "patchwork-demo-tables")]
    found = [client.search_runs([experiment.experiment_id], max_results=100) for experiment in experiments]
    runs, tables = ({run.data.tags["patchwork.name"].partition("@")[0]: run for run in part} for part in found)
    graph = done.graph("demo")
    results = [path.parent.name for path in done.root.glob("results/demo/evals/*/result.json")]
    evaluations = {f"{graph.evals[name].subjects['model']}/{name}" for name in results}
    assert runs.keys() == {*graph.runs, *evaluations} and len(runs) == len(found[0])
    assert tables.keys() == {*graph.selected("headline"), *graph.studies()} and len(tables) == len(found[1])
    kinds = Counter(graph.evals[name].fragment for name in results)
    assert (kinds["classify"], kinds["consistency"], kinds["mp3_positions"]) == (3, 3, 1)
    assert {run.info.status for part in found for run in part} == {"FINISHED"}
    for name in graph.runs:
        lines = (done.root / "results/demo/runs" / name / "metrics.jsonl").read_text().splitlines()
        logged = [(line["step"], line["loss"]) for line in map(json.loads, lines) if "loss" in line]
        history = client.get_metric_history(runs[name].info.run_id, "curves/loss")
        assert sorted((point.step, point.value) for point in history) == logged
    top1 = row_of(done, "mjp.t1.deit-s")["cells"]["top1"]["ours"]
    assert tables["mjp.t1"].data.metrics["deit-s.top1"] == top1


def test_dry_run__slurm_profile_on_a_laptop__lists_every_job_at_paper_scale(clean_project):
    said = clean_project.snakemake("-n", "--profile", "slurm", "all").stdout
    graph = clean_project.graph("paper")
    assert graph.studies() == sorted(path.stem for path in clean_project.root.glob("configs/study/*.yaml"))
    assert "scale paper, site slurm, executor slurm" in said
    assert len(said.splitlines()) < 100
    assert re.search(r"^\d+ more jobs; -n -p lists all of them", said, re.M)
    assert counted_jobs(said) == {
        "prepare_data": len(graph.data),
        "train_run": len(graph.trained_runs()),
        "evaluate": len(graph.eval_jobs),
        "draw_table": sum(not table.figure for table in graph.tables.values()),
        "draw_figure": sum(bool(table.figure) for table in graph.tables.values()),
        "judge_claims": len(graph.studies()),
        "write_report": 1,
        "all": 1,
    }


def test_mistakes__in_configs__stop_before_the_graph_with_one_message(clean_project):
    clean_project.edit("configs/method/mjp.yaml", "shuffle_ratio: 0.03", "shufle_ratio: 0.03")
    clean_project.edit("configs/scale/demo.yaml", "global_batch: 50", "global_batch: 55")
    result = clean_project.snakemake("-n", "demo")
    output = result.stdout + result.stderr
    assert result.returncode != 0 and "Traceback" not in output
    assert "configs/method/mjp.yaml: method.shufle_ratio: unknown key; did you mean 'shuffle_ratio'?" in output
    assert "global_batch 55 is not a multiple of micro_batch 50" in output
    assert "Building DAG" not in output


def test_failing_job__damaged_data__its_message_reaches_the_terminal(clean_project):
    path = clean_project.root / "pipeline/data/fashion_mnist/train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:100_000])
    result = clean_project.snakemake("mjp_table1", *NO_HOOKS)
    output = result.stdout + result.stderr
    assert result.returncode != 0
    assert "DataError" in output and "train-images-idx3-ubyte.gz" in output and "Traceback" not in output


def test_snakemake__disk_almost_full__stops_before_the_first_job_with_one_message(clean_project):
    results = clean_project.root / "results"
    results.mkdir(exist_ok=True)
    with small_disk(results, "8m"):
        result = clean_project.snakemake("demo", *LOCAL)
        assert not list(results.glob("demo/logs/**/*.log"))
    output = result.stdout + result.stderr
    assert result.returncode != 0 and "Traceback" not in output
    (line,) = {line.strip() for line in output.splitlines() if "of free space" in line}
    assert re.search(r"results/demo has \d\.\d MB of free space, the workflow needs 16\.0 MB; free some, then", line)


def test_lint__of_snakemake__is_clean(clean_project):
    lint = clean_project.snakemake("--lint")
    assert lint.returncode == 0, lint.stdout + lint.stderr


def test_dry_run__weight_file_missing__plans_the_evaluation_which_says_so(clean_project):
    """With a missing input, Snakemake keeps a table that was drawn before, and says nothing."""
    run = {"label": "a", "method": "supervised", "model": "vit_demo", "data": "fashion_mnist"}
    columns = {"top1": {"label": "Top-1", "eval": "classify", "metric": "top1"}}
    table = {"label": "Table 1", "title": "T", "columns": columns, "rows": {"a": {"label": "a", "run": "a"}}}
    runs = {"a": {**run, "train": False, "init": "file:nowhere.safetensors"}}
    study = {"title": "S", "scales": ["demo"], "runs": runs, "tables": {"t1": table}}
    (clean_project.root / "configs/study/mine.yaml").write_text(yaml.safe_dump(study))

    assert clean_project.jobs("mine_table1") == {"prepare_data": 1, "evaluate": 1, "draw_table": 1, "mine_table1": 1}
