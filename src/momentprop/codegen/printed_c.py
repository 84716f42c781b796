"""Prints formulas as C: one loop over all elements, which a compiler turns into vector instructions."""

import math
from collections.abc import Sequence

import torch

from momentprop.codegen.expressions import Language, expression
from momentprop.codegen.formula import Formula, Reference_

HEADER = """\
#include <math.h>
#include <stdint.h>
#if defined(__x86_64__) && defined(__GLIBC__) && __GLIBC__ == 2 && __GLIBC_MINOR__ >= 35 && !defined(__clang__)
#define VECTOR __attribute__((simd("notinbranch")))
VECTOR float expf(float); VECTOR float exp2f(float); VECTOR float logf(float); VECTOR float log1pf(float);
VECTOR float expm1f(float); VECTOR float sinf(float); VECTOR float cosf(float); VECTOR float tanhf(float);
VECTOR float erff(float); VECTOR float erfcf(float); VECTOR float atanf(float);
VECTOR float powf(float, float); VECTOR double pow(double, double);
VECTOR double exp(double); VECTOR double exp2(double); VECTOR double log(double); VECTOR double log1p(double);
VECTOR double expm1(double); VECTOR double sin(double); VECTOR double cos(double); VECTOR double tanh(double);
VECTOR double erf(double); VECTOR double erfc(double); VECTOR double atan(double);
#endif
"""
_TYPES = {torch.float32: "float", torch.float64: "double", torch.bool: "int"}


class C(Language):
    """The language C."""

    def number(self, value: float, dtype: torch.dtype) -> str:
        """Return a constant."""
        if dtype is torch.bool:
            return str(int(value))
        if math.isnan(value):
            return "NAN"
        if math.isinf(value):
            return "(-INFINITY)" if value < 0 else "INFINITY"
        single = dtype is torch.float32
        rounded = torch.tensor(value, dtype=dtype).item()
        if math.isinf(rounded):
            return "(-INFINITY)" if value < 0 else "INFINITY"
        return f"({float(rounded).hex()}{'f' if single else ''})"

    def choice(self, condition: str, one: str, other: str) -> str:
        """Return one of two expressions."""
        return f"({condition} ? {one} : {other})"

    def call(self, function: str, x: str, dtype: torch.dtype) -> str:
        """Return a function of the mathematical library."""
        suffix = "f" if dtype is torch.float32 else ""
        if function == "rsqrt":
            return f"({self.number(1.0, dtype)} / sqrt{suffix}({x}))"
        return f"{'fabs' if function == 'abs' else function}{suffix}({x})"

    def power(self, x: str, exponent: str, dtype: torch.dtype) -> str:
        """Return any power."""
        return f"pow{'f' if dtype is torch.float32 else ''}({x}, {exponent})"

    def converted(self, x: str, source: torch.dtype, dtype: torch.dtype) -> str:
        """Return an expression in another type."""
        if source is dtype:
            return x
        return f"({x} != 0)" if dtype is torch.bool else f"(({_TYPES[dtype]}){x})"

    def negated(self, a: str) -> str:
        """Return whether a condition does not hold."""
        return f"(!{a})"


_C = C()


def function_in_c(name: str, formula: Formula) -> str:
    """Return a C function that takes arrays of inputs and of outputs, and the number of elements or of rows.

    The parameters are the addresses of the inputs, those of the outputs, the count, and the number of threads.
    """
    body = _elements(formula) if formula.row is None else _rows(formula)
    kind = _TYPES[formula.dtype]
    inputs = [f"const {kind} *restrict x{i}" for i in range(len(formula.inputs))]
    outputs = [f"{kind} *restrict y{k}" for k in range(len(formula.outputs))]
    return f"void {name}({', '.join(inputs + outputs)}, int64_t n, int threads) {{\n{body}}}\n"


def _elements(formula: Formula) -> str:
    names = {i: f"a{i}" for i in range(len(formula.inputs))}
    kind = _TYPES[formula.dtype]
    lines = [f"{kind} a{i} = x{i}[i];" for i in range(len(formula.inputs))]
    lines += _statements(formula, names, range(len(formula.steps)))
    lines += [f"y{k}[i] = {_output(formula, names, number)};" for k, number in enumerate(formula.outputs)]
    loop = "\n".join(f"        {line}" for line in lines)
    pragma = "#pragma omp parallel for simd schedule(static) num_threads(threads) if(parallel: threads > 1)"
    return f"{pragma}\n    for (int64_t i = 0; i < n; i++) {{\n{loop}\n    }}\n"


def _output(formula: Formula, names: dict[int, str], number: int) -> str:
    return _C.converted(names[number], formula.kind(number)[0], formula.dtype)


def _statements(formula: Formula, names: dict[int, str], places: Sequence[int]) -> list[str]:
    """Return the declarations of the results of some steps, and note their names."""
    lines = []
    for place in places:
        step, number = formula.steps[place], len(formula.inputs) + place
        written = expression(_C, formula, step, names)
        if step.op == "constant":
            names[number] = written
            continue
        names[number] = f"t{number}"
        lines.append(f"{_TYPES[step.dtype]} t{number} = {written};")
    return lines


def _rows(formula: Formula) -> str:
    """Return a loop over rows: a pass over the row for each level of sums, and arrays for what later passes need."""
    arity, count = len(formula.inputs), len(formula.steps)
    level, reductions = _levels(formula)
    last = max([*level, 0])
    kind = _TYPES[formula.dtype]
    names = {i: f"a{i}" for i in range(arity)}
    uses: dict[int, int] = {}  # the last pass in which a wide result is read
    for place, step in enumerate(formula.steps):
        for x in step.arguments:
            if isinstance(x, Reference_):
                uses[x.number] = max(uses.get(x.number, 0), level[place] + (0 if place not in reductions else 0))
    for number in formula.outputs:
        uses[number] = last
    stored = [
        arity + place
        for place, step in enumerate(formula.steps)
        if step.wide and step.op != "constant" and place not in reductions and uses.get(arity + place, 0) > level[place]
    ]
    lines = [f"{_TYPES[formula.steps[s - arity].dtype]} w{s}[{formula.row}];" for s in stored]
    for now in range(last + 1):
        lines += _pass(formula, names, now, level, reductions, stored, now == last)
    body = "\n".join(f"        {line}" for line in lines)
    pragma = "#pragma omp parallel for schedule(static) num_threads(threads) if(threads > 1)"
    heads = [f"const {kind} *restrict r{i} = x{i} + row * {formula.row};" for i in range(arity)]
    heads += [f"{kind} *restrict s{k} = y{k} + row * {formula.row};" for k in range(len(formula.outputs))]
    head = "\n".join(f"        {line}" for line in heads)
    return f"{pragma}\n    for (int64_t row = 0; row < n; row++) {{\n{head}\n{body}\n    }}\n"


def _levels(formula: Formula) -> tuple[list[int], set[int]]:
    """Return the pass in which each step is made, and which steps are reductions.

    A reduction belongs to the pass that reads its terms; what depends on it, to a later one.
    """
    arity = len(formula.inputs)
    level: list[int] = []
    reductions: set[int] = set()
    for place, step in enumerate(formula.steps):
        now = 0
        for x in step.arguments:
            if isinstance(x, Reference_) and x.number >= arity:
                before = x.number - arity
                now = max(now, level[before] + (before in reductions))
        if step.op in ("sum", "mean", "amax", "amin"):
            reductions.add(place)
        level.append(now)
    return level, reductions


def _pass(
    formula: Formula,
    names: dict[int, str],
    now: int,
    level: list[int],
    reductions: set[int],
    stored: Sequence[int],
    final: bool,
) -> list[str]:
    """Return one pass over a row: what is one for the row, then a loop with its sums."""
    arity = len(formula.inputs)
    here = [place for place in range(len(formula.steps)) if level[place] == now]
    narrow = [place for place in here if not formula.steps[place].wide and place not in reductions]
    wide = [place for place in here if formula.steps[place].wide]
    sums = [place for place in here if place in reductions]
    lines = _statements(formula, names, narrow)
    clauses = []
    for place in sums:
        step, name = formula.steps[place], f"t{arity + place}"
        start, clause = {"amax": ("-INFINITY", "max"), "amin": ("INFINITY", "min")}.get(step.op, ("0", "+"))
        lines.append(f"{_TYPES[step.dtype]} {name} = {start};")
        names[arity + place] = name
        clauses.append(f"reduction({clause}:{name})")
    loop = [f"{_TYPES[formula.dtype]} a{i} = r{i}[i];" for i in range(arity)]
    kept = [s for s in stored if level[s - arity] < now]
    loop += [f"{_TYPES[formula.steps[s - arity].dtype]} t{s} = w{s}[i];" for s in kept]
    loop += _statements(formula, names, wide)
    loop += [f"w{s}[i] = t{s};" for s in stored if level[s - arity] == now]
    for place in sums:
        step, name = formula.steps[place], f"t{arity + place}"
        x = _C.converted(names[step.arguments[0].number], formula.kind(step.arguments[0].number)[0], step.dtype)
        sign = {"amax": ">", "amin": "<"}.get(step.op)
        loop.append(f"{name} += {x};" if sign is None else f"{name} = {x} {sign} {name} ? {x} : {name};")
    if final:
        loop += [f"s{k}[i] = {_output(formula, names, number)};" for k, number in enumerate(formula.outputs)]
    inner = "\n".join(f"            {line}" for line in loop)
    lines.append(
        f"#pragma omp simd {' '.join(clauses)}\n        for (int i = 0; i < {formula.row}; i++) {{\n{inner}\n        }}"
    )
    lines += [f"t{arity + place} /= {formula.row};" for place in sums if formula.steps[place].op == "mean"]
    return lines
