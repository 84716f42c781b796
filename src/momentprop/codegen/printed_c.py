"""Prints formulas as C: one loop over all elements, which a compiler turns into vector instructions."""

import torch

from momentprop.codegen.c_language import TYPES, in_parallel, output, statements
from momentprop.codegen.choices import assuming, worth_asking
from momentprop.codegen.formula import Formula, pruned
from momentprop.codegen.printed_contraction import contraction_in_c
from momentprop.codegen.printed_rows import rows_in_c

_BLOCK = 128  # elements that are tested for a condition together


def function_in_c(name: str, formula: Formula) -> str:
    """Return a C function that takes arrays of inputs and of outputs, and the number of elements or of rows.

    The parameters are the addresses of the inputs and the outputs, the count, and the number of threads. A function of
    rows also takes memory for all threads (see `printed_rows.room_of_row`) and, for each input, how its rows repeat
    (see `layout.repetition`). A function of a contraction takes more: see `printed_contraction`.
    """
    if formula.contraction is not None:
        return contraction_in_c(name, formula)
    body = _elements(formula) if formula.row is None else rows_in_c(formula)
    kind = TYPES[formula.dtype]
    given = [f"const {kind} *restrict x{i}" for i in range(len(formula.inputs))]
    given += [f"{kind} *restrict y{k}" for k in range(len(formula.outputs))]
    given += ["int64_t n", "int threads"]
    if formula.row is not None:
        given += ["char *scratch", *(f"int64_t e{i}, int64_t p{i}" for i in range(len(formula.inputs)))]
    return f"void {name}({', '.join(given)}) {{\n{body}}}\n"


def _elements(formula: Formula) -> str:
    """Return a loop over elements; it tests blocks for a condition if that saves much."""
    condition = worth_asking(formula)
    if condition is None:
        return in_parallel("simd", f"for (int64_t i = 0; i < n; i++) {_loop_body(formula)}")
    count = pruned(formula._replace(outputs=(condition,)))
    loop = "#pragma omp simd{}\n    for (int64_t i = start; i < end; i++) {}\n"
    asked = loop.format(" reduction(+:count)", _loop_body(count, "count += {value};"))
    yes, no = (loop.format("", _loop_body(assuming(formula, condition, answer))) for answer in (True, False))
    either = loop.format("", _loop_body(formula))
    blocks = (
        f"for (int64_t start = 0; start < n; start += {_BLOCK}) {{\n"
        f"    int64_t end = start + {_BLOCK} < n ? start + {_BLOCK} : n;\n    int count = 0;\n    {asked}"
        f"    if (count == end - start) {{\n    {yes}    }} else if (count == 0) {{\n    {no}    }} else {{\n"
        f"    {either}    }}\n    }}"
    )
    return in_parallel("", blocks)


def _loop_body(formula: Formula, stored: str = "y{k}[i] = {value};") -> str:
    """Return the code for one element."""
    names = {i: f"a{i}" for i in range(len(formula.inputs))}
    kind = TYPES[formula.dtype]
    lines = [f"{kind} a{i} = x{i}[i];" for i in range(len(formula.inputs))]
    lines += statements(formula, names, range(len(formula.steps)))
    for k, number in enumerate(formula.outputs):
        value = names[number] if formula.kind(number)[0] is torch.bool else output(formula, names, number)
        lines.append(stored.format(k=k, value=value))
    loop = "\n".join(f"        {line}" for line in lines)
    return f"{{\n{loop}\n    }}"
