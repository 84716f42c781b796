"""Defects of scalars, types, broadcasting and edge cases."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import momentprop
from momentprop import Normal
from tests.reliability.rows import row

X = Normal(torch.tensor([1.0]), 1.0)


def _half(loc: float, variance: float) -> Normal:
    return Normal(torch.tensor([loc]), variance).half()  # type: ignore[attr-defined, no-any-return]


@row(2, "integer factors overflow when they are squared", "variance 1.0, −112, inf; OverflowError")
def integer_factors() -> str:
    """Squares are taken in the type of the value."""
    byte, short = torch.tensor(255, dtype=torch.uint8), torch.tensor(12, dtype=torch.int8)
    found = [y.variance.item() for y in (X / byte, X * short, X / torch.tensor(16, dtype=torch.uint8), X * 10**11)]
    for variance, wanted in zip(found, (1 / 255**2, 144.0, 1 / 256, 1e22), strict=True):
        assert abs(variance / wanted - 1) < 1e-6
    return f"variances {', '.join(f'{variance:.3g}' for variance in found)}"


@row(11, "batch norm in training with an empty batch destroys the running statistics", "running_mean NaN")
def empty_batch_norm() -> str:
    """An empty batch leaves them alone, as in torch."""
    layer = nn.BatchNorm1d(2).train()
    assert layer(Normal(torch.zeros(0, 2), 1.0)).shape == (0, 2)
    assert layer.running_mean.tolist() == [0.0, 0.0]
    assert layer.running_var.tolist() == [1.0, 1.0]
    return f"running_mean {layer.running_mean.tolist()}"


@row(12, "`.to(int)`, `.type(int)`, `sum(dtype=int)` truncate silently", "mean 1, variance 0")
def integer_targets() -> str:
    """Nothing but a real floating-point type is taken."""
    for dtype in (torch.int64, torch.uint8, torch.complex64):
        for call in (X.to, X.type, partial(torch.sum, X), partial(torch.cumsum, X, 0)):  # type: ignore[attr-defined]
            with pytest.raises(TypeError, match="holds real floating-point numbers only"):
                call(dtype=dtype) if isinstance(call, partial) else call(dtype)
    return "TypeError"


@row(15, "`tensordot` over broadcast dimensions of size 1", "variance 4")
def broadcast_tensordot() -> str:
    """One element is multiplied by the sum of the others."""
    found = torch.tensordot(Normal(torch.ones(1), 1.0), torch.ones(4), 1)
    assert found.variance.item() == 16.0
    return f"variance {found.variance.item():g}"


@row(16, "`batch_norm` with random weight and bias", "a `Normal` of `Normal`s; in eval mode AttributeError")
def random_batch_norm() -> str:
    """Weight and bias are independent of the input."""
    x, weight, bias = Normal(torch.tensor([[-1.0], [1.0]]), 0.5), Normal(torch.tensor([2.0]), 0.1), X
    found = F.batch_norm(x, torch.zeros(1), torch.ones(1), weight, bias, eps=0.0)
    torch.testing.assert_close(found.variance, torch.full((2, 1), 0.5 * (4 + 0.1) + 0.1 + 1.0))
    trained = F.batch_norm(x, None, None, weight, bias, training=True, eps=0.0)
    assert trained.variance.shape == (2, 1)
    return f"variance {found.variance[0].item():.2f} in evaluation, {trained.variance[0].item():.2f} in training"


@row(17, "`heaviside` with broadcasting `values`", "loc (2, 3), variance (2, 1)")
def broadcast_heaviside() -> str:
    """Mean and variance have one shape."""
    found = torch.heaviside(Normal(torch.zeros(2, 1), 1.0), torch.ones(3))
    assert found.loc.shape == found.variance.shape == (2, 3)
    return f"loc and variance {tuple(found.variance.shape)}"


@row(18, "float16 products square in float16", "variance inf; NaN; deviation ×0.72")
def products_in_float16() -> str:
    """Products of variances are taken in float32."""
    found = [(_half(1.0, 0.01) * torch.tensor(300.0).half()).variance.item(), (_half(1.0, 0.0) * 300).variance.item()]
    x, weight = Normal(torch.ones(1, 1000), 100.0), torch.randn(1, 1000, generator=torch.Generator().manual_seed(0))
    half = F.linear(x.half(), (1e-4 * weight).half()).stddev.float()  # type: ignore[attr-defined]
    ratio = (half / F.linear(x, 1e-4 * weight).stddev).item()
    assert abs(found[0] - 900) < 1
    assert found[1] == 0
    assert abs(ratio - 1) < 0.01
    return f"variance {found[0]:.0f}; {found[1]:g}; deviation ×{ratio:.2f}"


@row(24, "`check` crashes on −inf outputs, an empty batch, `units=0`", "RuntimeError, ZeroDivisionError")
def check_of_edge_cases() -> str:
    """Masked logits count as certain, and the rest is refused in one sentence."""
    model = nn.Linear(4, 3)
    mask = torch.tensor([True, False, False])

    def masked(x: torch.Tensor) -> torch.Tensor:
        return model(x).masked_fill(mask, -torch.inf)  # type: ignore[no-any-return]

    report = momentprop.check(masked, torch.ones(5, 4), input_variance=0.1, samples=50)
    assert report["output"].zero == 5
    assert report["output"].methods["ap2"].eps_mean is not None
    for batch, units, words in ((0, 10, "the batch is empty"), (5, 0, "units must be at least 1, .* but is 0")):
        with pytest.raises(ValueError, match=words):
            momentprop.check(model, torch.ones(batch, 4), input_variance=0.1, samples=50, units=units)
    return "a report with 5 certain units; ValueError"


@row(26, "differences from torch at zero variance", "0 → 1; NaN → 1; 0.325 → 0.65; 0.075 → 0.575")
def torch_at_zero_variance() -> str:
    """Certain values give what tensors give."""
    nothing, scores = torch.full((1, 1), torch.nan), torch.tensor([[0.1, 0.2, 0.4, 0.8]])
    pairs = [
        (lambda x: torch.lerp(x, torch.tensor([1.0]), 1.0), torch.tensor([1e8])),
        (lambda x: torch.addr(nothing, x, torch.ones(1), beta=0), torch.ones(1)),
        (lambda x: F.multilabel_margin_loss(x, torch.tensor([[3, 3, -1, 1]])), scores),
        (lambda x: F.hinge_embedding_loss(x, torch.tensor([[1.0, -1.0, 0.0, 2.0]])), scores),
    ]
    found = []
    for call, x in pairs:
        result = call(Normal(x, 0.0))
        found.append(getattr(result, "loc", result))
        torch.testing.assert_close(found[-1], call(x))
    return "; ".join(f"{x.item():.3g}" for x in found)


@row(27, "complex factors", "`x * 1j`: variance −1")
def complex_factors() -> str:
    """A value is real."""
    for call in (torch.mul, torch.div, torch.add, partial(torch.addcmul, X)):
        with pytest.raises(TypeError, match=r"would turn a random value into torch\.complex64"):
            call(X, torch.tensor([1j]))
    with pytest.raises(TypeError, match="'mul' at top level"):
        X * 1j  # type: ignore[operator]
    return "TypeError"


@row(28, "unclear errors of random targets and slopes, scalars, empty batches, traces", "AttributeError, IndexError, …")
def clear_errors() -> str:
    """Each works as in torch, or says one sentence."""
    with pytest.raises(momentprop.MissingRule, match="random `target`"):
        F.cross_entropy(torch.zeros(2, 3), Normal(torch.ones(2, 3), 0.1))
    slopes = F.prelu(Normal(torch.tensor([[-1.0]]), 0.0), X)
    assert (slopes.loc.item(), slopes.variance.item()) == (-1.0, 1.0)
    filled = torch.zeros(2).masked_fill(torch.tensor([True, False]), X[0])  # type: ignore[arg-type, index]
    assert filled.variance.tolist() == [1.0, 0.0]
    scalar = Normal(torch.tensor(1.0), 0.5)
    assert (torch.softmax(scalar, 0).variance.item(), torch.logsumexp(scalar, 0).variance.item()) == (0.0, 0.5)
    with pytest.raises(ValueError, match="no elements"):
        torch.var(Normal(torch.zeros(2, 0), 1.0), 1)
    assert nn.GroupNorm(1, 2)(Normal(torch.zeros(0, 2, 3), 1.0)).shape == (0, 2, 3)
    assert nn.GRU(2, 3)(Normal(torch.zeros(4, 0, 2), 1.0))[0].shape == (4, 0, 3)
    return "works, or one sentence"
