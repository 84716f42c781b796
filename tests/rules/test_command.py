"""`python -m momentprop.rules` prints the rule table, with the kind of each operation and what serves it."""

import sys

import pytest

from momentprop import Normal, rules
from momentprop.dispatch import Rule, forget, rule, table
from momentprop.rules.__main__ import main, written


def _printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *args: str) -> list[str]:
    monkeypatch.setattr(sys, "argv", ["momentprop.rules", *args])
    main()
    return capsys.readouterr().out.splitlines()


def _row(op: str) -> Rule:
    return next(row for row in table() if row.op == op and row.on is Normal)


def test_the_command_prints_every_row(monkeypatch, capsys) -> None:
    lines = _printed(monkeypatch, capsys)
    assert lines[0].split() == ["operation", "value", "kind", "rule", "error", "source"]
    first = {tuple(line.split()[:2]) for line in lines}
    assert {(row.op, row.on.__name__) for row in rules.table()} <= first
    served = sum(written(row) == "by kind" for row in rules.table())
    operations = len({row.op for row in rules.table()})
    assert lines[-1] == (
        f"{len(rules.table())} rows for {operations} operations, {served} of them served by the rule of their kind"
    )


def test_the_command_prints_the_operations_that_contain_a_word(monkeypatch, capsys) -> None:
    lines = _printed(monkeypatch, capsys, "tanhshrink")
    assert lines[0].split()[0] == "operation"  # wider than a short name
    assert lines[1].split()[:5] == ["tanhshrink", "Normal", "elementwise", "by", "kind"]
    assert lines[-1] == "1 rows for 1 operations, 1 of them served by the rule of their kind"


def test_the_command_ends_with_an_error_if_nothing_is_found(monkeypatch, capsys) -> None:
    with pytest.raises(SystemExit) as caught:
        _printed(monkeypatch, capsys, "nothing")
    assert caught.value.code == 1
    assert capsys.readouterr().err == "no operation has 'nothing' in its name: leave it out to see all\n"


def test_a_row_is_served_by_its_kind_or_written_out_or_both() -> None:
    served = {op: written(_row(op)) for op in ("conv2d", "relu", "softmax", "matmul", "batch_norm")}
    assert served == {
        "conv2d": "by kind",
        "relu": "by kind",
        "softmax": "written",
        "matmul": "both",  # the weights of a softmax have a rule of their own
        "batch_norm": "both",  # in training
    }


def test_a_rule_of_the_user_is_written_out() -> None:
    rule("digamma", on=Normal)(lambda input: input)
    try:
        row = _row("digamma")
        assert (str(row.kind), written(row)) == ("mixing", "written")
    finally:
        forget("digamma", on=Normal)
