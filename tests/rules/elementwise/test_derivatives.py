"""The derivatives of every elementwise rule on `Normal`, in all modes."""

import numpy as np
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from momentprop import Normal
from tests.cases import Case
from tests.rules.elementwise.every import benign, every_case, every_operation


def _as_function(case: Case):
    def function(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        y = case(Normal.of(mean, variance))
        return y.loc, y.variance

    return function


@every_case
def test_partials_agree_with_central_differences(case):
    means = [-9.0, -4.0, -2.2, -1.1, -0.4, -0.03, 0.0, 0.02, 0.3, 1.2, 2.4, 4.5, 11.0]
    mean, std = torch.meshgrid(
        torch.tensor(means, dtype=torch.float64),
        torch.tensor([1e-3, 0.02, 0.11, 0.4, 0.8, 1.3, 3.0, 10.0, 200.0], dtype=torch.float64),
        indexing="ij",
    )
    within = torch.tensor(np.all([np.abs(part) < 1e30 for part in case.truth(mean.numpy(), std.numpy() ** 2)], axis=0))
    mean, std = mean[within], std[within]
    variance = std**2
    function = _as_function(case)

    def difference(by_mean: bool) -> list[Tensor]:
        step = 3e-3 * (std if by_mean else variance).clamp(max=1.0)  # functions bend at unit scale

        def at(k: int) -> Tensor:
            moved = (mean + k * step, variance) if by_mean else (mean, variance + k * step)
            return torch.stack(function(*moved))

        return list((8 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12 * step))

    x = (mean.clone().requires_grad_(), variance.clone().requires_grad_())
    y = function(*x)
    found = [torch.autograd.grad(output.sum(), x, retain_graph=True) for output in y]
    gain = (y[1].detach().sqrt() / std).clamp(min=0.01 if case.exact else 1.0)
    scales = ((gain, gain / std), (gain**2 * std, gain**2))
    tolerance = 1e-6 if case.exact else 3e-4
    for i, wanted in enumerate((difference(by_mean=True), difference(by_mean=False))):
        for j in range(2):
            error = ((found[j][i] - wanted[j]) / scales[j][i]).abs()
            worst = int(error.argmax())
            assert error[worst] <= tolerance, (
                f"derivative of the {('mean', 'variance')[j]} by the {('mean', 'variance')[i]} at "
                f"mean {mean[worst]:g}, deviation {std[worst]:g}: {found[j][i][worst]:g} "
                f"but differences give {wanted[j][worst]:g}"
            )


@every_operation
def test_gradcheck_in_all_modes(case):
    inputs = tuple(part[::2].detach().requires_grad_() for part in benign())
    atol = 1e-5 if case.exact else 1e-4
    assert gradcheck(_as_function(case), inputs, atol=atol, check_forward_ad=True, check_batched_grad=True)


@every_operation
def test_second_derivatives(case):
    inputs = tuple(part[:3].detach().requires_grad_() for part in benign())
    atol = 1e-5 if case.exact else 1e-3
    assert gradgradcheck(_as_function(case), inputs, atol=atol, rtol=2e-3)


@every_case
def test_function_transforms_agree_with_autograd(case):
    mean, variance = benign()
    function = _as_function(case)
    by_autograd = torch.autograd.functional.jacobian(function, (mean, variance))
    inputs = (mean.detach(), variance.detach())
    for transform in (torch.func.jacrev, torch.func.jacfwd):
        torch.testing.assert_close(transform(function, argnums=(0, 1))(*inputs), by_autograd)
    rows = tuple(part.reshape(2, 3) for part in inputs)
    batched = torch.func.vmap(function)(*rows)
    torch.testing.assert_close(tuple(part.reshape(-1) for part in batched), function(*inputs))
    per_sample = torch.func.vmap(torch.func.grad(lambda m, v: sum(function(m, v))))(*inputs)
    torch.testing.assert_close(per_sample, sum(part[0].diagonal() for part in by_autograd))
