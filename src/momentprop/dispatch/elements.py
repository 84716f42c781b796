"""Which elements a value has: this shows where an element meets itself or a copy.

A value that comes from a move (a transpose, a slice, a stack, repeated indices) remembers the move and what was moved:
not the tensors, but which elements they are. We find the elements' numbers on demand, by moving numbers. A new value is
a *root*, with its own elements; one made by an elementwise operation also knows its arguments.
"""

from typing import Any

import torch
from torch import Tensor

from momentprop.dispatch.call import Call
from momentprop.dispatch.operand import Operand
from momentprop.dispatch.places import repeats, wide


class Elements(Operand):
    """A value's elements: a root, a function of each of other elements (`of`), or one output of a move."""

    def __init__(self, value: Any, move: Call | None = None, output: int = 0, of: "Elements | None" = None) -> None:
        first = value.leading
        self.shape = first.shape
        self.device = first.device
        self.move = move  # with elements in place of the values
        self.output = output
        self.of = of

    def numel(self) -> int:
        """Return how many there are."""
        return int(self.shape.numel())

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def parents(self) -> list["Elements"]:
        """What these elements were moved from, or are functions of."""
        if self.move is not None:
            return list(self.move.values)
        return [] if self.of is None else [self.of]


def elements_of(value: Any) -> Elements:
    """Return a value's elements, which are its own unless it comes from a move."""
    writes = value.memory[0] if value.memory else 0
    if value.elements is not None and value.elements[1] == writes:
        return value.elements[0]  # type: ignore[no-any-return]
    origin, of = value.origin, None
    if origin is not None and origin[1] == writes and origin[0].base is not value:
        of = elements_of(origin[0].base)
    found = Elements(value, of=of)
    value.elements = (found, writes)
    return found


def remember_move(call: Call, result: Any) -> None:
    """Let a move's result remember the moved elements."""
    operation, values = call.operation, call.values
    memory = values[0].memory if operation.views else None
    writes = memory[0] if memory else 0
    parents = [elements_of(value) for value in values]
    if operation.converts:
        if isinstance(result, Operand):
            result.elements = (parents[0], writes)  # type: ignore[misc]
        return
    if call.leads:  # nearly always
        args, kwargs = [parents[0], *call.args[1:]], call.kwargs
    else:
        args, kwargs = call.filled(parents)
    move = Call(operation, args, kwargs, parents)
    if isinstance(result, Operand):
        result.elements = (Elements(result, move), writes)  # type: ignore[misc]
        return
    for position, value in enumerate(result if isinstance(result, tuple) else ()):
        if isinstance(value, Operand):
            value.elements = (Elements(value, move, position), writes)  # type: ignore[misc]


def related(x: Any, y: Any) -> bool:
    """Return whether an element of one value can be an element of another, or a function of one."""
    if x is y:
        return True
    if x.elements is None and x.origin is None and y.elements is None and y.origin is None:
        return False
    first, second = elements_of(x), elements_of(y)
    return not _roots(first, True).isdisjoint(_roots(second, True)) and not _apart(first, second)


def share(x: Any, y: Any) -> bool:
    """Return whether two values can share elements themselves, not only functions of them."""
    if x is y:
        return True
    if x.elements is None or y.elements is None:  # moved values have them, and so do their sources
        return False
    first, second = elements_of(x), elements_of(y)
    return not _roots(first, False).isdisjoint(_roots(second, False)) and not _apart(first, second)


def may_repeat(elements: Elements) -> bool:
    """Return whether an element can occur more than once, judged without looking at indices."""
    move, parents = elements.move, elements.parents
    if move is None:
        return False
    if any(may_repeat(parent) for parent in parents) or _copies(move, elements):
        return True
    pairs = ((a, b) for i, a in enumerate(parents) for b in parents[:i])
    return any(not _roots(a, False).isdisjoint(_roots(b, False)) and not _apart(a, b) for a, b in pairs)


def numbers(*values: Any) -> tuple[list[Tensor], int]:
    """Return the numbers of the values' elements, and one more than the largest possible number.

    Equal elements have equal numbers; constants have zero.
    """
    starts: dict[Elements, int] = {}
    count = 1
    for value in values:
        for root in _roots(elements_of(value), False):
            if root not in starts:
                starts[root] = count
                count += root.numel()
    return [_numbered(elements_of(value), starts).long().to(value.device) for value in values], count


def _numbered(elements: Elements, starts: dict[Elements, int]) -> Tensor:
    move = elements.move
    if move is None:
        start = starts[elements]
        found = torch.arange(start, start + elements.numel(), dtype=torch.float64, device=elements.device)
        return found.reshape(elements.shape)
    homogeneous = move.operation.homogeneous(move)
    args = [wide(argument) for argument in homogeneous.args]
    kwargs = {name: wide(argument) for name, argument in homogeneous.kwargs.items()}
    with torch.no_grad():
        result = Call(move.operation, args, kwargs).on(*(_numbered(parent, starts) for parent in move.values))
    return result if isinstance(result, Tensor) else result[elements.output]


def _roots(elements: Elements, functions: bool) -> set[Elements]:
    """Return the roots that elements were moved from and, if requested, those that they are functions of."""
    found, left = set(), [elements]
    while left:
        each = left.pop()
        if each.move is not None:
            left += each.parents
        elif each not in found:
            found.add(each)
            left += each.parents if functions else []
    return found


def _apart(x: Elements, y: Elements) -> bool:
    """Return whether two sets of elements come from different parts of a whole, as chunks do."""
    above_x, above_y = _line(x), _line(y)
    for a in above_x:
        for b in above_y:
            if a is b:
                return False
            if a.parents and b.parents and a.parents[0] is b.parents[0] and _cut_apart(a, b):
                return True
    for line, other in ((above_x, y), (above_y, x)):
        if len(line[-1].parents) > 1:
            return all(_apart(parent, other) for parent in line[-1].parents)
    return True  # two roots


def _line(elements: Elements) -> list[Elements]:
    """Return elements and what they come from, back to a root or to a join of several."""
    line = [elements]
    while len(line[-1].parents) == 1:
        line += line[-1].parents
    return line


def _cut_apart(a: Elements, b: Elements) -> bool:
    first, second = a.move, b.move
    if first is None or second is None:
        return False
    if len(first.values) > 1 or len(second.values) > 1:
        return False
    if first is second:
        return a.output != b.output and not first.operation.copies
    if first.op == second.op == "getitem":
        return _different(first.args[1], second.args[1], a.parents[0])
    same = first.op == second.op == "select" and first.args[1:2] == second.args[1:2]
    return same and len(first.args) == 3 == len(second.args) and bool(first.args[2] != second.args[2])


def _different(a: Any, b: Any, parent: Elements) -> bool:
    """Return whether two indices surely select different elements: different numbers, or slices without overlap."""
    a, b = (index if isinstance(index, tuple) else (index,) for index in (a, b))
    pairs = list(zip(_before_ellipsis(a), _before_ellipsis(b), range(len(parent.shape)), strict=False))
    pairs += [
        (i, j, len(parent.shape) - 1 - k)
        for i, j, k in zip(_before_ellipsis(a[::-1]), _before_ellipsis(b[::-1]), range(len(parent.shape)), strict=False)
        if Ellipsis in a and Ellipsis in b
    ]
    return any(_apart_along(i, j, parent.shape[dim]) for i, j, dim in pairs)


def _before_ellipsis(index: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the part of an index where one entry stands for one dimension."""
    for position, entry in enumerate(index):
        if not (isinstance(entry, slice) or type(entry) is int):
            return index[:position]
    return index


def _apart_along(i: Any, j: Any, size: int) -> bool:
    first, second = (
        range(size)[entry] if isinstance(entry, slice) else range(entry % size, entry % size + 1) for entry in (i, j)
    )
    return not len(first) or not len(second) or first[-1] < second[0] or second[-1] < first[0]


def _copies(move: Call, elements: Elements) -> bool:
    """Return whether a move can copy elements of one value; if only an index can tell, the answer is yes."""
    copies = move.operation.copies
    if copies is not repeats:
        return len(move.values) == 1 and bool(move.operation.copying(move))
    if move.op == "getitem":
        index = move.args[1] if isinstance(move.args[1], tuple) else (move.args[1],)
        return not all(entry is None or entry is Ellipsis or type(entry) in (int, slice) for entry in index)
    if move.op in ("where", "masked_fill", "copy", "setitem"):
        return any(parent.shape != elements.shape for parent in move.values)
    return True
