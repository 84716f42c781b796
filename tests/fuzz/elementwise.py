"""Random means and variances through every elementwise rule, in four types and over sixteen decades."""

import math
import warnings
from collections import Counter
from random import Random
from typing import NamedTuple

import torch
from torch import Tensor

from momentprop import Normal
from tests.fuzz.functions import FAMILIES, Function

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
COUNT = 2**19
"""The inputs of a call on a CPU; a GPU gets more at once."""
_PART = 2**14  # the inputs of a call that are also differentiated, or compared with float64
_TAIL = 1e-5  # deviations below this part of the input's (or of one) are vanishing tails, without a stated error
_EPS, _SINGLE = torch.finfo(torch.float64).eps, torch.finfo(torch.float32).eps  # halves are computed as float32


class Inputs(NamedTuple):
    """Means and variances, and which of the elements are certain or infinite."""

    mean: Tensor
    variance: Tensor


def trial(random: Random, device: str = "cpu", count: int | None = None) -> Counter[str]:
    """Call one function on many random inputs and check all that is known of the result."""
    function = random.choice(FAMILIES).draw(random)
    dtype = random.choice(DTYPES)
    count = count or (COUNT if device == "cpu" else 16 * COUNT)
    inputs = draw(function, dtype, max(count // function.cost, 1), random, device)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # that a value is taken as lognormal
        check_moments(function, *inputs)
        part = Inputs(*(tensor[:_PART] for tensor in inputs))
        if random.random() < 0.25:
            check_precision(function, *part)
        if random.random() < 0.25 and dtype != torch.float16:
            check_gradients(function, *part)
    return Counter({"calls": 1, "inputs": inputs.mean.numel(), f"{str(dtype)[6:]} inputs": inputs.mean.numel()})


# Inputs


def draw(function: Function, dtype: torch.dtype, count: int, random: Random, device: str) -> Inputs:
    """Draw inputs: far and near means, with exact zeros, kinks, infinities and certain elements among them."""
    torch.manual_seed(random.getrandbits(63))
    reach = random.choice((4.0, 8.0))  # of the deviation: the variance over sixteen decades, or over twice as many
    largest = torch.finfo(dtype).max
    sigma = _log_uniform(count, reach, device)
    kink = torch.tensor(function.kinks or (0.0,), dtype=torch.float64, device=device)
    at_kink = kink[torch.randint(len(kink), (count,), device=device)]
    sign = torch.randint(2, (count,), device=device) * 2.0 - 1.0
    far = sign * _log_uniform(count, 8.0, device)
    near = at_kink + sign * _log_uniform(count, 1.6, device) * sigma
    kind = torch.rand(count, device=device)
    mean = torch.where(kind < 0.5, far, near)
    mean = torch.where(kind > 0.96, at_kink, mean)
    mean = torch.where(kind > 0.98, 0.0, mean)
    if function.positive:
        mean = mean.abs().clamp(max(1e-8, torch.finfo(dtype).smallest_normal))
    mean = mean.clamp(-largest, largest).to(dtype)
    variance = (sigma * sigma).clamp(max=largest).to(dtype)
    variance = torch.where(torch.rand(count, device=device) < 0.04, 0.0, variance)
    return Inputs(_with_infinities(function, mean), variance)


def _log_uniform(count: int, decades: float, device: str) -> Tensor:
    """Return sizes, uniform in their logarithm, of so many decades above and below one."""
    return torch.exp((math.log(10) * decades) * (2 * torch.rand(count, device=device) - 1)).double()


def _with_infinities(function: Function, mean: Tensor) -> Tensor:
    """Put infinite means among the others, if the function is finite there."""
    ends = torch.tensor([-math.inf, math.inf], dtype=mean.dtype, device=mean.device)
    if function.positive:
        return mean
    for end, finite in zip(ends, torch.isfinite(function.call(ends)).tolist(), strict=True):
        if finite:
            mean = torch.where(torch.rand_like(mean, dtype=torch.float32) < 0.005, end, mean)
    return mean


# Checks


def check_moments(function: Function, mean: Tensor, variance: Tensor) -> None:
    """Check what must hold of every result: no NaN, no negative variance, and the known inequalities."""
    y = function.call(Normal.of(mean, variance))
    plain = function.call(mean)
    eps, certain = torch.finfo(mean.dtype).eps, variance == 0
    sound = ~torch.isnan(plain)
    loc, spread, std = y.loc, y.variance, variance.double().sqrt()
    blurred = 8 * _EPS * mean.double().abs() / std  # nodes about a mean that is far larger than the deviation

    def never(what: str, wrong: Tensor) -> None:
        _never(function, what, wrong & sound, mean, variance, loc, spread)

    never("the mean is NaN", torch.isnan(loc))
    never("the variance is NaN", torch.isnan(spread))
    never("the variance is negative", spread < 0)
    never("without variance, the mean is not the plain function", certain & (loc != plain))
    never("without variance, the variance is not zero", certain & (spread != 0))
    never("it is infinite, but the truth is not", _wrongly_infinite(function, mean, variance, loc, spread))
    never("an infinite mean gives a variance", torch.isinf(mean) & (spread != 0))
    if function.bounds is not None:
        low, high = function.bounds
        room = 4 * eps * max(high - low, abs(low), abs(high))
        out = (loc < low - room) | (loc > high + room)
        never("the mean is out of bounds", out & (loc != plain))  # torch's own `hardsigmoid` on a GPU is 1 + 3e-8
        never("the variance is out of bounds", spread > (high - low) ** 2 / 4 * (1 + 4 * eps + 2 * function.error))
    if function.lipschitz is not None:
        largest = function.lipschitz**2 * variance.double() * (1 + 4 * eps + 2 * function.error + blurred)
        tiny = torch.finfo(mean.dtype).smallest_normal * torch.finfo(mean.dtype).eps  # rounding of a subnormal number
        never(
            "the variance exceeds Poincaré's bound",
            ~certain & torch.isfinite(spread) & (spread.double() > largest + tiny),
        )
    if function.bend:
        deviation = torch.maximum(spread.double().sqrt(), _TAIL * std.clamp(max=1.0))
        room = 2 * function.error * deviation + 8 * eps * (plain.double().abs() + loc.double().abs())
        rise = function.bend * (loc.double() - plain.double())
        never("Jensen's inequality does not hold", ~certain & torch.isfinite(mean) & (rise < -room))


def _wrongly_infinite(function: Function, mean: Tensor, variance: Tensor, loc: Tensor, spread: Tensor) -> Tensor:
    """Say where a result is infinite though the truth can be represented; float64 is the truth of the others."""
    infinite = torch.isinf(loc) | torch.isinf(spread)
    where = infinite.nonzero().squeeze(1)
    if not where.numel():
        return infinite
    wrong = torch.zeros_like(infinite)
    mu, v = mean[where].double(), variance[where].double()
    largest = torch.finfo(mean.dtype).max
    if function.growth is not None:
        overflows = function.growth.log_size(mu, v) > math.log(largest) * (1 - 1e-6)
        overflows |= torch.isinf(function.call(mean[where]))  # of a certain element
    elif mean.dtype == torch.float64:
        overflows = torch.zeros_like(where, dtype=torch.bool)
    else:
        truth = function.call(Normal.of(mu, v))
        overflows = torch.maximum(truth.loc.abs(), truth.variance) > largest * (1 - 1e-3)
    wrong[where] = ~overflows
    return wrong


def check_precision(function: Function, mean: Tensor, variance: Tensor) -> None:
    """Compare the result with that of float64, which has the same inputs, as far as rounding permits."""
    dtype = mean.dtype
    if dtype == torch.float64:
        return
    truth, y = function.call(Normal.of(mean.double(), variance.double())), function.call(Normal.of(mean, variance))
    largest, eps = torch.finfo(dtype).max / 2, torch.finfo(dtype).eps
    smallest = torch.finfo(dtype).smallest_normal
    std, sigma = variance.double().sqrt(), truth.variance.sqrt()
    counted = (variance > 0) & torch.isfinite(mean) & (truth.loc.abs() < largest) & (truth.variance < largest)
    counted &= (truth.variance > smallest / eps) & (sigma > _TAIL * std.clamp(max=1.0))
    bound = 4 * function.error + eps
    if function.growth is not None:
        bound = bound + 4 * _SINGLE * function.growth.rounding(mean.double(), variance.double())

    def never(what: str, wrong: Tensor) -> None:
        _never(function, what, wrong & counted, mean, variance, y.loc, y.variance, truth.loc, truth.variance)

    off = (y.loc.double() - truth.loc).abs()
    rounding = 8 * eps * (truth.loc.abs() + mean.double().abs() * sigma / std) + smallest  # of result and argument
    never("the mean differs from that in float64", off > bound * sigma + rounding)
    ratio = y.variance.double().sqrt() / sigma
    never("the deviation differs from that in float64", (ratio - 1).abs() > bound)


def check_gradients(function: Function, mean: Tensor, variance: Tensor) -> None:
    """Check that derivatives of finite results are finite, unless they overflow in float64 or beyond this type."""
    tried = torch.isfinite(mean)
    if function.positive:
        tried &= (mean > 1e-3) & (mean < 1e3)
    mean, variance = mean[tried], variance[tried]
    found, truth = _gradients(function, mean, variance), _gradients(function, mean.double(), variance.double())
    y = function.call(Normal.of(mean, variance))
    moderate = (y.loc.abs() < 1e30) & (y.variance < 1e30)
    largest = torch.finfo(mean.dtype).max / 100
    for name, derivative in found.items():
        wrong = moderate & ~torch.isfinite(derivative)
        if mean.dtype != torch.float64:
            wrong &= ~(truth[name].abs() > largest)
        _never(function, f"{name} is not finite", wrong, mean, variance, derivative, truth[name])


def _gradients(function: Function, mean: Tensor, variance: Tensor) -> dict[str, Tensor]:
    with torch.enable_grad():
        inputs = mean.clone().requires_grad_(), variance.clone().requires_grad_()
        y = function.call(Normal.of(*inputs))
        found = {}
        for name, output in (("mean", y.loc), ("variance", y.variance)):
            if output.requires_grad:
                grads = torch.autograd.grad(
                    output.sum(), inputs, retain_graph=True, allow_unused=True, materialize_grads=True
                )
                names = (f"the derivative of the {name} by the {other}" for other in ("mean", "variance"))
                found.update(zip(names, grads, strict=True))
    return found


def _never(function: Function, what: str, wrong: Tensor, mean: Tensor, variance: Tensor, *found: Tensor) -> None:
    """Fail with the first element that is wrong."""
    if not bool(wrong.any()):
        return
    first = int(wrong.nonzero()[0])
    numbers = ", ".join(f"{tensor[first].item():.9g}" for tensor in found)
    raise AssertionError(
        f"{function} in {str(mean.dtype)[6:]}: {what}: at mean {mean[first].item():.17g}, variance "
        f"{variance[first].item():.17g} it gives {numbers} ({int(wrong.sum())} of {wrong.numel()} inputs)"
    )
