"""The root of a covariance: singular matrices, equal eigenvalues, derivatives."""

import pytest
import torch

from momentprop.kernels.root import root


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("rank", [0, 1, 2, 4])
def test_the_root_squared_is_the_matrix(dtype: torch.dtype, rank: int) -> None:
    half = torch.randn(5, 4, rank, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    matrix = (half @ half.mT).to(dtype)
    found = root(matrix)
    assert found.dtype is dtype
    assert (found.double() @ found.double() - matrix.double()).abs().max() <= 64 * torch.finfo(dtype).eps * 10


def test_rounding_below_zero_is_cut() -> None:
    assert root(torch.diag(torch.tensor([1.0, -1e-9]))).tolist() == [[1.0, 0.0], [0.0, 0.0]]


def test_derivatives_agree_with_differences_also_for_equal_eigenvalues() -> None:
    half = torch.randn(3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for matrix in (half @ half.T, torch.eye(3, dtype=torch.float64)):
        matrix.requires_grad_()
        assert torch.autograd.gradcheck(lambda given: root((given + given.mT) / 2), matrix)


def test_second_derivatives_agree_with_differences() -> None:
    half = torch.randn(3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    matrix = (half @ half.T).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda given: root((given + given.mT) / 2), matrix)
