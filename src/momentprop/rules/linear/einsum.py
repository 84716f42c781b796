r"""Einstein sums of values and plain tensors, two factors at a time."""

import string
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from momentprop.dispatch import Call, Kind, MissingRule, Operand, rule
from momentprop.dispatch import where as place
from momentprop.dispatch.dependence import any_related, warn_dependent
from momentprop.dispatch.elements import related, share
from momentprop.dispatch.registry import linear, transpose
from momentprop.rules.linear.by_rule import squares_by_rule
from momentprop.rules.linear.products import matrix_product
from momentprop.rules.precision import in_range
from momentprop.rules.shared import product_correction
from momentprop.values import Independent, Normal

Random = Any  # a value or a plain tensor


def _by_operands(call: Call) -> Kind:
    return Kind.LINEAR if len(call.values) == 1 else Kind.MIXING


linear("einsum", on=Normal, parameters="equation", decide=_by_operands, by_squares=squares_by_rule)


@rule("einsum", on=Normal)
@in_range
def einsum(equation: str, *operands: Random) -> Normal:
    r"""Moments of an Einstein sum: of one value a sum, of two a sum of products of independent factors.

    A dimension that only one factor has is summed there first, so that no element meets itself. Two values that share
    elements are jointly normal (`rules.shared`). Three or more factors are multiplied from left to right, except that a
    single random factor's plain factors are multiplied first.

    Error: exact for independent elements of one or two random factors; for more, each product's elements are treated as
    independent
    Source: paper, eq. linear and "Product"
    """
    factors = _listed(operands)
    random = [factor for factor in factors if isinstance(factor, Independent)]
    if len(random) > 2 and any_related(random):
        warn_dependent("einsum")
    letters, result = _spelled_out(equation, [factor.ndim for factor in factors])
    factors, letters = _plain_joined(factors, letters, result)
    product, of_product = factors[0], letters[0]
    for i in range(1, len(factors)):
        wanted = set(result).union(*letters[i + 1 :])
        is_last = i == len(factors) - 1
        kept = result if is_last else "".join(letter for letter in _once(of_product + letters[i]) if letter in wanted)
        product, of_product = _pair(product, of_product, factors[i], letters[i], kept), kept
    return product if of_product == result else _single(product, of_product, result)  # type: ignore[no-any-return]


@transpose("einsum")
def einsum_transposed(call: Call, gradient: Tensor) -> Tensor:
    """Sum with the letters of the result and the value swapped."""
    factors = _listed(call.args[1:])
    letters, result = _spelled_out(call.args[0], [factor.ndim for factor in factors])
    position = next(i for i, factor in enumerate(factors) if isinstance(factor, Operand))
    value = factors.pop(position)
    of_value, wanted = letters.pop(position), ""
    terms, letters = [gradient, *factors], [result, *letters]
    free = iter(letter for letter in string.ascii_letters if letter not in "".join([of_value, *letters]))
    for letter, size in zip(of_value, value.shape, strict=True):
        name = letter
        if letter in wanted:  # a diagonal
            name = next(free)
            terms, letters = (
                [*terms, torch.eye(size, dtype=gradient.dtype, device=gradient.device)],
                [*letters, letter + name],
            )
        elif not any(letter in others for others in letters):  # summed
            terms, letters = [*terms, gradient.new_ones(size)], [*letters, letter]
        wanted += name
    return torch.einsum(f"{','.join(letters)}->{wanted}", terms).sum_to_size(value.shape)


def _listed(operands: Sequence[Any]) -> list[Any]:
    return list(operands[0]) if len(operands) == 1 and isinstance(operands[0], Sequence) else list(operands)


def _plain_joined(factors: list[Any], letters: list[str], result: str) -> tuple[list[Any], list[str]]:
    """The one random factor and the product of the plain ones; if more than one is random, all stay as they are."""
    random = [i for i, factor in enumerate(factors) if isinstance(factor, Independent)]
    if len(factors) < 3 or len(random) != 1:
        return factors, letters
    value, of_value = factors.pop(random[0]), letters.pop(random[0])
    kept = "".join(letter for letter in _once("".join(letters)) if letter in of_value + result)
    return [value, torch.einsum(f"{','.join(letters)}->{kept}", factors)], [of_value, kept]


def _spelled_out(equation: str, ndims: list[int]) -> tuple[list[str], str]:
    """The letters of each operand and of the result, with a letter for each dimension under an ellipsis."""
    left, arrow, result = equation.replace(" ", "").partition("->")
    subscripts = left.split(",")
    free = [letter for letter in reversed(string.ascii_letters) if letter not in equation]
    hidden = [ndim - len(letters.replace("...", "")) for letters, ndim in zip(subscripts, ndims, strict=True)]
    shared = "".join(free[: max(0, *hidden)])
    letters = [
        part.replace("...", shared[len(shared) - count :]) for part, count in zip(subscripts, hidden, strict=True)
    ]
    if not arrow:
        once = sorted(letter for letter in set(left) if letter.isalpha() and left.count(letter) == 1)
        result = "..." + "".join(once)
    return letters, result.replace("...", shared)


def _once(letters: str) -> str:
    return "".join(dict.fromkeys(letters))


def _single(factor: Random, letters: str, result: str) -> Random:
    """A sum, a diagonal or a permutation of one factor's dimensions: all of them add elements."""
    if isinstance(factor, Independent):
        return factor.each(lambda part: torch.einsum(f"{letters}->{result}", part))
    return torch.einsum(f"{letters}->{result}", factor)


def _pair(x: Random, of_x: str, y: Random, of_y: str, result: str) -> Random:
    if isinstance(x, Independent) and isinstance(y, Independent) and related(x, y):
        return _related(x, of_x, y, of_y, result)
    x, of_x = _without_private(x, of_x, y, of_y, result)
    y, of_y = _without_private(y, of_y, x, of_x, result)
    x, of_x = _without_private(x, of_x, y, of_y, result)  # a dimension of length one that y summed away
    equation = f"{of_x},{of_y}->{result}"
    if not isinstance(x, Independent) and not isinstance(y, Independent):
        return torch.einsum(equation, x, y)
    return matrix_product(lambda a, b: torch.einsum(equation, a, b), x, y)


def _related(x: Any, of_x: str, y: Any, of_y: str, result: str) -> Any:
    if of_x == of_y and x.shape == y.shape:
        return _single(x * y, of_x, result)  # the product is followed
    equation = f"{of_x},{of_y}->{result}"
    correction = product_correction((of_x, of_y, result), x, y) if share(x, y) else None
    if correction is None:
        raise MissingRule(
            f"no rule for 'einsum' of dependent factors under {equation!r} at {place()}: write a matrix product as "
            "`torch.matmul`, or use method='sample'"
        )
    product = matrix_product(lambda a, b: torch.einsum(equation, a, b), x, y)
    return x.of(product.loc + correction[0], product.variance + correction[1])


def _without_private(x: Random, of_x: str, y: Random, of_y: str, result: str) -> tuple[Random, str]:
    """The factor, summed over dimensions in neither the result nor, with more than one element, the other factor."""

    def is_shared(letter: str) -> bool:
        return letter in result or (letter in of_y and y.shape[of_y.index(letter)] > 1)

    kept = "".join(letter for letter in _once(of_x) if is_shared(letter))
    return (x, of_x) if kept == of_x else (_single(x, of_x, kept), kept)
