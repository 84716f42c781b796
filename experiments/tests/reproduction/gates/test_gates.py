"""The logic gates against plain sums and the printed table."""

import json

import pytest
from scipy import special

from momentprop_experiments.repository import results_folder
from momentprop_experiments.reproduction.gates import and_gate

METHODS = ("AP1", "AP2a", "AP2b", "MacKay", "PEA", "AP2 (default)")
RESULTS = results_folder() / "paper"


@pytest.mark.parametrize(("name", "bias"), [("and-gate", -8.833316937499322), ("or-gate", -2.9444389791664403)])
def test_the_gates_are_those_of_a_plain_sum(name, bias, data, enumerate_unit):
    gate = data(name)
    assert gate["slope"] == pytest.approx(5.888877958332881, rel=1e-14)
    assert gate["bias"] == pytest.approx(bias, rel=1e-14)
    for row in gate["rows"]:
        expected = enumerate_unit((gate["slope"],) * 2, gate["bias"], row["inputs"])
        assert row["exact"] == pytest.approx(expected, rel=1e-12)
        assert row["AP1"] == pytest.approx(special.expit(gate["slope"] * sum(row["inputs"]) + gate["bias"]), rel=1e-12)
        assert abs(row["sampling"] - expected) <= 5 * row["sampling_standard_error"]


def test_the_and_gate_agrees_with_the_printed_table(data):
    rows = data("and-gate")["rows"]
    for row in rows:
        for name in ("exact", "AP1"):
            printed = row["printed"][name]
            if row["inputs"] != [0.25, 0.25]:
                assert row[name] == pytest.approx(printed, rel=0.03)
    quarter = rows[3]
    assert quarter["exact"] == pytest.approx(0.0782, abs=5e-5)
    assert quarter["AP1"] == pytest.approx(0.00276, abs=5e-6)
    assert rows[1]["with_printed_constants"]["exact"] == pytest.approx(0.988, abs=5e-4)


def test_ap2_tells_and_inputs_apart_that_ap1_confuses(data):
    rows = {tuple(row["inputs"]): row for row in data("and-gate")["rows"]}
    one, half = rows[0.0, 1.0], rows[0.5, 0.5]
    assert one["AP1"] == pytest.approx(half["AP1"])
    assert abs(half["AP2 (default)"] - half["exact"]) < 0.01
    assert abs(half["AP1"] - half["exact"]) > 0.2


def test_the_or_gate_mirrors_the_and_gate(data):
    conjunction = {tuple(row["inputs"]): row for row in data("and-gate")["rows"]}
    for row in data("or-gate")["rows"]:
        mirrored = conjunction.get(tuple(1 - p for p in reversed(row["inputs"])))
        for method in ("exact", *METHODS):
            assert row[method] == pytest.approx(1 - mirrored[method], rel=1e-6)


def test_the_published_and_gate_is_the_computed_one(data):
    stored = json.loads((RESULTS / "and-gate.json").read_text())
    for stored_row, row in zip(stored["rows"], data("and-gate")["rows"], strict=True):
        for method in ("gate", "exact", *METHODS):
            assert stored_row[method] == pytest.approx(row[method], rel=1e-9)
    assert and_gate.GATE.bias == stored["bias"]
