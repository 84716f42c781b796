"""The outcome of an experiment: numbers, a text with tables, and figures."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from momentprop.markdown import table as table


@dataclass
class Outcome:
    """The numbers of an experiment, a Markdown text with its tables, and the files of its figures."""

    data: dict[str, Any]
    markdown: str
    figures: list[Path] = field(default_factory=list)

    def save(self, out: Path, name: str) -> list[Path]:
        """Write the numbers to `out/name.json` and the text to `out/name.md`; return all files of the experiment."""
        out.mkdir(parents=True, exist_ok=True)
        numbers, text = out / f"{name}.json", out / f"{name}.md"
        numbers.write_text(_one_line_a_list(json.dumps(self.data, indent=1, allow_nan=False)) + "\n", encoding="utf-8")
        text.write_text(self.markdown + "\n", encoding="utf-8")
        return [numbers, text, *self.figures]


def grid(limit: float, step: float) -> Tensor:
    """Return points from `-limit` to `limit` that include zero exactly."""
    half = round(limit / step)
    return torch.arange(-half, half + 1, dtype=torch.float64) * step


def numbers(values: Tensor, digits: int = 6) -> Any:
    """Return the numbers of a tensor as nested lists, rounded to significant digits, to write a curve to a file."""
    if values.dim() == 0:
        return float(f"{values.item():.{digits}g}")
    return [numbers(part, digits) for part in values]


def rounded(x: float | None, digits: int = 4) -> float | None:
    """Round a number to significant digits for a file; None stays None."""
    return None if x is None else float(f"{x:.{digits}g}")


def _one_line_a_list(text: str) -> str:
    """Put every innermost list of a JSON text on one line."""
    return re.sub(r"\[\n\s+([^][{}]*?)\n\s*\]", lambda found: "[" + re.sub(r",\n\s+", ", ", found[1]) + "]", text)
