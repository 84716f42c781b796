"""Inputs of attention, and draws to compare it with."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop import Normal

LOWEST = torch.finfo(torch.float32).min


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def moments(draw: Callable[[], Tensor], pieces: int) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of what `draw` gives, which is a batch of draws."""
    start = draw()
    reference, count = start[0], 0
    first = second = torch.zeros_like(start[0])
    with torch.no_grad():
        for _ in range(pieces):
            deviation = draw() - reference
            count += len(deviation)
            first, second = first + deviation.sum(0), second + (deviation * deviation).sum(0)
    mean = first / count
    return reference + mean, (second / count - mean * mean).sqrt()


def draws_of(value: Normal, n: int, generator: torch.Generator) -> Tensor:
    return value.sample(n, generator=generator)


def deviations(found: Any, mean: Tensor, std: Tensor) -> tuple[float, float, float]:
    """How far the logarithm of the deviation is off on average and at worst, and the mean in units of it."""
    ratio = (found.variance.sqrt() / std).log()
    return float(ratio.mean().abs()), float(ratio.abs().max()), float(((found.loc - mean) / std).abs().max())


def masks(queries: int, keys: int) -> Iterator[tuple[str, Tensor | None]]:
    seen = torch.rand(queries, keys, generator=seeded(3)) < 0.7
    seen[:, 0] = True
    blind = seen.clone()
    blind[1] = False
    yield "none", None
    yield "bool", seen
    yield "broadcast", seen[:1]
    yield "of_heads", torch.rand(2, 3, queries, keys, generator=seeded(4)) < 0.8
    yield "float", torch.randn(queries, keys, generator=seeded(5))
    yield "minus_infinity", torch.zeros(queries, keys).masked_fill(~seen, -torch.inf)
    yield "lowest", torch.zeros(queries, keys).masked_fill(~seen, LOWEST)
    yield "all_masked", blind
    yield "all_minus_infinity", torch.zeros(queries, keys).masked_fill(~blind, -torch.inf)
    yield "all_lowest", torch.zeros(queries, keys).masked_fill(~blind, LOWEST)


MASKS = dict(masks(5, 7))


def heads(variance: float, dtype: torch.dtype = torch.float32) -> list[Normal]:
    g = seeded(11)
    shapes = ((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 6))
    return [
        Normal(torch.randn(*shape, generator=g).to(dtype), variance * torch.rand(*shape, generator=g).to(dtype))
        for shape in shapes
    ]


def written_out(query: Any, key: Any, value: Any, mask: Any = None, dropout: float = 0.0) -> Any:
    scores = torch.matmul(query, key.transpose(-2, -1)) * query.shape[-1] ** -0.5
    weights = F.softmax(scores if mask is None else scores + mask, dim=-1)
    return torch.matmul(F.dropout(weights, dropout), value)
