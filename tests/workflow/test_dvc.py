"""DVC around Snakemake, as a user meets it: one project, read-only hard links to the cache, a remote and a clone."""

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from project import Project, counted_jobs

from pipeline.core.config import CONFIGS

STUDY = "configs/study/mjp.yaml"
LOCAL = ("results/demo/report/headline.html", "--profile", "workflow/profiles/default")
# Run d is in Tables 3 and 4, not in Table 1 and not in Figure 6.
EDIT_OF_D = (STUDY, "shuffle: none", "dal_weight: 0.02\n        shuffle: none")
JOBS_OF_D = {"train_run": 1, "evaluate": 1, "draw_table": 2, "judge_claims": 1, "write_report": 1}


MORE = """

rule write_more:
    output:
        "results/{scale}/more/{rows}.json",
    shell:
        "touch {output}"
"""


def succeed(project: Project, *command: str) -> str:
    result = project.run(*command)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout + result.stderr


def commit(project: Project, message: str) -> None:
    succeed(project, "git", "add", "-A")
    succeed(project, "git", "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-q", "-m", message)


@pytest.fixture(scope="module")
def recorded(done):
    """Two runs of one study, made by Snakemake, recorded by `dvc repro`, committed and pushed."""
    project = done
    (project.root / "configs/study/mp3.yaml").unlink()
    study = yaml.safe_load((project.root / STUDY).read_text())
    study["headline"] = {
        name: [key for key, row in table["rows"].items() if row["run"] in ("a", "d")]
        for name, table in {**study["tables"], **study["figures"]}.items()
    }
    (project.root / STUDY).write_text(yaml.safe_dump(study, sort_keys=False))
    forget_the_rest(project)
    # MLflow has its own tests.
    project.edit("workflow/profiles/default/config.yaml", "keep-going: true", "keep-going: true\nno-hooks: true")
    succeed(project, "git", "init", "-q")
    succeed(project, "dvc", "config", "cache.type", "hardlink")
    succeed(project, "dvc", "remote", "add", "-d", "box", str(project.root.parent / "remote"))
    commit(project, "as edited")
    succeed(project, "snakemake", *LOCAL)
    folder = next((project.root / "results/demo/runs").iterdir())
    for name in ("patches.key", "state/step-1.pt", "step-2.pt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("never versioned")
    project.first_repro = succeed(project, "dvc", "repro")
    commit(project, "as reproduced")
    succeed(project, "dvc", "push")
    project.first_status = succeed(project, "dvc", "status")
    return project


def forget_the_rest(project: Project) -> None:
    """Leave the headline's runs and evaluations alone, as if nothing else had been run or drawn."""
    rows = [row for table in project.graph("demo").tables.values() for row in table.rows.values() if row.headline]
    wanted = {run for row in rows for run in row.run_names()}
    results = project.root / "results/demo"
    others = [path for path in (results / "runs").iterdir() if path.name not in wanted]
    for folder in (*others, results / "tables", results / "figures", results / "report"):
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def pulled(recorded):
    """A clone elsewhere, after `dvc pull`; Snakemake has not been started in it."""
    root = recorded.root.parent / "elsewhere"
    succeed(recorded, "git", "clone", "-q", str(recorded.root), str(root))
    clone = Project(root)
    succeed(clone, "dvc", "pull")
    return clone


@pytest.mark.slow
def test_repro__after_snakemake__reruns_nothing_and_status_is_clean(recorded):
    assert recorded.first_repro.count("Nothing to be done") == 1 and counted_jobs(recorded.first_repro) == {}
    assert "up to date" in recorded.first_status


@pytest.mark.slow
def test_versioned_files__state_and_keys_below_runs__are_not_among_them(recorded):
    outs = yaml.safe_load((recorded.root / "dvc.lock").read_text())["stages"]["reproduce"]["outs"]
    assert len(outs) == 6  # folders, however many results there are
    files = succeed(recorded, "dvc", "ls", "-R", "--dvc-only", ".", "results/demo").splitlines()
    names = {Path(file).name for file in files}
    assert {"manifest.json", "encoder.safetensors", "metrics.jsonl", "train.json", "headline.html"} <= names
    assert [file for file in files if re.search(r"\.key|\.pt|state|\.lock|logs/|benchmarks/", file)] == []


@pytest.mark.slow
def test_pull_elsewhere__then_an_edit__reruns_exactly_what_it_affects(pulled):
    with pulled.changed(*EDIT_OF_D):
        assert pulled.jobs(*LOCAL) == JOBS_OF_D
    assert pulled.jobs(*LOCAL) == {}
    assert "up to date" in succeed(pulled, "dvc", "status")


@pytest.mark.slow
def test_pull_elsewhere__weights_and_table_changed__are_named_and_made_again(pulled, tmp_path):
    pulled = pulled.copy_to(tmp_path / "clone")
    table = pulled.root / "results/demo/tables/headline/mjp.t1.json"
    weights = next(pulled.root.glob("results/demo/runs/*/encoder.safetensors"))
    for path in (table, weights):
        content = path.read_bytes()
        path.unlink()  # the link, not the cache behind it
        path.write_bytes(content + b" ")
    before = {path: path.read_bytes() for path in pulled.root.glob("results/demo/**/*.json")}
    output = succeed(pulled, "snakemake", "-n", *LOCAL)
    damaged = [str(path.relative_to(pulled.root)) for path in (weights.with_name("train.json"), table)]
    names = f"{weights.name} has SHA-256", f"{table.name} has SHA-256"
    assert all(f"{file}: {name}" in output for file, name in zip(damaged, names, strict=True))
    assert counted_jobs(output)["train_run"] == 1 and counted_jobs(output)["draw_table"] >= 1
    assert {path: path.read_bytes() for path in before} == before  # a dry run changes nothing


@pytest.fixture(scope="module")
def failed(recorded):
    """`dvc repro` when a job fails, and what was there afterwards. The tolerance that changes is Table 1's alone."""
    lock = (recorded.root / "dvc.lock").read_text()
    table = "results/demo/tables/headline/mjp.t1.json"
    with (
        recorded.changed(STUDY, "label: DeiT-S + DAL\n", "label: DeiT-S + DAL\n    init: file:absent.pth\n"),
        recorded.changed(STUDY, "params_m\n        tolerance: 0.5", "params_m\n        tolerance: 0.7"),
    ):
        result = recorded.run("dvc", "repro")
    return SimpleNamespace(
        code=result.returncode,
        output=result.stdout + result.stderr,
        cells=[cell for row in recorded.read(table)["rows"] for cell in row["cells"].values()],
        num_encoders=len(list(recorded.root.glob("results/demo/runs/*/encoder.safetensors"))),
        has_same_lock=(recorded.root / "dvc.lock").read_text() == lock,
    )


@pytest.mark.slow
def test_repro__job_fails_half_way__says_why_and_keeps_what_was_made(failed):
    assert failed.code != 0 and "failed to reproduce 'reproduce'" in failed.output and "absent.pth" in failed.output
    assert 0.7 in [cell["tolerance"] for cell in failed.cells]
    assert failed.num_encoders == 2 and failed.has_same_lock


@pytest.mark.slow
def test_repro__one_field_of_one_run__reruns_it_and_the_diffs_name_the_moved_cells(recorded, failed):
    succeed(recorded, "dvc", "checkout", "--force")  # whatever a failed attempt has left
    recorded.edit(*EDIT_OF_D)
    output = succeed(recorded, "dvc", "repro")
    assert counted_jobs(output) == JOBS_OF_D
    assert "up to date" in succeed(recorded, "dvc", "status")
    assert recorded.jobs(*LOCAL) == {}
    diff = json.loads(succeed(recorded, "dvc", "metrics", "diff", "--json"))
    moved = {Path(file).stem for file, values in diff.items() if "ours" in values}
    assert "mjp.t3.g000.diff_norm" in moved and {cell.rsplit(".", 1)[0] for cell in moved} <= {
        "mjp.t3.g000",
        "mjp.t4.d-dal-nln",
    }
    head, *lines = succeed(recorded, "dvc", "metrics", "show").splitlines()
    assert head.split() == ["Path", "ours", "paper"] and max(map(len, lines)) < 120
    assert any("/mjp.t3.g000.diff_norm.json" in line for line in lines)
    (plot,) = json.loads(succeed(recorded, "dvc", "plots", "diff", "--json"))["data"].values()
    points = plot[0]["content"]["data"]["values"]
    by_rev = {point["rev"]: point["ours"] for point in points if point["cell"] == "mjp.t3.g000.diff_norm"}
    assert by_rev.keys() == {"HEAD", "workspace"} and by_rev["HEAD"] != by_rev["workspace"]


def outputs(project: Project, *arguments: str) -> set[str]:
    """Every file that Snakemake would make for these targets, as it lists them."""
    result = project.snakemake(*arguments, "--summary")
    assert result.returncode == 0, result.stdout + result.stderr
    return {line.split("\t")[0] for line in result.stdout.splitlines() if line.startswith("results/")}


def drift(project: Project) -> list[str]:
    """Where the stage and Snakemake's graph say different things; DVC itself resolves the stage."""
    from dvc.repo import Repo

    (stage,) = Repo(str(project.root)).stage.collect("reproduce")
    outs, deps = [out.def_path for out in stage.outs], [dep.def_path for dep in stage.deps]
    _, target, *options = stage.cmd.split()
    made = outputs(project, target, *options)
    above = {file: [out for out in outs if Path(file).is_relative_to(out)] for file in made}
    included = re.findall(r'^include: "(.+)"', (project.root / "Snakefile").read_text(), re.M)
    used = ["Snakefile", "configs", "pipeline", *included]
    return [
        *[f"{file} is below {found}, not below one output" for file, found in above.items() if len(found) != 1],
        *[f"no rule makes {out}" for out in outs if [out] not in above.values()],
        *[f"{file} is no dependency" for file in used if not any(Path(file).is_relative_to(dep) for dep in deps)],
        *[f"{dep} is not there" for dep in deps if not (project.root / dep).exists()],
        *[f"only one of dvc repro and snakemake demo makes {file}" for file in made ^ outputs(project, "demo")],
    ]


@pytest.mark.slow
def test_stage_and_graph__as_they_are__agree(recorded):
    assert drift(recorded) == []


@pytest.mark.slow
def test_stage_and_graph__rule_that_writes_elsewhere__is_noticed(recorded):
    rules, inputs = "workflow/rules/report.smk", "        JOBS.report_inputs,\n"
    with recorded.changed(rules, inputs, f'{inputs}        "results/{{scale}}/more/{{rows}}.json",\n'):
        path = recorded.root / rules
        path.write_text(path.read_text() + MORE)
        found = drift(recorded)
    assert found == ["results/demo/more/headline.json is below [], not below one output"]


def test_reproduce_config__of_the_project__names_what_there_is():
    chosen = yaml.safe_load((CONFIGS / "reproduce.yaml").read_text())
    assert chosen.keys() == {"scale", "rows", "profile", "site"}
    assert (CONFIGS / f"scale/{chosen['scale']}.yaml").exists() and chosen["rows"] in ("headline", "all")
    assert (CONFIGS / f"site/{chosen['site']}.yaml").exists()
    assert (CONFIGS.parent / chosen["profile"] / "config.yaml").exists()
