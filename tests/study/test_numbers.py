"""The numbers that two versions of the results are compared by."""

import json

from report_content import make_tables

from pipeline.report.records import FilledTable
from pipeline.report.tables import numbers
from pipeline.report.tables.numbers import write_numbers


def table_of(**cells):
    """A table of one row with these cells."""
    columns = [{"id": key, "label": key} for key in cells]
    row = {"id": "mjp.t1.deit-s", "label": "DeiT-S", "runs": {}, "fidelity": "", "cells": cells}
    return FilledTable(**make_tables()[0] | {"columns": columns, "rows": [row]})


def test_numbers__cell_without_ours__is_left_out_of_both_files(tmp_path):
    table = table_of(top1={"ours": 71.25, "paper": None}, params={"ours": None, "paper": 22.0})
    write_numbers([table], tmp_path / "all.html")
    assert json.loads((tmp_path / "all.json").read_text()) == {"mjp.t1": {"deit-s": {"top1": 71.25}}}
    assert (tmp_path / "all.csv").read_text() == "cell,ours,paper\nmjp.t1.deit-s.top1,71.25,\n"


def test_numbers__cell_of_0__is_a_number(tmp_path):
    write_numbers([table_of(top1={"ours": 0.0, "paper": 1.5})], tmp_path / "all.html")
    assert json.loads((tmp_path / "all.json").read_text()) == {"mjp.t1": {"deit-s": {"top1": 0.0}}}
    assert (tmp_path / "all.csv").read_text() == "cell,ours,paper\nmjp.t1.deit-s.top1,0.0,1.5\n"


def test_metrics__one_file_for_each_number__and_none_of_numbers_that_are_gone(tmp_path):
    write_numbers([table_of(top1={"ours": 71.25, "paper": 79.8}, params={"ours": 5.0})], tmp_path / "all.html")
    files = write_numbers([table_of(top1={"ours": 72.0, "paper": None})], tmp_path / "all.html")
    (file,) = (tmp_path / "all.numbers").iterdir()
    assert file in files and file.name == "mjp.t1.deit-s.top1.json"
    assert json.loads(file.read_text()) == {"ours": 72.0}


def test_metrics__more_numbers_than_a_folder_should_hold__are_left_to_the_other_files(tmp_path, monkeypatch):
    monkeypatch.setattr(numbers, "MOST_FILES", 1)
    files = write_numbers([table_of(top1={"ours": 1.0}, params={"ours": 5.0})], tmp_path / "all.html")
    assert [file.name for file in files] == ["all.json", "all.csv"] and not (tmp_path / "all.numbers").exists()
