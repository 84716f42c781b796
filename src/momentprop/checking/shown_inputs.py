"""The inputs that a report shows, with their output units, class probabilities and pictures."""

import base64
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from momentprop.checking.final_output import Probabilities, ShownUnits
from momentprop.checking.measure import Measurement
from momentprop.checking.results import SAMPLED, Example, Unit
from momentprop.running import Run
from momentprop.values import Value
from momentprop.values.uncertain import Uncertain

_BEST = ("kl_joint", "kl_race", "kl_fast", "kl")  # the report shows the first of these posteriors that a method has


def of(found: Measurement, run: Run, class_names: Sequence[str] | None) -> list[Example]:
    """All chosen inputs."""
    noisy = _noisy(run)
    return [
        Example(
            name=f"input {shown.input}",
            units=[_unit(shown, i, class_names) for i in range(len(shown.units))],
            probabilities=_probabilities(found.probabilities, shown) if found.probabilities is not None else {},
            picture=_picture(run.first_tensor, shown.input),
            noisy=_picture(noisy, shown.input),
        )
        for shown in found.shown
    ]


def _unit(shown: ShownUnits, i: int, names: Sequence[str] | None) -> Unit:
    number = shown.units[i]
    filled = shown.counts[i].nonzero().flatten()
    first, last = int(filled[0]), int(filled[-1])
    width = float(shown.width[i])
    return Unit(
        name=names[number] if names is not None and number < len(names) else str(number),
        counts=shown.counts[i, first : last + 1].tolist(),
        start=float(shown.center[i]) + (first - shown.counts.shape[1] // 2) * width,
        width=width,
        loc=float(shown.truth.loc[i]),
        stddev=float(shown.truth.stddev[i]),
        moments={
            name: (float(value.loc[i]), float(value.stddev[i]) if isinstance(value, Uncertain) else None)
            for name, value in shown.values.items()
        },
    )


def _probabilities(found: Probabilities, shown: ShownUnits) -> dict[str, list[float]]:
    """The probabilities of the shown units, by draws and by the best posterior of each method."""
    probabilities = {SAMPLED: found.truth[shown.row, shown.units].tolist()}
    for name, posteriors in found.log_q.items():
        best = next(posteriors[figure] for figure in _BEST if figure in posteriors)
        probabilities[name] = best[shown.row, shown.units].exp().tolist()
    return probabilities


def _noisy(run: Run) -> Any:
    """The inputs with one draw of their noise, or None if they are certain."""
    value = run.settled().first_tensor
    if not isinstance(value, Value):
        return None
    return value.sample(generator=torch.Generator(value.device).manual_seed(run.seed or 0))


def _picture(x: Any, i: int) -> str | None:
    """An input as a small picture, if it looks like an image: one or three channels of two dimensions."""
    x = x.loc if isinstance(x, Value) and hasattr(x, "loc") else x
    if not isinstance(x, Tensor) or x.ndim != 4 or x.shape[1] not in (1, 3) or not x.is_floating_point():
        return None
    image = x[i].double().cpu()
    low, high = image.min(), image.max()
    levels = ((image - low) / (high - low).clamp(min=1e-12) * 255).round().to(torch.uint8)
    return "data:image/png;base64," + base64.b64encode(_png(levels)).decode()


def _png(image: Tensor) -> bytes:
    """A PNG file of an image of shape (1 or 3, height, width)."""
    channels, height, width = image.shape
    rows = image.permute(1, 2, 0).reshape(height, -1)
    lines = b"".join(b"\0" + bytes(row.tolist()) for row in rows)
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 0, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
