"""The rule of *bilinear* for independent units: two random factors, by algebra."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from momentprop import Normal
from momentprop.dispatch.kinds import Bilinear
from momentprop.dispatch.rule_table import operations


def _factor(*shape: int) -> Normal:
    generator = torch.Generator().manual_seed(sum(shape))
    mean, variance = (torch.rand(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    return Normal(2 * mean - 1, variance)


def _grouped(rows: Any, matrices: Any) -> Any:
    """Multiply the first row by the first matrix and the others by the second; torch has no kernel for float64."""
    if not isinstance(rows, Normal):
        return torch.cat([rows[:1] @ matrices[0], rows[1:] @ matrices[1]])
    return F.grouped_mm(rows, matrices, offs=torch.tensor([1, 4], dtype=torch.int32))


BILINEAR: dict[str, tuple[Any, tuple[Normal, ...]]] = {
    "linear": (F.linear, (_factor(2, 3), _factor(4, 3), _factor(4))),
    "mul": (torch.mul, (_factor(2, 3), _factor(3))),
    "matmul": (torch.matmul, (_factor(2, 3), _factor(2, 3, 4))),
    "inner": (torch.inner, (_factor(2, 3), _factor(4, 3))),
    "mm": (torch.mm, (_factor(2, 3), _factor(3, 4))),
    "bmm": (torch.bmm, (_factor(2, 2, 3), _factor(2, 3, 2))),
    "mv": (torch.mv, (_factor(2, 3), _factor(3))),
    "dot": (torch.dot, (_factor(3), _factor(3).flip(0))),
    "vdot": (torch.vdot, (_factor(3), _factor(3).flip(0))),
    "outer": (torch.outer, (_factor(3), _factor(2))),
    "tensordot": (lambda a, b: torch.tensordot(a, b, dims=([1, 0], [0, 1])), (_factor(2, 3), _factor(3, 2, 2))),
    "addmm": (
        lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=-2),
        (_factor(2, 4), _factor(2, 3), _factor(3, 4)),
    ),
    "addmv": (lambda c, a, b: torch.addmv(c, a, b, beta=2), (_factor(2), _factor(2, 3), _factor(3))),
    "addr": (lambda c, a, b: torch.addr(c, a, b, alpha=3), (_factor(3, 2), _factor(3), _factor(2))),
    "addbmm": (
        lambda c, a, b: torch.addbmm(c, a, b, beta=2, alpha=0.5),
        (_factor(2, 2), _factor(2, 2, 3), _factor(2, 3, 2)),
    ),
    "baddbmm": (
        lambda c, a, b: torch.baddbmm(c, a, b, beta=2, alpha=0.5),
        (_factor(2, 2, 2), _factor(2, 2, 3), _factor(2, 3, 2)),
    ),
    "addcmul": (lambda c, a, b: torch.addcmul(c, a, b, value=-3), (_factor(3), _factor(2, 3), _factor(2, 1))),
    "_grouped_mm": (_grouped, (_factor(4, 3), _factor(2, 3, 2))),
    "conv1d": (lambda x, w, b: F.conv1d(x, w, b, 2, 1), (_factor(1, 2, 5), _factor(2, 2, 3), _factor(2))),
    "conv2d": (lambda x, w: F.conv2d(x, w, groups=2, padding="same"), (_factor(1, 2, 3, 3), _factor(2, 1, 3, 3))),
    "conv3d": (F.conv3d, (_factor(1, 1, 3, 2, 2), _factor(2, 1, 2, 2, 1))),
    "conv_transpose1d": (lambda x, w: F.conv_transpose1d(x, w, stride=2), (_factor(1, 2, 3), _factor(2, 1, 3))),
    "conv_transpose2d": (F.conv_transpose2d, (_factor(1, 1, 2, 2), _factor(1, 2, 2, 2))),
    "conv_transpose3d": (F.conv_transpose3d, (_factor(1, 1, 2, 1, 2), _factor(1, 1, 2, 2, 1))),
}


def test_every_bilinear_operation_is_multiplied_here() -> None:
    assert set(BILINEAR) == {row.name for row in operations() if isinstance(row, Bilinear)}


@pytest.mark.parametrize("op", BILINEAR)
def test_independent_factors_multiply_exactly(op: str) -> None:
    r"""By algebra: for a multilinear $y$ the variance is a sum over sets of variables of squared derivatives.

    With every variable two-valued, $\mu \pm \sigma$, the moments are those of any distribution; for a form of two
    factors and summands they follow from the first derivatives and the mixed second ones.
    """
    function, factors = BILINEAR[op]
    found = function(*factors)
    locs = tuple(factor.loc for factor in factors)
    spread = torch.cat([factor.variance.flatten() for factor in factors])
    sizes = [loc.numel() for loc in locs]

    def of_all(flat: Tensor) -> Tensor:
        parts = [part.reshape(loc.shape) for part, loc in zip(flat.split(sizes), locs, strict=True)]
        return function(*parts).flatten()

    point = torch.cat([loc.flatten() for loc in locs])
    first = torch.func.jacrev(of_all)(point)
    mixed = torch.func.jacfwd(torch.func.jacrev(of_all))(point)
    by_pairs = torch.einsum("kij,i,j->k", mixed.square(), spread, spread) / 2
    torch.testing.assert_close(found.loc.flatten(), of_all(point))
    torch.testing.assert_close(found.variance.flatten(), first.square() @ spread + by_pairs)


def test_a_value_times_itself_is_squared() -> None:
    x = _factor(3)
    for product in (x * x, torch.mul(x, x)):
        torch.testing.assert_close(product.variance, 4 * x.loc**2 * x.variance + 2 * x.variance**2)
    torch.testing.assert_close(torch.dot(x, x).loc, (x.loc**2 + x.variance).sum())


def test_a_module_with_a_random_bias_is_linear_in_it() -> None:
    layer = nn.Linear(3, 2)
    bias = Normal(torch.zeros(2), 1.0)
    result: Any = F.linear(torch.ones(4, 3), layer.weight, bias)
    torch.testing.assert_close(result.variance, torch.ones(4, 2))
