"""Prints formulas as Triton: a block of elements, or of whole rows, for each GPU program."""

import math

import torch

from momentprop.codegen.expressions import Language, expression
from momentprop.codegen.formula import Formula

HEADER = """\
import triton
import triton.language as tl
from triton.language.extra import libdevice

"""
_LIBRARY = frozenset("exp exp2 log log1p expm1 rsqrt sin cos tanh erf erfc atan".split())


class Triton(Language):
    """The language of Triton, for numbers in float32."""

    def number(self, value: float, dtype: torch.dtype) -> str:
        """Return a constant."""
        if dtype is torch.bool:
            return str(bool(value))
        if math.isnan(value) or math.isinf(value):
            return f'float("{value}")'
        return f"({float(torch.tensor(value, dtype=torch.float32).item())!r})".replace("(inf)", 'float("inf")')

    def choice(self, condition: str, one: str, other: str) -> str:
        """Return one of two expressions."""
        return f"tl.where({condition}, {one}, {other})"

    def call(self, function: str, x: str, dtype: torch.dtype) -> str:
        """Return a function of the mathematical library."""
        if function in _LIBRARY:
            return f"libdevice.{function}({x})"
        return f"tl.{'sqrt_rn' if function == 'sqrt' else function}({x})"

    def power(self, x: str, exponent: str, dtype: torch.dtype) -> str:
        """Return any power."""
        return f"libdevice.pow({x}, {exponent})"

    def converted(self, x: str, source: torch.dtype, dtype: torch.dtype) -> str:
        """Return an expression in another type."""
        if source is dtype:
            return x
        return f"({x} != 0)" if dtype is torch.bool else f"{x}.to(tl.float32)"

    def negated(self, a: str) -> str:
        """Return whether a condition does not hold."""
        return f"({a} == 0)"

    def index(self, dtype: torch.dtype) -> str:
        """Return the place in the row."""
        return "column.to(tl.float32)"


_TRITON = Triton()


_REDUCTIONS = {"sum": "sum", "mean": "sum", "amax": "max", "amin": "min"}
_NEUTRAL = {"amax": 'float("-inf")', "amin": 'float("inf")'}


def function_in_triton(name: str, formula: Formula) -> str:
    """Return a Triton function that takes the addresses of inputs and outputs, and the number of elements or rows.

    Then come constants: for each input how its rows repeat (see `layout.repetition`), a program's rows and the columns;
    or a program's elements, and whether they divide the count.
    """
    count = len(formula.inputs)
    given = [*(f"x{i}" for i in range(count)), *(f"y{k}" for k in range(len(formula.outputs))), "n"]
    by_rows = formula.row is not None
    constants = [*(f"{x}{i}" for i in range(count) for x in "EP"), "ROWS", "BLOCK"] if by_rows else ["BLOCK", "EVEN"]
    head = ", ".join([*given, *(f"{constant}: tl.constexpr" for constant in constants)])
    names = {i: f"a{i}" for i in range(count)}
    lines = _loaded_rows(formula) if by_rows else _loaded_elements(formula)
    lines += _statements(formula, names)
    for k, number in enumerate(formula.outputs):
        value = _TRITON.converted(names[number], formula.kind(number)[0], torch.float32)
        lines += _stored_row(formula, k, number, value) if by_rows else _stored_elements(k, value)
    body = "\n".join(f"    {line}" for line in lines)
    return f'@triton.jit(do_not_specialize=["n"])\ndef {name}({head}):\n{body}\n\n\n'


def _statements(formula: Formula, names: dict[int, str]) -> list[str]:
    """Return the assignments of all steps' results, and note their names."""
    lines = []
    for number, step in enumerate(formula.steps, len(formula.inputs)):
        if step.op in _REDUCTIONS:
            (term,) = step.arguments
            written = _reduced(formula, step.op, names[term.number], term.number)
        else:
            written = expression(_TRITON, formula, step, names)
        if step.op == "constant":
            names[number] = written
            continue
        names[number] = f"t{number}"
        lines.append(f"t{number} = {written}")
    return lines


def _loaded_elements(formula: Formula) -> list[str]:
    lines = ["at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)", "mask = at < n"]
    for i in range(len(formula.inputs)):
        lines += ["if EVEN:", f"    a{i} = tl.load(x{i} + at)"]
        lines += ["else:", f"    a{i} = tl.load(x{i} + at, mask=mask, other=1.0)"]
    return lines


def _stored_elements(k: int, value: str) -> list[str]:
    value = f"tl.zeros_like(a0) + {value}"
    return ["if EVEN:", f"    tl.store(y{k} + at, {value})", "else:", f"    tl.store(y{k} + at, {value}, mask=mask)"]


def _loaded_rows(formula: Formula) -> list[str]:
    lines = [
        "row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]",
        "column = tl.arange(0, BLOCK)[None, :]",
        f"inside = column < {formula.row}",
        "some = row < n",
        "mask = some & inside",
    ]
    for i, wide in enumerate(formula.inputs):
        at, mask = (f"r{i} * {formula.row} + column", "mask") if wide else (f"r{i}", "some")
        lines += [f"r{i} = row // E{i}", f"if P{i} > 0:", f"    r{i} = r{i} % P{i}"]
        lines.append(f"a{i} = tl.load(x{i} + {at}, mask={mask}, other=0.0)")
    return lines


def _stored_row(formula: Formula, k: int, number: int, value: str) -> list[str]:
    if formula.kind(number)[1]:
        whole = f"tl.zeros([ROWS, BLOCK], tl.float32) + {value}"
        return [f"tl.store(y{k} + row * {formula.row} + column, {whole}, mask=mask)"]
    return [f"tl.store(y{k} + row, tl.zeros([ROWS, 1], tl.float32) + {value}, mask=some)"]


def _reduced(formula: Formula, op: str, x: str, number: int) -> str:
    """Return a sum, mean, maximum or minimum along the row, over the elements inside it."""
    x = _TRITON.converted(x, formula.kind(number)[0], torch.float32)
    inner = f"tl.where(inside, {x}, {_NEUTRAL.get(op, '0.0')})"
    whole = f"tl.{_REDUCTIONS[op]}({inner}, 1)[:, None]"
    return f"{whole} / {formula.row}" if op == "mean" else whole
