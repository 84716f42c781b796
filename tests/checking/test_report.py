"""The report: numbers, tables, words and the figure."""

import dataclasses
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
        cells = [row.split("|")[1:3] for row in printed.splitlines() if row.startswith(f"| {name} ")]
        assert [name, module.type] == [cell.strip() for cell in cells[0]]
        assert [name, module.type, f"{module.total:,}"] in [row[:3] for row in tables.means(report, str)[1]]


def test_it_fits_80_columns(report):
    code = "    "  # which is for copying and not wrapped
    assert max(len(line) for line in str(report).splitlines() if not line.startswith(code)) <= 80
    assert report.summary in " ".join(str(report).split())


def test_the_summary_has_a_row_for_each_method_and_one_for_the_draws(report):
    head, rows = tables.summary(report, str)
    found = {row[0]: dict(zip(head, row, strict=True)) for row in rows}
    assert list(found) == [*report.methods, "noise of draws"]
    ap2 = report.at_output("ap2")
    assert found["ap2"]["means off"] == formatting.number(ap2.eps_mean)
    assert found["ap2"]["spread"] == f"×{formatting.number(ap2.eps_std)}"
    assert found["ap2"]["each off"] == formatting.spread(ap2.rms_log_std)
    assert found["ap2"]["classes"] == formatting.number(min(report.posterior.methods["ap2"].values()))
    assert found["ap1"]["spread"] == formatting.NONE
    assert list(tables.legend(report)) == [*head[1:], "noise of draws"]


def test_methods_that_know_the_output_only_are_in_its_table_alone():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    report = check(model, torch.randn(4, 6), input_variance=0.2, samples=50)
    head, rows = tables.means(report, str)
    cells = {row[0]: row[head.index("joint")] for row in rows}
    assert {name for name, cell in cells.items() if cell == formatting.NONE} == {"0", "1", "2"}
    assert cells["output"] == formatting.number(report.at_output("joint").eps_mean)
    for figure, told in (("eps_mean", ["ap1", "ap2"]), ("eps_std", ["ap2"])):
        head, rows = tables.by_module(report, figure, str)
        assert head == ["module", "type", *told, "noise of draws"]
        assert [row[0] for row in rows] == ["0", "1", "2", "output"]
    assert re.search(r"\| joint +\| [\d.]+ +\| ×[\d.]+ +\|", str(report))
    assert "Those by joint are right, as far as the draws can tell." in report.summary


def test_the_summary_says_how_good_the_method_is(report):
    found = report["output"].methods["ap2"]
    assert f"the means by ap2 are off by {formatting.number(found.eps_mean)} standard deviations" in report.summary
    assert re.search(
        r"about as much as the means of (more than )?\d+ draws; those of the plain network \(ap1\) by",
        report.summary,
    )
    assert re.search(r"its 90 % intervals hold [\d.]+ % of the draws", report.summary)


def test_deviations_that_are_right_on_average_alone_are_not_called_right(report):
    found = dataclasses.replace(report.at_output("ap2"), eps_std=1.0, rms_log_std=0.4)
    module = report[report.output]
    changed = dataclasses.replace(module, methods={**module.methods, "ap2": found})
    said = dataclasses.replace(report, modules={**report.modules, report.output: changed}).summary
    assert "The standard deviations by ap2 are right on average, but each is off by a factor of about 1.5" in said


def test_markdown_keeps_names_as_code(evil_report):
    text = evil_report.to_markdown()
    assert f"`{EVIL}`" in text
    assert r"`a \| b'" in text
    blocks = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
    assert any("Linear" in line for block in blocks for line in block)
    for block in blocks:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block}) == 1
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
