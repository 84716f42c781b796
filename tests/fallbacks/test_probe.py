"""The probe accepts every function of each element, and refuses every function that mixes them."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop.fallbacks.probe import draws_numbers, is_elementwise

SHAPES = [(), (1,), (2,), (5,), (4, 2), (1, 4), (2, 1, 3)]
ELEMENTWISE = """abs acos acosh angle asin asinh atan atanh ceil cos cosh deg2rad digamma erf erfc erfinv exp exp2 expm1
    floor frac i0 lgamma log log10 log1p log2 logit nan_to_num rad2deg reciprocal relu round rsqrt selu sgn sigmoid sign
    sin sinc sinh sqrt square tan tanh trunc celu special.bessel_j0 special.bessel_j1 special.bessel_y0 special.entr
    special.erfcx special.i0e special.i1 special.i1e special.log_ndtr special.ndtr special.ndtri special.airy_ai
    special.modified_bessel_k0 special.scaled_modified_bessel_k0 special.spherical_bessel_j0""".split()

MIXING: dict[str, Callable[[Tensor, int], object]] = {
    "logcumsumexp": torch.logcumsumexp,
    "cumprod": torch.cumprod,
    "cumsum": torch.cumsum,
    "cummax": lambda x, dim: torch.cummax(x, dim).values,
    "cummin": lambda x, dim: torch.cummin(x, dim).values,
    "renorm": lambda x, dim: torch.renorm(x, 2, dim, 1.0),
    "renorm of large norms": lambda x, dim: torch.renorm(x, 2, dim, 50.0),
    "softmax": torch.softmax,
    "log_softmax": torch.log_softmax,
    "sort": lambda x, dim: torch.sort(x, dim).values,
    "argsort": lambda x, dim: x.argsort(dim).double(),
    "flip": lambda x, dim: torch.flip(x, [dim]),
    "roll": lambda x, dim: torch.roll(x, 1, dim),
    "normalize": lambda x, dim: F.normalize(x, dim=dim),
    "centred": lambda x, dim: x - x.mean(dim, keepdim=True),
    "scaled where the largest is large": lambda x, dim: x / x.abs().amax(dim, keepdim=True).clamp(min=1),
    "only the largest": lambda x, dim: torch.where(x == x.amax(dim, keepdim=True), x, torch.zeros_like(x)),
    "a far jump": lambda x, dim: x + (x.amax(dim, keepdim=True) > 20),
    "spectrum": lambda x, dim: torch.fft.fft(x, dim=dim).real,
}


def _means(shape: tuple[int, ...]) -> list[Tensor]:
    count = torch.Size(shape).numel()
    return [
        torch.zeros(shape),
        3 + torch.linspace(0, 1, count).reshape(shape),
        torch.linspace(-1, 1, count).view(shape),
    ]


def _named(name: str) -> Callable[[Tensor], Tensor]:
    found = torch
    for part in name.split("."):
        found = getattr(found, part)
    return found  # type: ignore[return-value]


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_functions_of_each_element_are_accepted(name: str) -> None:
    for shape in SHAPES:
        for mean in _means(shape):
            assert is_elementwise(_named(name), mean, torch.full(shape, 0.2)), (shape, mean)


@pytest.mark.parametrize("name", MIXING)
def test_functions_that_mix_elements_are_refused(name: str) -> None:
    for shape in [(2,), (5,), (4, 2), (2, 4), (3, 1, 2)]:
        for dim in (d for d, size in enumerate(shape) if size > 1):
            for mean in _means(shape):
                assert not is_elementwise(lambda x, dim=dim: MIXING[name](x, dim), mean, torch.full(shape, 0.2)), shape


REFUSED: dict[str, Callable[[Tensor], object]] = {
    "transposed": lambda x: x.mT,
    "another shape": lambda x: x[:1],
    "integers": lambda x: x.long(),
    "several tensors": lambda x: (x, x),
    "no tensor": lambda x: 1.0,
    "what depends on the first dimension": lambda x: x * torch.arange(x.shape[0]).view(-1, *[1] * (x.ndim - 1)),
    "what raises elsewhere": torch.linalg.cholesky,
    "the determinant": lambda x: x * torch.linalg.det(x),
    "its inverse": torch.linalg.inv,
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_functions_are_refused(name: str) -> None:
    assert not is_elementwise(REFUSED[name], torch.eye(3) + 0.1, torch.full((3, 3), 0.1))


def test_an_empty_tensor_has_nothing_to_mix() -> None:
    assert is_elementwise(lambda x: x.cumsum(0), torch.zeros(0), torch.zeros(0))


def test_a_probe_leaves_the_random_numbers_alone() -> None:
    before = torch.get_rng_state()
    assert is_elementwise(torch.digamma, torch.ones(3), torch.ones(3))
    assert torch.equal(before, torch.get_rng_state())


def test_draws_are_seen_by_the_generator() -> None:
    assert draws_numbers(lambda x: F.dropout(x, 1e-9), torch.ones(3))
    assert not draws_numbers(torch.sin, torch.ones(3))
