r"""Operations where an element meets itself: in two factors, in two summands, or as copies in a sum.

Two factors $x$ and $z$ that share elements, as in `x @ x.T`, are jointly normal. With the covariance
$\Gamma_{ij} = \sigma_i^2$ where $x_i$ and $z_j$ are one element, and zero elsewhere, a sum of products
$\sum_{ij} c_{ij}x_iz_j$ has, beyond the moments for independent factors,

$$\Delta\mu = \sum_{ij} c_{ij}\Gamma_{ij}, \qquad
\Delta\sigma^2 = 2\sum_{ijkl} c_{il}\mu_{z,l}\,\Gamma_{ij}\,c_{kj}\mu_{x,k} +
\sum_{ijkl} c_{il}\Gamma_{ij}\,c_{kj}\Gamma_{kl}.$$

A sum over $n$ copies of an element counts its variance $n^2$ times: every copy $n$ times.
"""

from typing import Any

import torch
from torch import Tensor

from momentprop.dispatch.elements import elements_of, may_repeat, numbers, share

Letters = tuple[str, str, str]  # of the two factors and of the product, as in `torch.einsum`


def covariance(x: Any, y: Any) -> Tensor | None:
    """Return the elementwise covariance of two values, or None if they share no element at the same place."""
    if not share(x, y):
        return None
    (of_x, of_y), _ = numbers(x, y)
    return torch.where((of_x == of_y) & (of_x > 0), x.variance, 0.0)


def repeated(x: Any, y: Any) -> bool:
    """Return whether elements can occur more than once in one of two values."""
    return may_repeat(elements_of(x)) or may_repeat(elements_of(y))


def product_correction(letters: Letters, x: Any, y: Any) -> tuple[Tensor, Tensor] | None:
    r"""Return $\Delta\mu$ and $\Delta\sigma^2$ of a product of two values, or None if they are expensive to find.

    Each pair of places of one element, $(r, i)$ in $x$ and $(j, c)$ in $z$, adds to the element $(r, c)$ of the
    product: $\Gamma$ to the mean if $i = j$, and $2\Gamma\mu_{z,ic}\mu_{x,rj} + \Gamma\Gamma_{rj,ic}$ to the variance.
    That is little work if no element occurs twice in a factor.
    """
    of_x, of_y, of_product = _without_ones(letters, x.shape, y.shape)
    if (
        repeated(x, y)
        or (set(of_x) ^ set(of_y)) - set(of_product)
        or len(set(of_x)) + len(set(of_y)) < len(of_x + of_y)
    ):
        return None
    found, count = numbers(x, y)
    wide = torch.promote_types(x.dtype, torch.float32)
    parts = [[each.loc.to(wide), each.variance.to(wide), of] for each, of in zip((x, y), found, strict=True)]
    sizes = {letter: size for letter, size in zip(letters[0], x.shape, strict=True) if letter in of_x}
    sizes |= {letter: size for letter, size in zip(letters[1], y.shape, strict=True) if letter in of_y}
    batch = [letter for letter in of_x if letter in of_y and letter in of_product]
    inner = [letter for letter in of_x if letter in of_y and letter not in of_product]
    rows = [letter for letter in of_x if letter not in of_y]
    columns = [letter for letter in of_y if letter not in of_x]

    def arranged(part: Tensor, own: str, given: str, *groups: list[str]) -> Tensor:
        squeezed = part.reshape([size for letter, size in zip(given, part.shape, strict=True) if letter in own])
        order = [own.index(letter) for group in groups for letter in group]
        counts = [torch.Size([sizes[letter] for letter in group]).numel() for group in groups]
        return squeezed.permute(order).reshape(counts)

    mean_x, spread, of_first = (arranged(part, of_x, letters[0], batch, rows, inner) for part in parts[0])
    mean_y, _, of_second = (arranged(part, of_y, letters[1], batch, inner, columns) for part in parts[1])
    mean, variance = _matrix_correction(mean_x, spread, of_first, mean_y, of_second, count)
    free = [*batch, *rows, *columns]
    order = [free.index(letter) for letter in of_product]
    full = [sizes.get(letter, 1) if letter in of_product else 1 for letter in letters[2]]
    mean, variance = (part.reshape([sizes[f] for f in free]).permute(order).reshape(full) for part in (mean, variance))
    return mean, variance


def _matrix_correction(
    mean_x: Tensor, spread: Tensor, of_x: Tensor, mean_y: Tensor, of_y: Tensor, count: int
) -> tuple[Tensor, Tensor]:
    """Return the corrections for matrices `(batch, rows, inner)` and `(batch, inner, columns)`."""
    (batches, rows, inner), columns = mean_x.shape, mean_y.shape[2]
    place = of_x.new_full((count,), -1)  # of every element in the second factor
    place = place.scatter(0, of_y.flatten(), torch.arange(of_y.numel(), device=of_y.device))
    found = torch.where(of_x > 0, place[of_x], -1)  # constants are no shared element
    b, r, i = (
        torch.arange(size, device=of_x.device).reshape([-1 if d == dim else 1 for d in range(3)])
        for dim, size in enumerate(of_x.shape)
    )
    c, j = found % columns, found // columns % inner
    meets = (found >= 0) & (found // (columns * inner) == b)
    j, c = j * meets, c * meets
    gamma = torch.where(meets, spread, 0.0)
    other = (found[b, r, j] == (b * inner + i) * columns + c) & meets
    to_variance = gamma * (2 * mean_y[b, i, c] * mean_x[b, r, j] + torch.where(other, gamma[b, r, j], 0.0))
    to_mean = torch.where(i == j, gamma, 0.0)
    target = ((b * rows + r) * columns + c).flatten()
    zeros = mean_x.new_zeros(batches * rows * columns)
    return zeros.index_add(0, target, to_mean.flatten()), zeros.index_add(0, target, to_variance.flatten())


def _without_ones(letters: Letters, x: torch.Size, y: torch.Size) -> Letters:
    """Return the letters, without dimensions of length one that broadcast over the other factor's."""
    of_x, of_y, of_product = letters
    size_x, size_y = dict(zip(of_x, x, strict=True)), dict(zip(of_y, y, strict=True))
    left_x = "".join(letter for letter in of_x if size_x[letter] > 1 or size_y.get(letter, 1) == 1)
    left_y = "".join(letter for letter in of_y if size_y[letter] > 1 or size_x.get(letter, 1) == 1)
    return left_x, left_y, of_product


def copies_within(value: Any, dims: list[int]) -> Tensor | None:
    """Return how often every element occurs in the sum over some dimensions, or None if surely once."""
    if value.elements is None or not value.numel() or not may_repeat(elements_of(value)):
        return None
    (found,), count = numbers(value)
    groups = torch.arange(found.numel(), device=found.device).reshape(found.shape).amax(dims, keepdim=True)
    ordered, order = (groups * count + found).flatten().sort()
    first = torch.cat([torch.zeros_like(ordered[:1], dtype=torch.bool), ordered[1:] != ordered[:-1]])
    run = first.cumsum(0)  # equal ones follow each other
    lengths = torch.zeros_like(run).index_add(0, run, torch.ones_like(run))
    return torch.zeros_like(run).scatter(0, order, lengths[run]).reshape(found.shape)
