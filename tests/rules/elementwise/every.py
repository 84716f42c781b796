"""Every case of the table, as parameters of a test."""

import pytest
import torch
from torch import Tensor

from tests.cases import CASES

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)

_REPEATED = {case.name for i, case in enumerate(CASES) if any(case.op == c.op for c in CASES[:i])}

# Slow checks of how a rule is built, not of its numbers: one line for each operation, the others in `make test-full`.
every_operation = pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.name, marks=[pytest.mark.full] if case.name in _REPEATED else []) for case in CASES],
)

# Each operation has the kernel of the one named behind it, with other numbers.
SAME_KERNEL = {
    "hardtanh": "clamp", "relu6": "clamp", "hardsigmoid": "clamp", "selu": "elu", "logsigmoid": "softplus",
    "erf": "ndtr", "sign": "heaviside", "exp2": "exp",
}  # fmt: skip
every_kernel = pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case, id=case.name, marks=[pytest.mark.full] if case.name in _REPEATED or case.op in SAME_KERNEL else []
        )
        for case in CASES
    ],
)


def benign() -> tuple[Tensor, Tensor]:
    mean = torch.tensor([-1.7, -0.4, 0.3, 1.1, 2.6, 0.6], dtype=torch.float64, requires_grad=True)
    variance = torch.tensor([1.3, 0.07, 0.5, 1.9, 9.1, 60.0], dtype=torch.float64, requires_grad=True)
    return mean, variance
