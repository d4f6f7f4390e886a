"""The demo's numbers as they were obtained on one machine, for README and for anyone who compares.

    python benchmarks/demo.py            compare the demo's numbers here with those recorded
    python benchmarks/demo.py --record   record the demo's numbers of this machine

Another processor rounds differently, and a short training amplifies that, as another seed would: between x86 and ARM,
top-1 differed by 1.3 points at the median, and consistency under shuffling by up to 11.
"""

import argparse
import json
import os
import platform

import checkout  # noqa: F401

from pipeline.core.config import CONFIGS, Record
from pipeline.results import results_of
from pipeline.results.records import read_record, write_record
from pipeline.study.resolve.graph import load_graph

PATH = CONFIGS.parent / "benchmarks" / "demo.json"
SCALE, ROWS = "demo", "headline"


class DemoNumbers(Record):
    """What `make demo` gave: table -> row -> column -> number, and the runs behind them."""

    machine: str
    runs: list[str]
    numbers: dict[str, dict[str, dict[str, float]]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="record the demo's numbers of this machine")
    options = parser.parse_args()
    here = numbers_here()
    if options.record:
        write_record(PATH, here)
        print(f"recorded {len(flat(here))} numbers in {PATH}")
    else:
        print(comparison(here, read_record(PATH, DemoNumbers)))


def numbers_here() -> DemoNumbers:
    graph = load_graph(SCALE)
    rows = [row for key in graph.selected(ROWS) for row in graph.rows(key, ROWS).values()]
    runs = sorted(graph.with_inits(run for row in rows for run in row.run_names()))
    path = results_of(SCALE).report(ROWS).with_suffix(".json")
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    return DemoNumbers(machine=machine, runs=runs, numbers=json.loads(path.read_text()))


def comparison(here: DemoNumbers, recorded: DemoNumbers) -> str:
    """One line where all numbers are equal, and one more for each that is not."""
    ours, theirs = flat(here), flat(recorded)
    other = [
        f"  {cell}: {ours.get(cell)} here, {theirs.get(cell)} recorded"
        for cell in ours | theirs
        if ours.get(cell) != theirs.get(cell)
    ]
    equal = len(ours | theirs) - len(other)
    line = f"{equal} of {len(ours | theirs)} numbers are equal to those recorded on {recorded.machine} ({PATH.name})"
    return "\n".join([line, *other])


def flat(found: DemoNumbers) -> dict[str, float]:
    return {
        f"{table}.{row}.{column}": value
        for table, rows in found.numbers.items()
        for row, columns in rows.items()
        for column, value in columns.items()
    }


if __name__ == "__main__":
    main()
