"""Drawings as SVG text. Everything in a page passes through `element`, which escapes it."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

WIDTH = 360
"""The width of a drawing in its own units. On a phone a unit is one CSS pixel, so text of size 11 is readable."""


class Markup(str):
    """Text that is already markup and is not escaped again."""

    __slots__ = ()


def element(tag: str, *content: str, **attributes: Any) -> Markup:
    """An element. Escapes everything that is not `Markup`; `class_` and `font_size` become `class`, `font-size`.

    >>> element("text", "<b>", x=1.5, class_="name")
    '<text x="1.5" class="name">&lt;b&gt;</text>'
    """
    named = ((name.rstrip("_").replace("_", "-"), value) for name, value in attributes.items() if value is not None)
    opening = "".join(f' {name}="{escape(_attribute(value))}"' for name, value in named)
    inside = "".join(part if isinstance(part, Markup) else escape(part) for part in content)
    return Markup(f"<{tag}{opening}>{inside}</{tag}>")


def join(parts: Iterable[Markup]) -> Markup:
    """Pieces of markup one after the other."""
    return Markup("".join(parts))


def drawing(height: float, title: str, *content: Markup, width: float = WIDTH) -> Markup:
    """A drawing as wide as its container."""
    inside = (element("title", title), *content)
    return element("svg", *inside, viewBox=f"0 0 {width:g} {height:g}", role="img", class_="chart")


@dataclass(frozen=True)
class Scale:
    """Maps numbers from `low` to `high` to positions from `start` to `end`, linearly or by logarithm."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, x: float) -> float:
        """The position of a number; at an end if it lies outside."""
        low, high = self._at(self.low), self._at(self.high)
        share = (self._at(min(max(x, self.low), self.high)) - low) / ((high - low) or 1.0)
        return self.start + share * (self.end - self.start)

    def ticks(self, most: int = 5) -> list[float]:
        """Round numbers inside: powers of ten, with 2 and 5 between them if there is room; or equal steps."""
        if self.log:
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            for digits in ((1, 2, 5), (1, 3), (1,)):
                found = [digit * 10.0**decade for decade in decades for digit in digits]
                inside = [x for x in found if self.low * 0.999 <= x <= self.high * 1.001]
                if len(inside) <= most:
                    return inside
            return inside[:: math.ceil(len(inside) / most)]
        step = _round_up((self.high - self.low) / most)
        first = math.ceil(self.low / step - 1e-9)
        return [i * step for i in range(first, math.floor(self.high / step + 1e-9) + 1)]

    def _at(self, x: float) -> float:
        return math.log(x) if self.log else x


def text(x: float, y: float, content: str, anchor: str = "start", class_: str | None = None) -> Markup:
    """A line of text."""
    return element("text", content, x=x, y=y, text_anchor=anchor, class_=class_)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    """A straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def box(x: float, y: float, width: float, height: float, class_: str, title: str | None = None) -> Markup:
    """A rectangle, with a title that shows on hovering."""
    inside = () if title is None else (element("title", title),)
    return element("rect", *inside, x=x, y=y, width=max(width, 0), height=max(height, 0), class_=class_)


def path(points: Sequence[tuple[float, float]], class_: str) -> Markup:
    """Straight lines from point to point."""
    steps = " L ".join(f"{x:.2f} {y:.2f}" for x, y in points)
    return element("path", d=f"M {steps}", class_=class_)


_MARKS = ("M -4 0 A 4 4 0 1 0 4 0 A 4 4 0 1 0 -4 0", "M 0 -5 L 5 0 L 0 5 L -5 0 Z", "M -4 -4 L 4 -4 L 4 4 L -4 4 Z",
          "M 0 -5 L 5 4 L -5 4 Z", "M 0 5 L 5 -4 L -5 -4 Z",
          "M -2 -5 H 2 V -2 H 5 V 2 H 2 V 5 H -2 V 2 H -5 V -2 H -2 Z", "M -5 0 L -2 -5 L 2 -5 L 5 0 L 2 5 L -2 5 Z",
          "M -5 -3 L -3 -5 L 0 -2 L 3 -5 L 5 -3 L 2 0 L 5 3 L 3 5 L 0 2 L -3 5 L -5 3 L -2 0 Z")  # fmt: skip


def style(number: int) -> str:
    """The name of the colour of a method by its number."""
    return f"m{number % len(_MARKS)}"


def mark(x: float, y: float, number: int, title: str | None = None) -> Markup:
    """The mark of a method by its number: its own shape and colour."""
    inside = () if title is None else (element("title", title),)
    shape = _MARKS[number % len(_MARKS)]
    return element("path", *inside, d=shape, transform=f"translate({x:.2f} {y:.2f})", class_=f"mark {style(number)}")


def _attribute(value: Any) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def _round_up(step: float) -> float:
    """The next of 1, 2, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(digit * power for digit in (1, 2, 5, 10) if digit * power >= step * (1 - 1e-9))
