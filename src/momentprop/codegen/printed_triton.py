"""Prints formulas as Triton: a block of elements, or of whole rows, for each program of the GPU."""

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

    def converted(self, x: str, source: torch.dtype, dtype: torch.dtype) -> str:
        """Return an expression in another type."""
        if source is dtype:
            return x
        return f"({x} != 0)" if dtype is torch.bool else f"{x}.to(tl.float32)"

    def negated(self, a: str) -> str:
        """Return whether a condition does not hold."""
        return f"({a} == 0)"


_TRITON = Triton()


def function_in_triton(name: str, formula: Formula) -> str:
    """Return a Triton function that takes the addresses of inputs and outputs, and the number of elements or rows."""
    inputs, outputs = range(len(formula.inputs)), range(len(formula.outputs))
    head = [*(f"x{i}" for i in inputs), *(f"y{k}" for k in outputs), "n"]
    lines, names = _elements(formula) if formula.row is None else _rows(formula)
    mask = "mask" if formula.row is not None else "None if EVEN else mask"
    loads = [f"a{i} = tl.load(x{i} + at, mask=({mask}), other={1.0 if formula.row is None else 0.0})" for i in inputs]
    if formula.row is None:
        loads = [
            line for i in inputs
            for line in (
                "if EVEN:", f"    a{i} = tl.load(x{i} + at)", "else:",
                f"    a{i} = tl.load(x{i} + at, mask=mask, other=1.0)",
            )
        ]  # fmt: skip
    for place, step in enumerate(formula.steps):
        number = len(formula.inputs) + place
        if step.op in ("sum", "mean", "amax", "amin"):
            names[number] = f"t{number}"
            lines_of = _reduced(formula, step.op, names[step.arguments[0].number], step.arguments[0].number)
            loads.append(f"t{number} = {lines_of}")
            continue
        written = expression(_TRITON, formula, step, names)
        if step.op == "constant":
            names[number] = written
            continue
        names[number] = f"t{number}"
        loads.append(f"t{number} = {written}")
    whole = "tl.zeros_like(a0)"
    stores = []
    for k, number in enumerate(formula.outputs):
        value = _TRITON.converted(names[number], formula.kind(number)[0], torch.float32)
        value = value if number < len(formula.inputs) else f"{whole} + {value}"
        if formula.row is None:
            stores += ["if EVEN:", f"    tl.store(y{k} + at, {value})", "else:"]
            stores.append(f"    tl.store(y{k} + at, {value}, mask=mask)")
        else:
            stores.append(f"tl.store(y{k} + at, {value}, mask=mask)")
    body = "\n".join(f"    {line}" for line in [*lines, *loads, *stores])
    constants = "BLOCK: tl.constexpr, EVEN: tl.constexpr" if formula.row is None else (
        "ROWS: tl.constexpr, BLOCK: tl.constexpr"
    )  # fmt: skip
    return f'@triton.jit(do_not_specialize=["n"])\ndef {name}({", ".join(head)}, {constants}):\n{body}\n\n\n'


def _elements(formula: Formula) -> tuple[list[str], dict[int, str]]:
    lines = ["at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)", "mask = at < n"]
    return lines, {i: f"a{i}" for i in range(len(formula.inputs))}


def _rows(formula: Formula) -> tuple[list[str], dict[int, str]]:
    lines = [
        "row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]",
        "column = tl.arange(0, BLOCK)[None, :]",
        f"inside = column < {formula.row}",
        "mask = (row < n) & inside",
        f"at = row * {formula.row} + column",
    ]
    return lines, {i: f"a{i}" for i in range(len(formula.inputs))}


def _reduced(formula: Formula, op: str, x: str, number: int) -> str:
    """Return a sum, mean, maximum or minimum along the row, of the elements inside it."""
    x = _TRITON.converted(x, formula.kind(number)[0], torch.float32)
    fill = {"amax": 'float("-inf")', "amin": 'float("inf")'}.get(op, "0.0")
    inner = f"tl.where(inside, {x}, {fill})"
    function = {"amax": "max", "amin": "min"}.get(op, "sum")
    whole = f"tl.{function}({inner}, 1)[:, None]"
    return f"{whole} / {formula.row}" if op == "mean" else whole
