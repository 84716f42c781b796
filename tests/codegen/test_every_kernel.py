"""Every elementwise kernel, built for the processor or a GPU, holds what its formula holds."""

import numpy as np
import pytest
import torch
from torch import Tensor

from momentprop import Normal
from momentprop.codegen import c_library, programs
from momentprop.kernels import fuse
from tests.cases import CASES, Case
from tests.grids import cells_of, counted, error_of_the_oracle, errors

FORMULAS = {"softsign", "tanhshrink"}
"""The operations whose kernels are not printed: their quadratures sort their edges."""

QUICK = {"relu", "leaky_relu", "sigmoid", "tanh", "gelu", "silu"}
"""The operations that are built in every run of the tests, the others in `make test-full`."""

DEVICES = [
    pytest.param("cpu", marks=pytest.mark.skipif(c_library.compiler() is None, reason="no C compiler")),
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
]
every_device = pytest.mark.parametrize("device", DEVICES)
every_built_case = pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=[] if case.name in QUICK else [pytest.mark.full])
        for case in CASES
        if case.op not in FORMULAS
    ],
)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> list[None]:
    """Let kernels be built, in a folder of the tests; one entry for every run of one."""
    runs: list[None] = []
    run = fuse.run_built

    def counting(*given: object) -> tuple[Tensor, Tensor]:
        runs.append(None)
        return run(*given)

    monkeypatch.setattr(fuse, "run_built", counting)
    monkeypatch.setenv("MOMENTPROP_CACHE", str(tmp_path_factory.getbasetemp() / "kernels"))
    before = programs.mode()
    programs.set_mode("wait")
    yield runs
    programs.set_mode(before)


@every_device
@every_built_case
@pytest.mark.parametrize("grid", ["wide", "regular"])
def test_moments_hold_the_stated_error(case: Case, grid: str, device: str, built: list[None]) -> None:
    """Over 16 decades, and where networks work."""
    dtype, cells = torch.float32, cells_of(case.name, grid)
    given = cells.input(dtype)
    result = case(Normal(given.loc.to(device), given.variance.to(device)))
    assert built, programs.failures()
    mean, variance = (part.cpu().double().numpy() for part in result.parts)
    assert np.isfinite(mean[cells.representable(dtype)]).all()
    slack = error_of_the_oracle(cells) if grid == "wide" else 0.0
    for error in errors(cells, mean, variance, dtype):
        excess = np.where(counted(cells, grid, dtype), error - slack, -np.inf)
        assert excess.max() <= case.tolerance(dtype)


@every_device
@every_built_case
def test_derivatives_are_those_of_the_formula(case: Case, device: str, built: list[None]) -> None:
    mean, variance = torch.meshgrid(torch.linspace(-3.9, 4.1, 17), torch.logspace(-3, 1, 9), indexing="ij")
    found = _gradients(case, mean.to(device), variance.to(device))
    assert built, programs.failures()
    programs.set_mode("eager")
    wanted = _gradients(case, mean.double(), variance.double())
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours.cpu().double(), theirs, rtol=2e-3, atol=2e-4)


def _gradients(case: Case, mean: Tensor, variance: Tensor) -> list[Tensor]:
    """Derivatives of both moments by both inputs."""
    inputs = [mean.clone().requires_grad_(), variance.clone().requires_grad_()]
    result = case(Normal(*inputs))
    parts = [result.loc, result.variance]
    return [
        each
        for part in parts
        if part.requires_grad
        for each in torch.autograd.grad(part.sum(), inputs, retain_graph=True)
    ]


@every_device
@every_built_case
def test_a_certain_input_gives_the_plain_result(case: Case, device: str, built: list[None]) -> None:
    x = torch.linspace(-9.0, 9.0, 37).to(device)
    result = case(Normal(x, torch.zeros_like(x)))
    assert built, programs.failures()
    torch.testing.assert_close(result.loc, case(x), rtol=0, atol=0)
    assert not result.variance.any()
