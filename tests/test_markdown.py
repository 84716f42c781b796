"""Markdown: whatever a name holds, a table keeps its columns and no name becomes markup."""

import re

import pytest
import torch
from markdown_it import MarkdownIt
from torch import nn

from momentprop import calibrate, check
from momentprop.markdown import code, table

HOSTILE = [
    "a|b",
    "a\\|b",
    "a\\\\|b|",
    "tail\\",
    "`code`",
    "``",
    "`",
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "two\nlines",
    "two\r\n\n# lines\u2028\x0b",
    "[x](https://evil.example)",
    "![x](y)",
    "https://evil.example",
    "*bold* _it_ ~~no~~",
    "&lt;b&gt;",
    "| --- |",
    "\\`x\\`",
    "  space  ",
]


def _rows(text: str) -> list[list[str]]:
    """The cells of the tables of a page, as HTML."""
    page = MarkdownIt("commonmark").enable("table").render(text)
    return [
        re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in re.findall(r"<tr>.*?</tr>", page, re.DOTALL)
    ]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_stays_text_in_its_cell(name):
    rows = _rows(table([code(name), "n"], [[code(name), "1"], ["x", code(name)]]))
    assert [len(row) for row in rows] == [2, 2, 2]
    shown = rows[0][0]
    assert shown == rows[1][0] == rows[2][1]
    assert re.fullmatch(r"<code>[^<>]*</code>", shown)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_stays_text_in_a_sentence(name):
    page = MarkdownIt("commonmark").render(f"By {code(name)}, it is so.")
    assert re.fullmatch(r"<p>By <code>[^<>]*</code>, it is so.</p>\n", page)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_table_keeps_its_columns_whatever_the_text(name):
    text = table(["a", "b"], [[name, "1"], ["2", name]])
    assert len(text.splitlines()) == 4
    assert [len(row) for row in _rows(text)] == [2, 2, 2]


def test_reports_of_a_model_with_hostile_names_keep_their_form():
    names = [name for name in HOSTILE if "." not in name and name]
    torch.manual_seed(0)
    model = nn.Sequential()
    for name in names:
        model.add_module(name, nn.Linear(4, 4))
    model.__class__ = type("Net|<script>`\n", (nn.Sequential,), {})
    methods = ["ap1", ("m|`<script>\n[x](y)", {})]
    report = check(model.eval(), torch.randn(3, 4), input_variance=0.1, samples=20, methods=methods)
    page = MarkdownIt("commonmark").enable("table").render(report.to_markdown())
    assert not re.search(r"<(script|img|a|em|strong|h\d)\b", page)
    assert page.count("<table>") == 3
    assert len({len(row) for row in _rows(report.to_markdown())[: len(names) + 1]}) == 1
    calibration = calibrate(model, torch.randn(8, 4), input_variance=0.1, samples=10)
    rows = _rows(str(calibration))
    assert {len(row) for row in rows} == {7}
    assert len(rows) == 1 + len(names)
