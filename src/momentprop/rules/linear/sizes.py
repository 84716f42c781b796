"""Window sizes, which torch takes as one number or as one for each dimension."""

from collections.abc import Sequence

Size = int | Sequence[int]


def per_dim(size: Size, dims: int) -> list[int]:
    """Return a size for each of `dims` dimensions."""
    sizes = [size] if isinstance(size, int) else list(size)
    return sizes * dims if len(sizes) == 1 else sizes
