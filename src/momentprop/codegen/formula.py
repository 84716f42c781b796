"""Records a kernel's operations, so that they can be printed as one loop over the elements."""

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from momentprop.torch_compat.dispatching import DispatchMode

Reference = int
"""The number of a result: inputs come first, then the steps in their order."""


class Unprintable(Exception):  # noqa: N818 (an outcome, not an error of the caller)
    """A kernel uses an operation that cannot be printed."""


class Step(NamedTuple):
    """One operation: its name, its arguments (references and numbers), and its result."""

    op: str
    arguments: tuple[Any, ...]
    dtype: torch.dtype
    wide: bool  # it has one element for each element of a row, not one for the whole row


class Reference_(NamedTuple):  # noqa: N801 (a marker, apart from numbers)
    """An argument that refers to an input or a step's result."""

    number: int


class Formula(NamedTuple):
    """What a kernel computes, element by element or row by row."""

    dtype: torch.dtype
    inputs: tuple[bool, ...]  # whether each is wide
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    row: int | None = None  # the length of a row, if sums along rows occur
    contraction: Literal["product", "pullback"] | None = None  # the first input is a contraction, or this its pullback

    def kind(self, number: int) -> tuple[torch.dtype, bool]:
        """Return the type of a result, and whether it is wide."""
        if number < len(self.inputs):
            return self.dtype, self.inputs[number]
        step = self.steps[number - len(self.inputs)]
        return step.dtype, step.wide


_RECORDING = threading.local()


def recording() -> bool:
    """Return whether a formula is being recorded: sums over nodes are then written out."""
    return getattr(_RECORDING, "on", False)


def record(
    function: Callable[..., Sequence[Tensor]], inputs: Sequence[bool], dtype: torch.dtype, row: int | None = None
) -> Formula:
    """Record a function of some tensors, elementwise or, with a length of `row`, along the last dimension.

    `inputs` says for each tensor whether it is wide; the last dimension of one that is not is 1. Raises `Unprintable`
    where the function does what no loop can.
    """
    shapes = [(2, 3 if row is None else row if wide else 1) for wide in inputs]
    # not on the device `meta`, for which torch imports dynamo; NaN, so that no look at the data goes unnoticed
    _RECORDING.on = True
    try:
        with torch.inference_mode(False), torch.enable_grad():
            given = [torch.full(shape, math.nan, dtype=dtype, device="cpu", requires_grad=True) for shape in shapes]
            recorder = _Recorder(given, dtype, row)
            with recorder:
                results = function(*given)
        outputs = tuple(recorder.number_of(result) for result in results)
    except Unprintable:
        raise
    except Exception as error:  # such as a look at the shape, which differs from the call's
        raise Unprintable(str(error)) from error
    finally:
        _RECORDING.on = False
    return pruned(Formula(dtype, tuple(inputs), tuple(recorder.steps), outputs, row))


class _Recorder(DispatchMode):  # type: ignore[misc, unused-ignore]
    """Numbers the results of operations."""

    def __init__(self, inputs: Sequence[Tensor], dtype: torch.dtype, row: int | None) -> None:
        super().__init__()
        self.dtype = dtype
        self.steps: list[Step] = []
        self.row = row
        self.arity = len(inputs)
        self.kept: list[Tensor] = list(inputs)  # a freed tensor's identity could pass to another
        self.numbers: dict[int, int] = {id(tensor): number for number, tensor in enumerate(inputs)}
        self.known: dict[tuple[Any, ...], int] = {}

    def number_of(self, tensor: Tensor) -> int:
        """Return the number of a tensor."""
        found = self.numbers.get(id(tensor))
        if found is None:
            raise Unprintable("its formula uses a tensor of unknown content")
        return found

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Torch calls this for every operation below autograd."""
        kwargs = kwargs or {}
        name = function.overloadpacket.__name__
        if name == "_local_scalar_dense":
            raise Unprintable("its formula looks at the data")
        result = function(*args, **kwargs)
        if not isinstance(result, Tensor):
            raise Unprintable(name)
        number = self._taken(name, function, args, kwargs, result)
        self.kept.append(result)
        self.numbers[id(result)] = number
        if name.endswith("_") and not name.endswith("__"):
            self.numbers[id(args[0])] = number
        return result

    def _taken(self, name: str, function: Any, args: Any, kwargs: Any, result: Tensor) -> int:
        op = name.rstrip("_")
        values = {argument.name: argument.default_value for argument in function._schema.arguments}
        values.update(zip(values, args, strict=False))
        values.update(kwargs)
        if op in _SAME and result.dtype == _first(values).dtype:
            return self._same(_first(values), result)
        if op in ("_to_copy", "clone", "to"):
            if result.dtype is torch.int64:
                raise Unprintable(f"{op} of type {result.dtype}")
            return self._step("convert", (self._of(_first(values)),), result)
        if op in _CONSTANTS:
            return self._step("constant", (float(_constant(op, values)),), result)
        if op in _ROWS:
            return self._along_row(op, values, result)
        if op in _SOFTMAX:
            return self._softmax(op, values)
        if op == "arange" and result.shape == (self.row,):
            return self._step("index", (), result)
        if op not in _OPERANDS:
            raise Unprintable(name)
        operands = tuple(self._operand(values[each]) for each in _OPERANDS[op])
        if op in ("add", "sub", "rsub") and values.get("alpha", 1) != 1:
            raise Unprintable(f"{op} with alpha")
        if op == "div" and values.get("rounding_mode") is not None:
            raise Unprintable("a rounded division")
        return self._step(op, operands, result)

    def _operand(self, given: Any) -> Any:
        return self._of(given) if isinstance(given, Tensor) else given

    def _of(self, tensor: Tensor) -> Reference_:
        if id(tensor) not in self.numbers and tensor.device.type == "cpu" and tensor.ndim == 0:
            return Reference_(self._step("constant", (float(tensor),), tensor))
        return Reference_(self.number_of(tensor))

    def _same(self, source: Tensor, result: Tensor) -> int:
        number = self.number_of(source)
        if result.shape[-1:] != source.shape[-1:] and result.ndim and result.shape[-1] != 1:
            return self._step("spread", (Reference_(number),), result)
        return number

    def _along_row(self, op: str, values: dict[str, Any], result: Tensor) -> int:
        source, dims = values["self"], values.get("dim")
        dims = [dims] if isinstance(dims, int) else list(dims or ())
        along = [d % source.ndim for d in dims] == [source.ndim - 1] and values.get("keepdim", False)
        if self.row is None or not along:
            raise Unprintable(f"{op} not along a row")
        return self._of_row(op, self._of(source), result)

    def _of_row(self, op: str, source: Reference_, result: Tensor) -> int:
        """Return a sum, mean or extremum of a row; for one number for the whole row, the number or a multiple."""
        if self._is_wide(source):
            return self._step(op, (source,), result)
        return self._step("mul", (source, self.row), result) if op == "sum" else source.number

    def _is_wide(self, source: Reference_) -> bool:
        number = source.number
        return self.kept[number].shape[-1] != 1 if number < self.arity else self.steps[number - self.arity].wide

    def _softmax(self, op: str, values: dict[str, Any]) -> int:
        """Write out a softmax along the row, its logarithm, or the derivative of one of them."""
        if self.row is None or values["dim"] not in (-1, 1):
            raise Unprintable(f"{op} not along a row")

        def step(op: str, *arguments: Any, wide: bool = True) -> Reference_:
            return Reference_(self._noted(Step(op, arguments, self.dtype, wide)))

        if "backward" in op:
            gradient, output = self._of(values["grad_output"]), self._of(values["output"])
            weight = step("exp", output) if "log" in op else output
            term = gradient if "log" in op else step("mul", gradient, output)
            share = step("mul", weight, step("sum", term, wide=False))
            return step("sub", term, share).number
        x = self._of(values["self"])
        below = step("sub", x, step("amax", x, wide=False))
        parts = step("exp", below)
        whole = step("sum", parts, wide=False)
        return (step("sub", below, step("log", whole, wide=False)) if "log" in op else step("div", parts, whole)).number

    def _step(self, op: str, arguments: tuple[Any, ...], result: Tensor) -> int:
        dtype = self.dtype if result.dtype is torch.int64 else result.dtype  # counts along a row
        if dtype not in (torch.float32, torch.float64, torch.bool):
            raise Unprintable(f"{op} of type {dtype}")
        if result.ndim > 2 or (self.row is None and result.numel() not in (1, 6)):
            raise Unprintable(f"{op} changes the shape")
        wide = bool(result.ndim) and result.shape[-1] != 1 and (result.ndim == 2 or self.row is not None)
        return self._noted(Step(op, arguments, dtype, wide))

    def _noted(self, step: Step) -> int:
        """Return a step's number; equal steps are kept once, because a kernel and its derivatives repeat themselves."""
        if step not in self.known:
            self.known[step] = self.arity + len(self.steps)
            self.steps.append(step)
        return self.known[step]


def _first(values: dict[str, Any]) -> Any:
    return next(iter(values.values()))


def _constant(op: str, values: dict[str, Any]) -> Any:
    if op in ("zeros_like", "new_zeros", "zeros"):
        return 0.0
    if op in ("ones_like", "new_ones", "ones"):
        return 1.0
    return values["fill_value"] if "fill_value" in values else values["s"]


def pruned(formula: Formula) -> Formula:
    """Return the formula without steps that no output needs."""
    arity = len(formula.inputs)
    needed: set[int] = set()
    left = [number for number in formula.outputs if number >= arity]
    while left:
        number = left.pop()
        if number not in needed:
            needed.add(number)
            arguments = formula.steps[number - arity].arguments
            left += [each.number for each in arguments if isinstance(each, Reference_) and each.number >= arity]
    order = {number: arity + place for place, number in enumerate(sorted(needed))}
    order.update((number, number) for number in range(arity))

    def renumbered(step: Step) -> Step:
        arguments = (Reference_(order[x.number]) if isinstance(x, Reference_) else x for x in step.arguments)
        return step._replace(arguments=tuple(arguments))

    steps = tuple(renumbered(formula.steps[number - arity]) for number in sorted(needed))
    return formula._replace(steps=steps, outputs=tuple(order[number] for number in formula.outputs))


_SAME = frozenset("detach alias expand view _unsafe_view clone lift_fresh lift_fresh_copy _to_copy to positive".split())
_CONSTANTS = frozenset(
    "zeros_like ones_like full_like scalar_tensor new_zeros new_ones new_full full zeros ones".split()
)
_ROWS = frozenset("sum mean amax amin".split())
_SOFTMAX = frozenset("_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data".split())
_UNARY = (
    "abs neg exp exp2 log log1p expm1 sqrt rsqrt reciprocal sin cos tanh sigmoid erf erfc sign sgn relu logical_not "
    "bitwise_not isinf isnan atan"
)
_BINARY = "add sub mul div minimum maximum logical_and logical_or bitwise_and bitwise_or gt lt ge le eq ne"
_OPERANDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_UNARY.split(), ("self",)),
    **dict.fromkeys(_BINARY.split(), ("self", "other")),
    "rsub": ("self", "other"),
    "pow": ("self", "exponent"),
    "where": ("condition", "self", "other"),
    "clamp": ("self", "min", "max"),
    "clamp_min": ("self", "min"),
    "clamp_max": ("self", "max"),
    "nan_to_num": ("self", "nan", "posinf", "neginf"),
    "leaky_relu": ("self", "negative_slope"),
    "threshold_backward": ("grad_output", "self", "threshold"),
    "tanh_backward": ("grad_output", "output"),
    "sigmoid_backward": ("grad_output", "output"),
    "masked_fill": ("self", "mask", "value"),
    "softplus": ("self", "beta", "threshold"),
    "softplus_backward": ("grad_output", "self", "beta", "threshold"),
}
