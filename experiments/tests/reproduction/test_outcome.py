"""The files of an outcome."""

import json
import math

import pytest

from momentprop_experiments.reproduction.outcome import Outcome, table


def test_a_result_writes_an_innermost_list_on_one_line(tmp_path):
    data = {"a": [1, 2, 3], "b": [{"c": ["x, y", 2.5]}], "d": []}
    Outcome(data, table(("a", "b"), [("1", "long")])).save(tmp_path, "x")
    text = (tmp_path / "x.json").read_text()
    assert json.loads(text) == data
    assert '"a": [1, 2, 3]' in text
    assert (tmp_path / "x.md").read_text() == "| a | b    |\n|---|------|\n| 1 | long |\n"


def test_a_result_refuses_numbers_that_json_does_not_have(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        Outcome({"a": math.inf}, "").save(tmp_path, "x")
