"""The benchmark of attacks on gradients: its rates add up, its table is Markdown."""

import sys

import pytest
from benchmark_script import load_benchmark

attacks = load_benchmark("attacks")


@pytest.mark.slow
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
