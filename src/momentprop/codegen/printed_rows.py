"""Prints formulas of rows as C: a loop over rows, with one pass over the row for each level of sums."""

from momentprop.codegen.c_language import TYPES, in_parallel, output, statements, term_of
from momentprop.codegen.formula import Formula, Reference_, Unprintable

_MOST_ON_THE_STACK = 1 << 17  # bytes of the arrays of a row
_MOST = 1 << 26  # bytes of these arrays in the caller's memory
_LINE = 64  # bytes of a cache line
_REDUCTIONS = ("sum", "mean", "amax", "amin")


def rows_in_c(formula: Formula) -> str:
    """Return a loop over rows, which threads share."""
    row, inputs = Row(formula), range(len(formula.inputs))
    lines = [given_row(formula, i, f"x{i} + row_of(row, e{i}, p{i}) * {width(formula, i)}") for i in inputs]
    lines += [made_row(formula, k, f"y{k} + row * {width(formula, n)}") for k, n in enumerate(formula.outputs)]
    body = "\n".join(f"        {line}" for line in [*lines, *row.in_c("=")])
    room = f"char *room = scratch + {row.room}L * omp_get_thread_num();" if row.room else ""
    return in_parallel("", f"for (int64_t row = 0; row < n; row++) {{\n{body}\n    }}", room)


def room_of_row(formula: Formula) -> int:
    """Return how many bytes a thread needs for the arrays of a row."""
    return Row(formula).room


def width(formula: Formula, number: int) -> int:
    """Return how many elements a result has for each row: one for each element, or only one."""
    return (formula.row or 1) if formula.kind(number)[1] else 1


def given_row(formula: Formula, i: int, at: str) -> str:
    """Return the declaration of a row of an input at an address: `r0`, or `a0` for one number."""
    kind = TYPES[formula.dtype]
    return f"const {kind} *restrict r{i} = {at};" if formula.inputs[i] else f"{kind} a{i} = *({at});"


def made_row(formula: Formula, k: int, at: str) -> str:
    """Return the declaration of a row of an output at an address: `s0`."""
    return f"{TYPES[formula.dtype]} *restrict s{k} = {at};"


class Row:
    """The passes over a row.

    A reduction belongs to the pass that reads its terms; whatever depends on it belongs to a later one.
    """

    def __init__(self, formula: Formula) -> None:
        self.formula = formula
        self.arity = len(formula.inputs)
        self.names = {i: f"a{i}" for i in range(self.arity)}
        self.level: list[int] = []  # the pass in which each step is made
        read: dict[int, int] = {}  # the last pass in which each result is read
        for step in formula.steps:
            used = [x.number for x in step.arguments if isinstance(x, Reference_)]
            now = max((self._ready(number) for number in used), default=0)
            self.level.append(now)
            read.update({number: max(read.get(number, 0), now) for number in used})
        self.last = max(map(self._pass_of, (*range(self.arity, self.arity + len(self.level)), *formula.outputs)))
        self.stored = [
            number
            for number, step in enumerate(formula.steps, self.arity)
            if step.wide and step.op not in ("constant", "index") and read.get(number, 0) > self._pass_of(number)
        ]
        self.array = -(-(formula.row or 0) * formula.dtype.itemsize // _LINE) * _LINE  # bytes, of whole cache lines
        size = len(self.stored) * self.array
        if size > _MOST:
            raise Unprintable("the rows are too long")
        self.room = size if size > _MOST_ON_THE_STACK else 0

    def in_c(self, *signs: str) -> list[str]:
        """Return the code for one row; signs such as `=` store the outputs, and the last sign repeats."""
        formula = self.formula
        stored = [signs[min(k, len(signs) - 1)] for k in range(len(formula.outputs))]
        lines = [self._array(place, s) for place, s in enumerate(self.stored)]
        for now in range(self.last + 1):
            lines += self._passed(now, stored)
        for k, number in enumerate(formula.outputs):
            if not formula.kind(number)[1]:
                lines.append(f"*s{k} {stored[k]} {output(formula, self.names, number)};")
        return lines

    def _array(self, place: int, number: int) -> str:
        """Return the declaration of an array that keeps a result for later passes: on the stack, if all fit there."""
        kind = TYPES[self.formula.steps[number - self.arity].dtype]
        if not self.room:
            return f"{kind} w{number}[{self.formula.row}];"
        return f"{kind} *restrict w{number} = ({kind} *)(room + {place * self.array});"

    def _pass_of(self, number: int) -> int:
        return 0 if number < self.arity else self.level[number - self.arity]

    def _ready(self, number: int) -> int:
        """Return the first pass that may read a result."""
        return self._pass_of(number) + (number >= self.arity and self._is_reduction(number - self.arity))

    def _is_reduction(self, place: int) -> bool:
        return self.formula.steps[place].op in _REDUCTIONS

    def _passed(self, now: int, stored: list[str]) -> list[str]:
        """Return one pass over a row: numbers for the whole row, then a loop with its sums."""
        formula, arity, names = self.formula, self.arity, self.names
        here = [place for place in range(len(formula.steps)) if self.level[place] == now]
        sums = [place for place in here if self._is_reduction(place)]
        lines = statements(formula, names, [p for p in here if not formula.steps[p].wide and p not in sums])
        clauses = []
        for place in sums:
            step, name = formula.steps[place], f"t{arity + place}"
            start, clause = {"amax": ("-INFINITY", "max"), "amin": ("INFINITY", "min")}.get(step.op, ("0", "+"))
            lines.append(f"{TYPES[step.dtype]} {name} = {start};")
            names[arity + place] = name
            clauses.append(f"reduction({clause}:{name})")
        loop = [f"{TYPES[formula.dtype]} a{i} = r{i}[i];" for i, wide in enumerate(formula.inputs) if wide]
        kept = [s for s in self.stored if self._pass_of(s) < now]
        loop += [f"{TYPES[formula.steps[s - arity].dtype]} t{s} = w{s}[i];" for s in kept]
        again = [p for p, step in enumerate(formula.steps) if step.op == "index" and self.level[p] < now]
        loop += statements(formula, names, [*again, *(p for p in here if formula.steps[p].wide)])
        loop += [f"w{s}[i] = t{s};" for s in self.stored if self._pass_of(s) == now]
        loop += [self._added(place) for place in sums]
        for k, number in enumerate(formula.outputs):
            if formula.kind(number)[1] and self._pass_of(number) == now:
                loop.append(f"s{k}[i] {stored[k]} {output(formula, names, number)};")
        inner = "\n".join(f"            {line}" for line in loop)
        head = f"for (int i = 0; i < {formula.row}; i++)"
        lines.append(f"#pragma omp simd {' '.join(clauses)}\n        {head} {{\n{inner}\n        }}")
        return [*lines, *(f"t{arity + p} /= {formula.row};" for p in sums if formula.steps[p].op == "mean")]

    def _added(self, place: int) -> str:
        """Return the statement that adds a term to a sum, or compares it with an extremum."""
        step, name = self.formula.steps[place], f"t{self.arity + place}"
        x = term_of(self.formula, self.names, step)
        sign = {"amax": ">", "amin": "<"}.get(step.op)
        return f"{name} += {x};" if sign is None else f"{name} = {x} {sign} {name} ? {x} : {name};"
