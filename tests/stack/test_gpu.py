"""On a GPU every rule gives what it gives on the CPU; skipped where there is none, as in CI."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from momentprop import Normal, functional
from momentprop.nn import AdditiveNoise, NoisyActivation, StochasticBinary
from tests.cases import CASES, Case

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
OTHERS: dict[str, Callable[[Any], Any]] = {
    "conv2d": lambda x: F.conv2d(x, torch.ones(2, 3, 3, 3, dtype=x.dtype, device=x.device)),
    "avg_pool2d": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "dropout": lambda x: F.dropout(x, 0.3),
    "max_pool2d": lambda x: F.max_pool2d(x, 3, 2, 1),
    "amax": lambda x: x.amax((1, 2, 3)),
    "softmax": lambda x: torch.softmax(x, -1),
    "log_softmax": lambda x: torch.log_softmax(x, -1),
    "logsumexp": lambda x: torch.logsumexp(x, -1),
    "fast": lambda x: functional.class_posterior(x, method="fast"),
    "logistic_bernoulli": functional.logistic_bernoulli,
    "probit_bernoulli": functional.probit_bernoulli,
    "laplace": lambda x: functional.stochastic_binary(x, "laplace", low=-1.0),
    "gumbel": lambda x: functional.stochastic_binary(x, "gumbel"),
    "noisy_activation": lambda x: functional.noisy_activation(x, torch.relu, "logistic"),
    "gumbel_argmax": lambda x: functional.gumbel_argmax(x, method="fast"),
}


def _compare(
    call: Callable[[Any], Any], shape: tuple[int, ...], dtype: torch.dtype, tolerance: float, derivatives: bool = True
) -> None:
    generator = torch.Generator().manual_seed(0)
    mean = 3 * torch.randn(shape, generator=generator, dtype=dtype)
    variance = 10 ** (2 * torch.randn(shape, generator=generator, dtype=dtype) - 1)
    results = []
    for device in ("cpu", "cuda"):
        leaves = [part.to(device).requires_grad_() for part in (mean, variance)]
        y = call(Normal(*leaves))
        loss = y.loc.sum() + y.variance.sum()
        grads = torch.autograd.grad(loss, leaves)
        results.append([part.cpu() for part in (y.loc, y.variance, *(grads if derivatives else ()))])
    for ours, theirs in zip(*results, strict=True):
        scale = theirs.abs().mean().item()
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_elementwise_rules_agree_with_the_cpu(case: Case, dtype: torch.dtype) -> None:
    def call(x: Normal) -> Normal:
        args = [arg.to(x.device, x.dtype) if isinstance(arg, torch.Tensor) else arg for arg in case.args]
        return next(case.spellings())(x, *args, **case.kwargs)

    if case.golden_reach < 3:
        pytest.skip("exponentials of these variances overflow")
    _compare(call, (4, 50), dtype, 1e-4 if dtype == torch.float32 else 1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", OTHERS)
def test_other_rules_agree_with_the_cpu(name: str, dtype: torch.dtype) -> None:
    # rounding moves the window of an integral, so that integrals agree up to the error that they state
    stated = {"softmax": 0.02, "log_softmax": 1e-3, "logsumexp": 1e-3, "fast": 1e-3, "amax": 1e-3, "gumbel": 1e-5}
    tolerance = max(stated.get(name, 0.0), 1e-4 if dtype == torch.float32 else 1e-9)
    # in float32 the derivatives of the softmax's variances, differences of second moments, carry their rounding
    derivatives = not (name == "softmax" and dtype == torch.float32)
    _compare(OTHERS[name], (2, 3, 9, 10), dtype, tolerance, derivatives)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # of inductor itself, in torch 2.11
@pytest.mark.parametrize("name", ["conv2d", "max_pool2d", "log_softmax"])
def test_inductor_agrees_with_eager(name: str) -> None:
    torch.compiler.reset()
    x = Normal(torch.randn(2, 3, 9, 10, device="cuda"), 0.5)
    compiled, eager = torch.compile(OTHERS[name], fullgraph=True)(x), OTHERS[name](x)
    torch.testing.assert_close(compiled.loc, eager.loc, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(compiled.variance, eager.variance, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("noise", ["logistic", "normal", "uniform", "laplace", "gumbel"])
def test_the_noise_of_a_layer_moves_with_it(noise: str) -> None:
    x = torch.zeros(100, device="cuda")
    for layer in (StochasticBinary(noise), NoisyActivation(torch.tanh, noise), AdditiveNoise(noise)):
        layer = layer.to("cuda")
        assert layer.noise.mean.is_cuda
        assert all(value.is_cuda for value in (layer(x), layer.eval()(x), layer(Normal(x, 1.0)).variance))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("deviation", [0.3, 10.0])
def test_the_posterior_of_correlated_logits(deviation: float, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    loc, factors = torch.randn(8, 10, generator=generator), torch.randn(8, 10, 12, generator=generator)
    covariance = deviation**2 / 12 * factors @ factors.mT
    found = []
    for device in ("cpu", "cuda"):
        inputs = [part.to(device, dtype).requires_grad_() for part in (loc, covariance)]
        log_q = functional.joint_posterior(*inputs).logits
        found.append([part.cpu() for part in (log_q, *torch.autograd.grad((log_q * log_q.detach()).sum(), inputs))])
    for on_cpu, on_gpu in zip(*found, strict=True):
        scale = float(on_cpu.detach().abs().max())
        # eigenvectors may differ where eigenvalues are close, and with them the points
        torch.testing.assert_close(on_gpu, on_cpu, rtol=0, atol=0.02 * scale)
