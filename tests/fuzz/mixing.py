"""Random values through every other rule: the calls of `tests.examples`, and calls of random shapes."""

import warnings
from collections import Counter
from random import Random
from typing import Any, NamedTuple

import torch

from momentprop import Kind, Mean, Normal, dispatch
from momentprop.values import Value
from tests.examples import EXAMPLES, NOT_TRACED
from tests.fuzz import results
from tests.fuzz.shapes import SHAPES, Call

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
"""Random shapes are tried in all of them; the examples have constants of the default type, float32 or float64."""

_WIDE = DTYPES[:2]  # torch itself overflows in half precision, where rules compute in float32
_DRAWN = {"rand_like", "randn_like", "randint_like", "cuda"}
_CONVERTED = {"bfloat16", "half", "float", "to", "type", "type_as"}
OPERATIONS = sorted(
    row.op
    for row in dispatch.table()
    if issubclass(Normal, row.on) and row.kind is not Kind.ELEMENTWISE
    if row.op in EXAMPLES and row.op not in _DRAWN | _CONVERTED
    if row.op not in NOT_TRACED or row.op == "ctc_loss"
)
"""The operations whose examples are called."""

_EXPONENTIAL = {"poisson_nll_loss", "kl_div", "binary_cross_entropy"}  # may overflow in float64 too
_SCORES = {"scaled_dot_product_attention", "multi_head_attention_forward"}  # hold for scores of variance up to 1e8
_NOISY = {row.op for row in dispatch.table() if row.kind is Kind.NOISE}


class Scales(NamedTuple):
    """The decades of the means, of their differences, and of the deviations."""

    mean: float
    width: float
    deviation: float
    certain: float  # the part of the elements without variance

    @classmethod
    def draw(cls, random: Random, reach: float) -> "Scales":
        mean = random.uniform(-reach, reach)
        near = random.random() < 0.5
        deviation = mean + random.uniform(-3, 3) if near else random.uniform(-reach, reach)
        return cls(mean, random.choice((0.0, 1.0, 3.0)), min(deviation, reach), random.choice((0.0, 0.2, 1.0)))

    def value(self, shape: tuple[int, ...], dtype: torch.dtype, device: str, positive: bool) -> Normal:
        """Draw a value of these scales, exact in its type."""
        loc = torch.randn(shape, device=device, dtype=torch.float64)
        wide = 10.0 ** (self.width * (2 * torch.rand(shape, device=device, dtype=torch.float64) - 1))
        spread = 10.0 ** (2 * torch.rand(shape, device=device, dtype=torch.float64) - 1)
        loc, std = loc * wide * 10.0**self.mean, spread * 10.0**self.deviation
        if positive:
            loc = 0.55 + 0.4 * torch.rand(shape, device=device, dtype=torch.float64)
            std = std.clamp(max=0.1)
        variance = torch.where(torch.rand(shape, device=device) < self.certain, 0.0, std * std)
        largest = torch.finfo(dtype).max
        return Normal(loc.clamp(-largest, largest).to(dtype), variance.clamp(max=largest).to(dtype))


def trial(random: Random, device: str = "cpu") -> Counter[str]:
    """Call one operation on random values."""
    return _example(random, device) if random.random() < 0.5 else _random_shape(random, device)


def _example(random: Random, device: str) -> Counter[str]:
    op = random.choice(OPERATIONS)
    found = EXAMPLES[op]
    dtype = random.choice(_WIDE)
    scales = Scales.draw(random, 2.0 if op in _SCORES else 8.0)
    call = Call(op, found.call, found.shape, found.positive, op not in _EXPONENTIAL, op in _NOISY)
    return _called(call, scales, dtype, device)


def _random_shape(random: Random, device: str) -> Counter[str]:
    call = random.choice(SHAPES)(random)
    dtype = random.choice(DTYPES)
    reach = 8.0 if dtype != torch.float16 else 4.0
    return _called(call, Scales.draw(random, min(reach, call.reach)), dtype, device)


def _called(call: Call, scales: Scales, dtype: torch.dtype, device: str) -> Counter[str]:
    x = scales.value(call.shape, dtype, device, call.positive)
    title = f"{call.name} in {str(dtype)[6:]}"
    given = f"shape {call.shape}, {scales}"
    with warnings.catch_warnings(), torch.no_grad(), torch.device(device):
        warnings.simplefilter("ignore")
        plain = _plain(call, x, dtype)
        found = _outcome(call, x, dtype)
        truth = None if dtype == torch.float64 else lambda: _outcome(call, x.to(torch.float64), torch.float64)
        results.check(title, found, plain, truth, given, finite=call.finite)
        if plain is not None and not call.noisy and scales.certain == 1.0 and dtype in _WIDE:
            _check_certain(title, found, plain, given)
    return Counter({"calls": 1, "elements": x.loc.numel(), f"{str(dtype)[6:]} calls": 1})


def _plain(call: Call, x: Normal, dtype: torch.dtype) -> Any:
    try:
        return _outcome(call, Mean(x.loc), dtype)
    except RuntimeError:  # a few examples broadcast what torch does not
        return None


def _outcome(call: Call, x: Value, dtype: torch.dtype) -> Any:
    """Call the operation; constants that it makes have the type of the value."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        return call.function(x)
    finally:
        torch.set_default_dtype(before)


def _check_certain(title: str, found: Any, plain: Any, given: str) -> None:
    """Check that a value without variance gives the plain function."""
    pairs = zip(results.moments(found), results.moments(plain), strict=True)
    for (mean, variance), (wanted, _) in pairs:
        finite = torch.isfinite(wanted)
        assert not bool((variance[finite] != 0).any()), f"{title}: a certain value gets a variance; {given}"
        eps = torch.finfo(mean.dtype).eps
        size = float(wanted[finite].abs().max()) if bool(finite.any()) else 0.0
        off = (mean - wanted)[finite].abs().double()
        assert not bool((off > 64 * eps * size).any()), (
            f"{title}: a certain value gives another result than the plain one, by {float(off.max()):.3g}; {given}"
        )
