"""The numbers that two versions of the results are compared by."""

import json

from report_content import make_tables

from pipeline.report.records import FilledTable
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
