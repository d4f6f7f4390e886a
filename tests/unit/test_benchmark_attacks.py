"""The benchmark of attacks on gradients: its rates add up, its table is Markdown."""

import importlib.util
import sys
from pathlib import Path

import pytest

PATH = Path(__file__).resolve().parents[2] / "benchmarks" / "attacks.py"


def load_benchmark():
    """It is a script, no package; its dataclass looks its module up by name."""
    spec = importlib.util.spec_from_file_location("benchmark_attacks", PATH)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


attacks = load_benchmark()


def test_main__on_a_cpu__prints_one_image_several_and_the_closed_form(monkeypatch, capsys):
    small = ["--model", "vit_demo", "--size", "28", "--images", "2", "--iterations", "1", "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["attacks.py", *small])
    attacks.main()
    lines = capsys.readouterr().out.rstrip().splitlines()[-5:]
    assert lines[0].startswith("| attack | images at once | iterations/s |")
    assert [line.split(" | ")[:2] for line in lines[2:]] == [
        ["| gradient matching", "1"],
        ["| gradient matching", "2"],
        ["| APRIL", "2"],
    ]
    assert all(line.endswith("| n/a |") for line in lines[2:])  # a CPU does not count its memory


@pytest.mark.parametrize(
    ("attack", "line"),
    [
        ("gradient matching", "| gradient matching | 8 | 4 | 32 | 31.2 | 1.5 |"),
        ("APRIL", "| APRIL | 8 | n/a | n/a | 31.2 | 1.5 |"),
    ],
)
def test_line__of_an_attack_that_took_a_quarter_second__has_its_rates(attack, line):
    assert attacks.Timed(attack, images=8, seconds=0.25, memory_gib=1.5).line == line
