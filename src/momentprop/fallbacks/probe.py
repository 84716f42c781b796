r"""Whether a function is one of each element by itself, found out by changing some elements and looking at the others.

A function that mixes elements may hide it from a single look: `logcumsumexp` along one dimension where only another one
is changed, `renorm` below its largest norm, `cumprod` at zero, a sum that one large term rules. So the elements are
changed at many points (the given mean, places around it, all signs and sizes), by many patterns (halves of every
dimension, single elements, random ones), and also in further dimensions in front, as the quadrature has them.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

Function = Callable[[Tensor], object]

_SIZES = (1e-2, 1.0, 30.0, 1e4)  # of the points
_RANDOM_PATTERNS = 8
_SINGLE_ELEMENTS = 8
_MOST = 1 << 16  # elements of a probe: a larger tensor is probed at fewer points


def is_elementwise(function: Function, mean: Tensor, deviation: Tensor) -> bool:
    """Return whether a function gives each element of its result from the same element of its input alone.

    A function that draws random numbers does not, nor one that gives another shape, integers, or several tensors.
    """
    if not mean.numel():
        return True
    mean, deviation = mean.detach().double(), deviation.detach().double()  # as the quadrature computes
    generator = torch.Generator().manual_seed(0)

    def noise() -> Tensor:
        return torch.randn(mean.shape, generator=generator, dtype=torch.float64).to(mean.device)

    with torch.no_grad():
        points = [
            mean,
            mean + deviation * noise(),
            mean + 4 * deviation * noise(),
            noise().sigmoid(),
            1 + noise().abs(),
        ]
        points += [size * noise() for size in _SIZES]
        if mean.numel() > _MOST:
            points = points[:5]
        try:
            results = [_of_each(function, point) for point in points]
            if any(result is None for result in results):
                return False
            for count, pattern in enumerate(_patterns(mean.shape, generator)):
                pattern = pattern.to(mean.device)
                one = count % len(points)
                other = (one + 1 + count // len(points) % (len(points) - 1)) % len(points)
                mixed = _of_each(function, torch.where(pattern, points[one], points[other]))
                if mixed is None or not _same(mixed, torch.where(pattern, results[one], results[other])):  # type: ignore[arg-type]
                    return False
            together = function(torch.stack(points))
            alone = torch.stack(results)  # type: ignore[arg-type]
            # vector instructions may round the last bit differently at another place of the memory
            return isinstance(together, Tensor) and torch.allclose(together, alone, 1e-6, 1e-9, equal_nan=True)
        except (RuntimeError, ValueError, IndexError):  # a function of each element takes every tensor
            return False


def draws_numbers(function: Callable[..., object], *points: Tensor) -> bool:
    """Return whether a function draws from torch's random generators."""
    before = _generators(points[0].device)
    with torch.no_grad():
        function(*points)
    return any(not torch.equal(a, b) for a, b in zip(before, _generators(points[0].device), strict=True))


def _generators(device: torch.device) -> list[Tensor]:
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states


def _of_each(function: Function, point: Tensor) -> Tensor | None:
    result = function(point)
    is_one = isinstance(result, Tensor) and result.shape == point.shape and result.is_floating_point()
    return result if is_one else None  # type: ignore[return-value]


def _same(found: Tensor, wanted: Tensor) -> bool:
    equal = (found == wanted) | (found.isnan() & wanted.isnan())
    return found.shape == wanted.shape and bool(equal.all())


def _patterns(shape: torch.Size, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield masks: halves and every second place of each dimension, both ways around, single elements, random ones."""
    places = torch.arange(shape.numel()).reshape(shape)
    for dim, size in enumerate(shape):
        along = torch.arange(size).reshape([-1 if d == dim else 1 for d in range(len(shape))])
        for pattern in (along < (size + 1) // 2, along % 2 == 0):
            for mask in (pattern, ~pattern):
                yield mask.expand(shape)
    for chosen in torch.randint(shape.numel(), (_SINGLE_ELEMENTS,), generator=generator).tolist():
        yield places == chosen
        yield places != chosen
    for _ in range(_RANDOM_PATTERNS):
        yield torch.rand(shape, generator=generator) < 0.5
