r"""Linear layers, matrix products and elementwise products.

All of them are bilinear in two factors. If one is plain, such as a weight, they are linear in the other.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from momentprop.dispatch import Call, Kind, Operand, rule
from momentprop.dispatch.kinds import squared
from momentprop.dispatch.registry import bilinear, composite, linear, torch_function
from momentprop.dispatch.rule_table import operation_named
from momentprop.rules.attention.notes import attended, note_factors
from momentprop.rules.elementwise.expressions import follows
from momentprop.rules.independent import by_kind
from momentprop.values import Independent, Normal
from momentprop.values.base import Value
from momentprop.values.moments import is_random, mean_of, some_value, variance_of

Random = Any  # a value or a plain tensor

_ROWS, _COLUMNS = "abcdefgh", "stuvwxyz"  # letters for the dimensions of one factor and of the other


def _spelled(letters: str) -> Any:
    x, y, product = letters.replace("->", ",").split(",")
    return lambda call: (x, y, product)


def _pointwise_letters(call: Call) -> tuple[str, str, str]:
    ndims = [call.given(name).ndim for name in call.operation.factors]
    product = _ROWS[: max(ndims)]
    return product[len(product) - ndims[0] :], product[len(product) - ndims[1] :], product


def _matmul_letters(call: Call) -> tuple[str, str, str]:
    x, y = (call.given(name).ndim for name in call.operation.factors)
    batch = _ROWS[: max(x, y, 2) - 2]
    of_x = batch[len(batch) - x + 2 :] + "ij" if x > 1 else "j"
    of_y = batch[len(batch) - y + 2 :] + "jk" if y > 1 else "j"
    return of_x, of_y, batch + "i" * (x > 1) + "k" * (y > 1)


def _inner_letters(call: Call) -> tuple[str, str, str]:
    x, y = (call.given(name).ndim for name in call.operation.factors)
    of_x, of_y = _ROWS[: x - 1], _COLUMNS[: y - 1]
    return of_x + "j", of_y + "j", of_x + of_y


def _tensordot_letters(call: Call) -> tuple[str, str, str]:
    x, y, dims = call.given("a"), call.given("b"), call.given("dims", 2)
    if isinstance(dims, int):
        dims = [list(range(x.ndim - dims, x.ndim)), list(range(dims))]
    of_x, of_y = list(_ROWS[: x.ndim]), list(_COLUMNS[: y.ndim])
    for i, j in zip(*([each] if isinstance(each, int) else list(each) for each in dims), strict=True):
        of_y[int(j)] = of_x[int(i)]
    product = [letter for letter in of_x if letter not in of_y] + [letter for letter in of_y if letter not in of_x]
    return "".join(of_x), "".join(of_y), "".join(product)


bilinear(
    "linear", on=Normal, parameters="input weight bias", factors="input weight", summands=("bias",),
    letters=_inner_letters,
)  # fmt: skip
bilinear(
    "mul", on=Normal, parameters="input other", factors="input other", pointwise=torch.mul, itself=torch.square,
    diagonal=True, letters=_pointwise_letters,
)  # fmt: skip
bilinear("matmul", on=Normal, parameters="input other", factors="input other", letters=_matmul_letters)
bilinear("inner", on=Normal, parameters="input other", factors="input other", letters=_inner_letters)
bilinear("mm", "bmm", on=Normal, parameters="input mat2", factors="input mat2", letters=_matmul_letters)
bilinear("mv", on=Normal, parameters="input vec", factors="input vec", letters=_matmul_letters)
bilinear("outer", on=Normal, parameters="input vec2", factors="input vec2", letters=_spelled("i,j->ij"))
bilinear("dot", on=Normal, parameters="input tensor", factors="input tensor", letters=_matmul_letters)
bilinear("vdot", on=Normal, parameters="input other", factors="input other", letters=_matmul_letters)


def _summed_dims(call: Call) -> tuple[list[int], list[int]]:
    """Return the dimensions of both factors that `tensordot` sums over."""
    dims, first = call.given("dims", 2), call.given("a")
    dims = dims.tolist() if isinstance(dims, Tensor) else dims
    if isinstance(dims, int):
        return list(range(first.ndim - dims, first.ndim)), list(range(dims))
    of_a, of_b = ([each] if isinstance(each, int) else list(each) for each in dims)
    return of_a, of_b


def _by_sizes(call: Call) -> Kind:
    """Return the kind: composite where a dimension of one element meets a longer one, otherwise as for a product."""
    a, b = call.given("a"), call.given("b")
    if any(a.shape[i] != b.shape[j] for i, j in zip(*_summed_dims(call), strict=False)):
        return Kind.COMPOSITE
    return Kind.BILINEAR if isinstance(a, Operand) and isinstance(b, Operand) else Kind.LINEAR


bilinear("tensordot", on=Normal, parameters="a b dims", factors="a b", decide=_by_sizes, letters=_tensordot_letters)


@rule("tensordot", on=Value)
def tensordot(a: Random, b: Random, dims: Any = 2, out: None = None) -> Any:
    r"""Moments of `tensordot` where a dimension of one element meets a longer one, which is summed first.

    Error: exact for independent elements
    Source: paper, eq. linear and "Product"
    """
    pairs = list(zip(*_summed_dims(Call(operation_named("tensordot"), (a, b, dims), {})), strict=True))
    long_a = [i for i, j in pairs if b.shape[j] == 1 and a.shape[i] != 1]
    long_b = [j for i, j in pairs if a.shape[i] == 1 and b.shape[j] != 1]
    if not long_a and not long_b:  # the sizes do not fit: torch raises the error
        return torch.tensordot(mean_of(a), mean_of(b), dims)
    a, b = (x.sum(dim=own, keepdim=True) if own else x for x, own in ((a, long_a), (b, long_b)))
    return torch.tensordot(a, b, dims)


def _by_groups(input: Tensor, mat2: Tensor, offs: Tensor | None = None, *args: Any, **kwargs: Any) -> Tensor:
    """Multiply groups of rows, which end at `offs`, by one matrix each; torch has no kernel for float64."""
    if input.dtype is not torch.float64 or input.ndim != 2 or mat2.ndim != 3 or offs is None:
        return torch_function("_grouped_mm")(input, mat2, offs, *args, **kwargs)  # type: ignore[no-any-return]
    rows = torch.arange(len(input), device=input.device, dtype=offs.dtype)
    return torch.einsum("nk,nkm->nm", input, mat2[torch.searchsorted(offs, rows, right=True)])


bilinear(
    "_grouped_mm", on=Normal, plain=_by_groups, parameters="input mat2 offs bias out_dtype", factors="input mat2",
    summands=("bias",),
)  # fmt: skip

_SUM: Any = {"summands": ("input",), "numbers": ("alpha", "beta"), "letters": _matmul_letters}
bilinear("addmm", on=Normal, parameters="input mat1 mat2", factors="mat1 mat2", **_SUM)
bilinear("addmv", on=Normal, parameters="input mat vec", factors="mat vec", **_SUM)
bilinear("baddbmm", on=Normal, parameters="input batch1 batch2", factors="batch1 batch2", **_SUM)
_SUM["letters"] = _spelled("i,j->ij")
bilinear("addr", on=Normal, parameters="input vec1 vec2", factors="vec1 vec2", **_SUM)
_SUM["letters"] = _spelled("aij,ajk->ik")
bilinear("addbmm", on=Normal, parameters="input batch1 batch2", factors="batch1 batch2", **_SUM)


def _add_product(input: Random, tensor1: Random, tensor2: Random, *, value: float = 1) -> Any:
    return torch.add(input, torch.mul(tensor1, tensor2), alpha=value)


bilinear(
    "addcmul", on=Normal, parameters="input tensor1 tensor2", factors="tensor1 tensor2", summands=("input",),
    numbers=("value",), diagonal=True, written_out=_add_product,
)  # fmt: skip


def product_variance(product: Callable[[Tensor, Tensor], Tensor], x: Random, y: Random) -> Tensor:
    """Return the variance of a bilinear map of two independent arguments, at least one of them random."""
    mean_x, mean_y = mean_of(x), mean_of(y)
    variance_x, variance_y = variance_of(x), variance_of(y)
    if not is_random(y):
        return product(variance_x, squared(mean_y, variance_x))
    if not is_random(x):
        return product(squared(mean_x, variance_y), variance_y)
    by_x = product(variance_x, squared(mean_y, variance_x) + variance_y)
    return by_x + product(squared(mean_x, variance_y), variance_y)


def matrix_product(function: Callable[[Tensor, Tensor], Tensor], x: Random, y: Random) -> Any:
    """Return the value of a bilinear map of two independent arguments."""
    return some_value(x, y).of(function(mean_of(x), mean_of(y)), product_variance(function, x, y))


def _attention_or_product(op: str, x: Random, y: Random) -> Any:
    result = attended(x, y)
    return note_factors(by_kind(op, x, y), x, y) if result is None else result


@rule("matmul", on=Normal)
def matmul(input: Random, other: Random) -> Any:
    r"""Moments of a matrix product of independent factors, either of which can be plain.

    If the left factor is a softmax, its elements are correlated and treated as attention weights: see
    `rules.attention.notes`.

    Error: exact for independent elements
    Source: paper, eq. linear and "Product"
    """
    return _attention_or_product("matmul", input, other)


@rule("bmm", on=Normal)
def bmm(input: Random, mat2: Random) -> Any:
    r"""Moments of a batch of matrix products; a softmax as the left factor is treated as in `matmul`.

    Error: exact for independent elements
    Source: paper, eq. linear and "Product"
    """
    return _attention_or_product("bmm", input, mat2)


@rule("baddbmm", on=Normal)
def baddbmm(input: Random, batch1: Random, batch2: Random, *, beta: float = 1, alpha: float = 1) -> Any:
    r"""Moments of `beta * input + alpha * (batch1 @ batch2)`, which can be attention scores with a mask.

    Error: exact for independent elements
    Source: paper, eq. linear and "Product"
    """
    result = by_kind("baddbmm", input, batch1, batch2, beta=beta, alpha=alpha)
    return result if is_random(input) else note_factors(result, batch1, batch2, alpha)


def _by_divisor(call: Call) -> Kind:
    if call.given("rounding_mode") is not None:
        return Kind.MIXING
    return Kind.COMPOSITE if isinstance(call.given("other"), Operand) else Kind.LINEAR


@linear("div", on=Normal, parameters="input other", decide=_by_divisor, pointwise=torch.div, diagonal=True)
def quotient(call: Call, variance: Tensor) -> Tensor:
    r"""Moments of a quotient with a plain divisor.

    Error: exact
    Source: paper, eq. linear
    """
    divisor = call.given("other")
    return torch.div(torch.div(variance, divisor), divisor)  # a square can overflow or vanish


@rule("div", on=Normal)
@follows(torch.div)
def div(input: Random, other: Random, *, rounding_mode: str | None = None) -> Any:
    r"""Moments of a quotient: exact for a plain divisor, and a product with the reciprocal for a random one.

    Error: exact for a plain divisor, otherwise as `reciprocal`
    Source: paper, eq. linear
    """
    _refuse_rounding(rounding_mode)
    if not isinstance(other, Independent):
        return by_kind("div", input, other)
    if input is other:
        return other.of(torch.ones_like(other.loc), torch.zeros_like(other.loc))
    return input * torch.reciprocal(other)  # type: ignore[arg-type]


@rule("div", on=Value)
def div_composite(input: Random, other: Random, *, rounding_mode: str | None = None) -> Any:
    r"""A product with the reciprocal of a random divisor.

    Error: as `reciprocal`
    Source: definition
    """
    _refuse_rounding(rounding_mode)
    return input * torch.reciprocal(other)


def _refuse_rounding(rounding_mode: str | None) -> None:
    if rounding_mode is not None:
        raise ValueError(
            f"no rule divides a random value with rounding_mode={rounding_mode!r}: leave it out, or use method='sample'"
        )


@composite("addcdiv", on=Value)
def addcdiv(input: Random, tensor1: Random, tensor2: Random, *, value: float = 1) -> Any:
    r"""Moments of `input + value * tensor1 / tensor2`.

    Error: as `div`
    Source: paper, eq. linear and "Product"
    """
    return input + (tensor1 if value == 1 else tensor1 * value) / tensor2  # torch rounds in this order


@composite("linalg_multi_dot", on=Value, positional=True)
def multi_dot(tensors: Sequence[Random]) -> Any:
    r"""Moments of a chain of matrix products, from left to right.

    Error: exact for two factors; for more, each product's elements are treated as independent
    Source: paper, eq. linear and "Product"
    """
    product = tensors[0]
    for factor in tensors[1:]:
        product = torch.matmul(product, factor)
    return product


@composite("glu", on=Value, along="dim")
def glu(input: Random, dim: int = -1) -> Any:
    r"""Moments of $a\,S(b)$, where $a$ and $b$ are the two halves along a dimension.

    Error: as `sigmoid`, for independent halves
    Source: paper, "Product"
    """
    value, gate = input.chunk(2, dim)
    return value * torch.sigmoid(gate)
