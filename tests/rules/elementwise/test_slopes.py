r"""The slopes of every elementwise rule on `Normal`: $E f'$ and $E f''$, the derivatives of the mean.

$\partial\mu'/\partial\mu = E f'$ and $2\,\partial\mu'/\partial\sigma^2 = E f''$. Following correlations relies on
them, in forward mode, in reverse mode and under `vmap`. A custom operator or autograd function may return a zero
tangent without an error; so each mode is compared with quadrature on a grid with tails.
"""

import numpy as np
import pytest
import torch
from torch import Tensor

from momentprop import Normal
from tests.cases import Case
from tests.rules.elementwise.every import every_case

NEAR = [-6.0, -2.2, -1.1, -0.4, 0.0, 0.3, 1.2, 2.4, 5.0], [0.02, 0.11, 0.4, 0.8, 1.3, 3.0, 10.0]
WIDE = (
    np.concatenate([-np.logspace(2, -2, 25), [0.0], np.logspace(-2, 2, 25)]).tolist(),
    np.logspace(-2, 2.5, 25).tolist(),
)


def _mean_of(case: Case):
    return lambda mean, variance: case(Normal.of(mean, variance)).loc


def _grid(case: Case, means: list[float], deviations: list[float]) -> tuple[Tensor, Tensor]:
    mean, std = (part.ravel() for part in np.meshgrid(means, deviations, indexing="ij"))
    with np.errstate(all="ignore"):
        moments = case.truth(mean, std**2)
    within = np.all([np.abs(part) < 1e30 for part in moments], axis=0)
    return torch.tensor(mean[within]), torch.tensor(std[within] ** 2)


def _compare(case: Case, means: list[float], deviations: list[float]) -> None:
    mean, variance = _grid(case, means, deviations)
    function, std = _mean_of(case), variance.sqrt()
    _, spread = case.truth(mean.numpy(), variance.numpy())
    gain = (torch.tensor(spread).sqrt() / std).clamp(min=0.01 if case.exact else 1.0)
    one, none = torch.ones_like(mean), torch.zeros_like(mean)
    rising, pull = torch.func.vjp(function, mean, variance)
    modes = {
        "jvp": [torch.func.jvp(function, (mean, variance), along)[1] for along in ((one, none), (none, one))],
        "vjp": list(pull(torch.ones_like(rising))),
        "vmap of jvp": list(
            torch.func.vmap(lambda *along: torch.func.jvp(function, (mean, variance), along)[1])(
                torch.stack([one, none]), torch.stack([none, one])
            )
        ),
        "jvp of vmap": [
            torch.func.jvp(torch.func.vmap(function), (mean, variance), along)[1]
            for along in ((one, none), (none, one))
        ],
    }
    wanted = [torch.tensor(part) for part in case.slopes(mean.numpy(), variance.numpy())]
    tolerance = 1e-6 if case.exact else 3e-4
    for mode, (by_mean, by_variance) in modes.items():
        for found, true, scale, name in (
            (by_mean, wanted[0], gain, "f'"),
            (2 * by_variance, wanted[1], gain / std, "f''"),
        ):
            error = ((found - true) / scale).abs()
            worst = int(error.argmax())
            assert error[worst] <= tolerance, (
                f"E {name} by {mode} at mean {mean[worst]:g}, deviation {std[worst]:g}: {found[worst]:g} "
                f"but quadrature gives {true[worst]:g}"
            )


@every_case
def test_slopes_agree_with_quadrature_in_every_mode(case):
    _compare(case, *NEAR)


@pytest.mark.full
@every_case
def test_slopes_agree_with_quadrature_in_the_tails(case):
    _compare(case, *WIDE)
