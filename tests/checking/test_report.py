"""The report: numbers, tables, words and the figure."""

import json
import re

import pytest
import torch
from torch import nn

from momentprop import check
from momentprop.checking import formatting, tables
from tests.checking.reports import EVIL


def test_the_numbers_are_found_by_module_method_and_figure(report):
    numbers = json.loads(report.to_json())
    assert numbers == json.loads(json.dumps(report.to_dict()))
    found = numbers["modules"]["4"]["methods"]["ap2"]
    assert found["eps_mean"] == report["4"].methods["ap2"].eps_mean
    assert set(found) >= {"eps_mean", "eps_std", "rms_log_std", "correlation", "coverage", "worth_mean", "worth_std"}
    assert set(numbers["posterior"]["methods"]["ap2"]) == {"kl_simplified", "kl_logistic", "kl_race"}
    assert numbers["modules"]["4"]["methods"]["ap1"]["eps_std"] is None


def test_the_table_has_a_row_for_every_module(report):
    printed = str(report)
    for name, module in report.rows.items():
        cells = [row.split("|")[1:4] for row in printed.splitlines() if row.startswith(f"| {name} ")]
        assert [name, module.type, f"{module.total:,}"] == [cell.strip() for cell in cells[0]]
    assert report.summary in printed
    assert "kl_race: worth draws" in printed


def test_methods_that_know_the_output_only_have_dashes_elsewhere():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    report = check(model, torch.randn(4, 6), input_variance=0.2, samples=50)
    head, rows = tables.means(report, str)
    cells = {row[0]: row[head.index("joint")] for row in rows}
    assert {name for name, cell in cells.items() if cell == formatting.NONE} == {"0", "1", "2"}
    assert cells["output"] == formatting.number(report.at_output("joint").eps_mean)
    printed = str(report)
    assert "Standard deviations by ap2:" in printed
    assert "Standard deviations by joint:" not in printed  # they are in the table of the output
    assert re.search(r"\| eps_std +\| – +\| [\d.]+ +\| [\d.]+ +\|", printed)
    assert "By joint, which follows correlations, the deviations are" in report.summary


def test_the_summary_says_how_good_the_method_is(report):
    found = report["output"].methods["ap2"]
    assert f"are off by {formatting.number(found.eps_mean)} standard deviations (ap1: " in report.summary
    assert re.search(r"That is the error of (more than )?\d+ Monte Carlo samples, for the price of", report.summary)
    assert re.search(r"Its 90 % intervals hold [\d.]+ % of the draws", report.summary)


def test_markdown_keeps_names_as_code(evil_report):
    text = evil_report.to_markdown()
    assert f"`{EVIL}`" in text
    assert r"`a \| b'" in text
    tables = [line for line in text.splitlines() if line.startswith("|") and "Linear" in line]
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in tables}) == 1
    assert evil_report._repr_markdown_() == text


def test_the_figure_has_a_point_for_every_module_and_method(report):
    pytest.importorskip("matplotlib")
    left, right = report.plot().axes
    assert [len(line.get_xdata()) for line in left.lines] == [len(report.rows)] * 3
    assert len(right.lines) == 2
    assert [label.get_text() for label in left.get_yticklabels()] == list(report.rows)


def test_a_missing_matplotlib_is_named(report, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r'pip install "momentprop\[plots\]"'):
        report.plot()
