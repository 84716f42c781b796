"""`kernels.fuse` differentiates a kernel rightly in every mode, with and without closed-form partial derivatives."""

import functools

import pytest
import torch
from torch.autograd import forward_ad, gradcheck, gradgradcheck

from momentprop.kernels.fuse import differentiable, fused
from momentprop.kernels.moments import Moments


def lognormal(mean, variance):
    """Moments of exp(X), without partial derivatives."""
    loc = torch.exp(mean + variance / 2)
    return Moments(loc, loc * loc * torch.expm1(variance))


def lognormal_with_partials(mean, variance):
    loc, spread, _ = lognormal(mean, variance)
    return Moments(loc, spread, lambda: ((loc, 2 * spread), (loc / 2, 2 * spread + loc * loc)))


def scaled(mean, variance, factor):
    """Moments of a product with a constant, with partial derivatives by all three inputs."""
    partials = lambda: (  # noqa: E731
        (factor, torch.zeros_like(mean)),
        (torch.zeros_like(mean), factor**2),
        (mean, 2 * factor * variance),
    )
    return Moments(mean * factor, variance * factor**2, partials)


def total(mean, variance):
    """Not elementwise: moments of a sum over the last dimension."""
    return Moments(mean.sin().sum(-1), (variance * mean.cos() ** 2).sum(-1))


KERNELS = [lognormal, lognormal_with_partials]
every_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=["without partials", "with partials"])


def _inputs():
    mean = torch.tensor([-0.3, 0.2, 0.7, -1.1], dtype=torch.float64, requires_grad=True)
    variance = torch.tensor([0.5, 0.1, 0.3, 0.9], dtype=torch.float64, requires_grad=True)
    return mean, variance


def _fuse(kernel):
    return lambda *inputs: fused(kernel, torch.exp, *inputs)


@every_kernel
def test_moments_are_the_kernels(kernel):
    mean, variance = _inputs()
    loc, spread, _ = lognormal(mean, variance)
    for result in (_fuse(kernel)(mean, variance), _fuse(kernel)(mean.detach(), variance.detach())):
        torch.testing.assert_close(result, (loc, spread), rtol=1e-14, atol=0.0)  # a built kernel rounds in its own way


@every_kernel
def test_first_and_second_derivatives(kernel):
    assert gradcheck(_fuse(kernel), _inputs(), check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(_fuse(kernel), _inputs())


def test_a_third_input_is_differentiated_too():
    factor = torch.tensor([2.0, -1.0, 0.3, 0.9], dtype=torch.float64, requires_grad=True)
    assert gradcheck(_fuse(scaled), (*_inputs(), factor), check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(_fuse(scaled), (*_inputs(), factor))


def test_a_kernel_need_not_be_elementwise():
    mean, variance = (part.detach().reshape(2, 2).requires_grad_() for part in _inputs())
    assert gradcheck(functools.partial(differentiable, total), (mean, variance), check_forward_ad=True)
    assert gradgradcheck(functools.partial(differentiable, total), (mean, variance))


@every_kernel
@pytest.mark.parametrize("only", [0, 1], ids=["by the mean", "by the variance"])
def test_one_input_alone_can_be_differentiated(kernel, only):
    inputs = [part.detach() for part in _inputs()]
    inputs[only].requires_grad_()
    loc, spread = _fuse(kernel)(*inputs)
    direct = lognormal(*inputs)
    for wanted, found in ((direct.mean, loc), (direct.variance, spread)):
        torch.testing.assert_close(
            torch.autograd.grad(found.sum(), inputs[only], retain_graph=True),
            torch.autograd.grad(wanted.sum(), inputs[only], retain_graph=True),
        )


@every_kernel
def test_inputs_broadcast_and_gradients_are_summed(kernel):
    mean = torch.zeros(3, 1, dtype=torch.float64, requires_grad=True)
    variance = torch.tensor([0.5, 1.0], dtype=torch.float64, requires_grad=True)
    loc, spread = _fuse(kernel)(mean, variance)
    assert loc.shape == spread.shape == (3, 2)
    by_mean, by_variance = torch.autograd.grad(loc.sum(), (mean, variance))
    torch.testing.assert_close(by_mean, torch.exp(variance / 2).sum().detach().expand(3, 1))
    torch.testing.assert_close(by_variance, 1.5 * torch.exp(variance / 2).detach())


@every_kernel
@pytest.mark.parametrize(
    "second",
    [
        torch.func.hessian,
        lambda f: torch.func.jacrev(torch.func.jacrev(f)),
        lambda f: torch.func.jacrev(torch.func.jacfwd(f)),
    ],
    ids=["forward over reverse", "reverse over reverse", "reverse over forward"],
)
def test_hessians_by_function_transforms(kernel, second):
    mean, variance = (part.detach() for part in _inputs())
    found = second(lambda mean: sum(part.sum() for part in _fuse(kernel)(mean, variance)))(mean)
    loc, spread, _ = lognormal(mean, variance)
    torch.testing.assert_close(found, torch.diag(loc + 4 * spread))


@every_kernel
def test_forward_over_forward_is_refused(kernel):
    mean, variance = (part.detach() for part in _inputs())
    with pytest.raises(NotImplementedError, match=r"forward-mode over forward-mode .* use `torch.func.hessian`"):
        torch.func.jacfwd(torch.func.jacfwd(lambda mean: _fuse(kernel)(mean, variance)[0].sum()))(mean)


@every_kernel
def test_forward_mode_with_dual_numbers(kernel):
    mean, variance = (part.detach() for part in _inputs())
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(mean, torch.ones_like(mean))
        loc, spread = (forward_ad.unpack_dual(part).tangent for part in _fuse(kernel)(dual, variance))
    torch.testing.assert_close(loc, lognormal(mean, variance).mean)
    torch.testing.assert_close(spread, 2 * lognormal(mean, variance).variance)


@every_kernel
def test_vmap_and_per_sample_gradients(kernel):
    mean, variance = (part.detach() for part in _inputs())
    whole = _fuse(kernel)(mean, variance)
    torch.testing.assert_close(torch.func.vmap(_fuse(kernel))(mean, variance), whole)
    shared = torch.func.vmap(_fuse(kernel), in_dims=(0, None))(mean, variance[0])
    torch.testing.assert_close(shared, _fuse(kernel)(mean, variance[0]))
    grads = torch.func.vmap(torch.func.grad(lambda m, v: _fuse(kernel)(m, v)[1]))(mean, variance)
    torch.testing.assert_close(grads, 2 * whole[1])


@every_kernel
def test_nothing_is_recorded_without_gradients(kernel):
    with torch.no_grad():
        result = _fuse(kernel)(*_inputs())
    assert not any(part.requires_grad for part in result)
    assert all(part.grad_fn is None for part in _fuse(kernel)(*(part.detach() for part in _inputs())))


def _saved(kernel) -> int:
    count = 0

    def pack(tensor):
        nonlocal count
        count += 1
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        fused(kernel, None, *_inputs())
    return count


def test_few_tensors_are_saved():
    assert _saved(lognormal) == 2
    assert _saved(lognormal_with_partials) == 6


@every_kernel
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
def test_half_precision_is_computed_in_float32(kernel, dtype):
    mean, variance = (part.detach().to(dtype).requires_grad_() for part in _inputs())
    loc, spread = _fuse(kernel)(mean, variance)
    wide = lognormal(mean.float(), variance.float())
    assert torch.equal(loc, wide.mean.to(dtype))
    assert torch.equal(spread, wide.variance.to(dtype))
    for grad in torch.autograd.grad(loc.sum() + spread.sum(), (mean, variance)):
        assert grad.dtype == dtype
        assert torch.isfinite(grad).all()


def off_by_a_little(mean, variance):
    return Moments(torch.exp(mean) * (1 + 1e-3) + 0 * variance, variance * torch.exp(2 * mean))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("differentiated", [False, True], ids=["plain", "differentiated"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_zero_variance_takes_the_plain_function_bit_for_bit(dtype, differentiated, compiled):
    mean = torch.linspace(-8, 8, 101).to(dtype).requires_grad_(differentiated)
    variance = torch.zeros_like(mean)
    variance.data[::2] = 1.0
    run = _fuse(off_by_a_little)
    if compiled:
        torch.compiler.reset()
        run = torch.compile(run, fullgraph=True, backend="aot_eager")
    loc, _ = run(mean, variance)
    assert torch.equal(loc[1::2], mean.exp()[1::2])
    assert not torch.equal(loc[::2], mean.exp()[::2]) or dtype == torch.bfloat16
    if differentiated:  # the derivative is the kernel's
        (by_mean,) = torch.autograd.grad(loc.sum(), mean)
        torch.testing.assert_close(by_mean, (mean.exp() * (1 + 1e-3)).detach(), rtol=1e-2, atol=1e-3)


def test_a_plain_function_that_overflows_stays_infinite():
    mean = torch.tensor([800.0], dtype=torch.float64)
    for inputs in ((mean, 0 * mean), (mean.requires_grad_(), 0 * mean)):
        assert _fuse(lognormal)(*inputs)[0].item() == torch.inf


def test_without_a_plain_function_the_kernel_decides_everywhere():
    mean = torch.zeros(1, dtype=torch.float64)
    for inputs in ((mean, mean), (mean.clone().requires_grad_(), mean)):
        assert fused(off_by_a_little, None, *inputs)[0].item() == 1 + 1e-3
    half = fused(off_by_a_little, None, mean.bfloat16(), mean.bfloat16())
    assert half[0].dtype == torch.bfloat16


@pytest.mark.parametrize("transform", [torch.func.jacrev, torch.func.jacfwd], ids=["jacrev", "jacfwd"])
def test_the_plain_function_may_hold_a_differentiated_tensor(transform):
    mean, variance = (part.detach() for part in _inputs())

    def loss(factor):
        return fused(scaled, lambda x: x * factor, mean, variance, factor)[0].sum()

    torch.testing.assert_close(transform(loss)(torch.full_like(mean, 2.0)), mean)


@every_kernel
def test_compiled_equals_eager(kernel):
    torch.compiler.reset()
    compiled = torch.compile(_fuse(kernel), fullgraph=True, backend="aot_eager")
    inputs = _inputs()
    for found, wanted in zip(compiled(*inputs), _fuse(kernel)(*inputs), strict=True):
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(
            torch.autograd.grad(found.sum(), inputs, retain_graph=True),
            torch.autograd.grad(wanted.sum(), inputs, retain_graph=True),
        )
