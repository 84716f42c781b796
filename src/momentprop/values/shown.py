"""Values as text, as a table of a notebook, and as a data frame."""

import html
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

LARGE = 64
"""The most elements of a value that prints in full."""

_FIRST = 3  # elements of a short text
_SIDE = 10  # rows and columns of a table in a notebook


def short(name: str, parts: dict[str, Tensor], notes: Sequence[str] = ()) -> str:
    """Return a large value as a few lines: its shape, and the first elements and the range of its parts.

    >>> print(short("Mean", {"loc": torch.arange(100.0).reshape(20, 5)}))
    Mean(shape=(20, 5), dtype=torch.float32,
         loc=[0, 1, 2, ...] from 0 to 99)
    """
    first = next(iter(parts.values()))
    device = "" if first.device.type == "cpu" else f", device='{first.device}'"
    lines = [f"shape={tuple(first.shape)}, dtype={first.dtype}{device}"]
    lines += [f"{part}={_brief(tensor.detach())}" for part, tensor in parts.items()]
    if any(tensor.requires_grad for tensor in parts.values()):
        lines.append("requires_grad=True")
    return f"{name}({(',' + chr(10) + ' ' * (len(name) + 1)).join([*lines, *notes])})"


def _brief(tensor: Tensor) -> str:
    numbers = ", ".join(_number(x) for x in tensor.flatten()[:_FIRST].tolist())
    low, high = (_number(float(x)) for x in tensor.aminmax())
    return f"[{numbers}, ...] from {low} to {high}"


def _number(x: float) -> str:
    return f"{x:.4g}"


def table(title: str, mean: Tensor, deviation: Tensor | None = None) -> str:
    """Return the first elements of a value as a table in HTML: each mean, with its deviation."""
    rows = mean.detach().reshape(-1, mean.shape[-1]) if mean.ndim else mean.detach().reshape(1, 1)
    spread = None if deviation is None else deviation.detach().reshape(rows.shape)
    lines = []
    for i in range(min(len(rows), _SIDE)):
        cells = [_cell(rows[i, j], None if spread is None else spread[i, j]) for j in range(min(rows.shape[1], _SIDE))]
        cells += ["<td>…</td>"] if rows.shape[1] > _SIDE else []
        lines.append(f"<tr><th>{_place(i, mean.shape[:-1])}</th>{''.join(cells)}</tr>")
    lines += [f"<tr><th>…</th><td>{len(rows) - _SIDE} more</td></tr>"] if len(rows) > _SIDE else []
    return f"<div><b>{html.escape(title)}</b><table>{''.join(lines)}</table></div>"


def _cell(mean: Tensor, deviation: Tensor | None) -> str:
    spread = "" if deviation is None else f" ± {float(deviation):.2g}"
    return f"<td>{_number(float(mean))}{spread}</td>"


def _place(row: int, shape: Sequence[int]) -> str:
    """Return the position of a row along all dimensions but the last.

    >>> _place(5, (2, 4))
    '1, 1'
    """
    places = []
    for size in reversed(shape):
        row, place = divmod(row, size)
        places.append(str(place))
    return ", ".join(reversed(places))


def frame(columns: dict[str, Tensor], names: Sequence[str] | None) -> Any:
    """Return a pandas data frame with a row for each element, indexed by its position."""
    try:
        import pandas as pd  # type: ignore[import-untyped]
    except ImportError as error:
        raise ImportError('data frames need pandas: run `pip install "momentprop[frames]"`') from error
    shape = next(iter(columns.values())).shape
    if names is not None and (not shape or len(names) != shape[-1]):
        raise ValueError(
            f"there are {len(names)} names for values of shape {tuple(shape)}: give one name for each unit along the "
            "last dimension"
        )
    levels: list[Any] = [range(size) for size in shape]
    if names is not None:
        levels[-1] = list(names)
    index = pd.MultiIndex.from_product(levels, names=[f"dim_{dim}" for dim in range(len(shape))]) if shape else [0]
    numbers = {name: _flat(part) for name, part in columns.items()}
    if math.prod(shape) == 0 and shape:
        return pd.DataFrame(numbers)
    return pd.DataFrame(numbers, index=index)


def _flat(part: Tensor) -> Any:
    wide = part.to(torch.promote_types(part.dtype, torch.float32))  # numpy has no bfloat16
    return wide.detach().flatten().cpu().numpy()
