"""What people read who call the verbs by hand."""

import pytest

from pipeline.cli import build_parser, main
from pipeline.study.graph import load_graph


def test_help__of_every_verb__says_what_it_does(capsys):
    with pytest.raises(SystemExit) as ended:
        build_parser().parse_args(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert all(verb in text for verb in ("check", "prepare", "train", "evaluate", "table", "claims", "report", "track"))


def test_verb__in_a_python_without_the_packages__names_the_remedy(capsys, monkeypatch):
    monkeypatch.setattr("pipeline.cli.check", lambda options, arguments: __import__("no_such_package"))
    assert main(["check"]) == 1
    message = capsys.readouterr().err
    assert "no_such_package" in message and ".venv/bin/activate" in message and "Traceback" not in message


def test_unknown_run__names_the_nearest(capsys):
    name = next(iter(load_graph("demo").runs))
    assert main(["evaluate", "--run", f"{name}x", "--group", "quick"]) == 1
    assert f"is not among the runs at scale demo; did you mean '{name}'?" in capsys.readouterr().err


def test_unknown_data__names_those_there_are(capsys):
    assert main(["prepare", "--data", "fashion"]) == 1
    assert "no run at scale demo uses data 'fashion'; did you mean 'fashion_mnist'?" in capsys.readouterr().err
