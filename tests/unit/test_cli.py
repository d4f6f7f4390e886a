"""What people read who call the verbs by hand."""

import argparse
import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE_S

from pipeline import commands
from pipeline.cli import EXAMPLES, VERBS, build_parser, main
from pipeline.study.resolve.graph import load_graph


def verbs() -> dict[str, argparse.ArgumentParser]:
    (action,) = [a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction)]
    return action.choices


def test_help__names_every_verb_and_says_what_it_is_for(capsys):
    with pytest.raises(SystemExit) as ended:
        build_parser().parse_args(["--help"])
    assert ended.value.code == 0
    guide = build_parser().epilog
    assert [verb for verb in verbs() if verb not in guide] == []
    assert "examples" in capsys.readouterr().out


def test_verbs__every_file_of_commands__is_listed_once():
    files = {path.stem for path in Path(commands.__file__).parent.glob("*.py")} - {"__init__", "options"}
    listed = [name for names in VERBS.values() for name in names]
    assert sorted(listed) == sorted(files)


@pytest.mark.parametrize("verb", verbs())
def test_help__of_every_option_of_every_verb__says_what_it_means(verb, capsys):
    parser = verbs()[verb]
    assert parser.description and len(parser.description) > 20
    assert [action.dest for action in parser._actions if not action.help] == []
    with pytest.raises(SystemExit):
        parser.parse_args(["--help"])
    assert parser.description.split(".")[0].split()[-1] in capsys.readouterr().out


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("trane", "no verb 'trane'; did you mean 'train'? `python -m pipeline --help` lists all verbs\n"),
        ("zzz", "no verb 'zzz'; `python -m pipeline --help` lists all verbs\n"),
    ],
)
def test_verb__mistyped__names_the_nearest_in_one_line(capsys, typed, message):
    assert main([typed, "--scale", "tiny"]) == 2
    assert capsys.readouterr().err == message


def test_examples__in_the_help__are_commands_that_are_understood():
    examples = [line.split("  ")[1] for line in EXAMPLES.splitlines() if line.startswith("  python -m pipeline")]
    assert len(examples) >= 5
    for example in examples:
        words = example.strip().removeprefix("python -m pipeline ").split()
        if "VERB" not in words:
            build_parser().parse_args(words)


def test_verb__in_a_python_without_the_packages__names_the_remedy(capsys, monkeypatch):
    monkeypatch.setattr("pipeline.commands.check.run", lambda options: __import__("no_such_package"))
    assert main(["check"]) == 1
    message = capsys.readouterr().err
    assert "no_such_package" in message and ".venv/bin/activate" in message and "Traceback" not in message


@pytest.mark.slow
def test_unknown_run__names_the_nearest(capsys):
    name = next(iter(load_graph("demo").runs))
    assert main(["train", "--run", f"{name}x"]) == 1
    assert f"is not among the runs at scale demo; did you mean '{name}'?" in capsys.readouterr().err


@pytest.mark.slow
def test_unknown_evaluation_job__names_the_nearest(capsys):
    name = next(iter(load_graph("demo").eval_jobs))
    assert main(["evaluate", "--job", f"{name}x"]) == 1
    assert f"is not among the evaluation jobs at scale demo; did you mean '{name}'?" in capsys.readouterr().err


@pytest.mark.slow
def test_unknown_data__names_those_there_are(capsys):
    assert main(["prepare", "--data", "fashion"]) == 1
    assert (
        "'fashion' is not among the data sets at scale demo; did you mean 'fashion_mnist'?" in capsys.readouterr().err
    )


@pytest.mark.slow
def test_prepare_cache_only__site_without_a_cache__says_which_key_is_missing(capsys, tmp_path, monkeypatch):
    (tmp_path / "site.yaml").write_text("device: cpu\n")
    monkeypatch.setenv("PATCHWORK_SITE", str(tmp_path / "site.yaml"))
    assert main(["prepare", "--data", "fashion_mnist", "--cache-only"]) == 1
    assert "the folder that `cache` names in the site file; found none" in capsys.readouterr().err


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC])
def test_verb__folder_that_cannot_be_written__is_one_message(capsys, monkeypatch, number):
    def write(options):
        raise OSError(number, os.strerror(number), "/results/demo/lock")

    monkeypatch.setattr("pipeline.commands.check.run", write)
    assert main(["check"]) == 1
    error = capsys.readouterr().err
    assert error.startswith(
        f"could not use /results/demo/lock: {os.strerror(number)}; free space or fix the permissions"
    )


def test_verb__an_error_of_ours__keeps_its_traceback(monkeypatch):
    def fail(options):
        raise FileNotFoundError(errno.ENOENT, "no such file", "/results/demo/lock")

    monkeypatch.setattr("pipeline.commands.check.run", fail)
    with pytest.raises(FileNotFoundError):
        main(["check"])


@pytest.mark.slow
def test_graph__results_that_cannot_be_written__is_read_all_the_same(tmp_path, monkeypatch, caplog):
    (tmp_path / "results").write_text("a file is in the way")
    monkeypatch.setattr("pipeline.results.RESULTS", tmp_path / "results")
    assert load_graph("demo").runs
    assert "the resolved studies are not kept for the next command: could not write" in caplog.text


@pytest.mark.slow
def test_ctrl_c__while_modules_are_imported__leaves_one_line(tmp_path):
    slow = tmp_path / "yaml.py"
    slow.write_text("import time; print('importing', flush=True); time.sleep(60)")
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.getcwd()}"}
    with subprocess.Popen(
        [sys.executable, "-m", "pipeline", "check"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, error) == (75, "interrupted; the same command continues\n")
