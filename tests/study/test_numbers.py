"""The numbers that two versions of the results are compared by."""

import json

from report_content import make_tables

from pipeline.report.numbers import write_numbers
from pipeline.report.records import FilledTable


def test_numbers__cell_without_ours__is_left_out_of_both_files(tmp_path):
    cells = {"top1": {"ours": 71.25, "paper": None}, "params": {"ours": None, "paper": 22.0}}
    table = make_tables()[0] | {"columns": [{"id": "top1", "label": "Top-1"}, {"id": "params", "label": "Params"}]}
    table["rows"] = [{"id": "mjp.t1.deit-s", "label": "DeiT-S", "runs": {}, "fidelity": "", "cells": cells}]
    write_numbers([FilledTable(**table)], tmp_path / "all.html")
    assert json.loads((tmp_path / "all.json").read_text()) == {"mjp.t1": {"deit-s": {"top1": 71.25}}}
    assert (tmp_path / "all.csv").read_text() == "cell,ours,paper\nmjp.t1.deit-s.top1,71.25,\n"


def test_numbers__cell_of_0__is_a_number(tmp_path):
    row = {"id": "mjp.t1.deit-s", "cells": {"top1": {"ours": 0.0, "paper": 1.5}}}
    write_numbers([{"id": "mjp.t1", "rows": [row], "columns": [{"id": "top1"}]}], tmp_path / "all.html")
    assert json.loads((tmp_path / "all.json").read_text()) == {"mjp.t1": {"deit-s": {"top1": 0.0}}}
    assert (tmp_path / "all.csv").read_text() == "cell,ours,paper\nmjp.t1.deit-s.top1,0.0,1.5\n"
