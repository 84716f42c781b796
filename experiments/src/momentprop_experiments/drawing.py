"""The look of all figures: one style, lines that differ in more than colour, PNG and SVG files."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "0.9",
    "grid.linewidth": 0.6,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.5,
    "svg.fonttype": "none",  # keeps text as text, and the file small
    "svg.hashsalt": "momentprop",  # makes the file reproducible
}

LINES: dict[str, dict[str, Any]] = {
    "exact": {"color": "black", "linestyle": "-", "linewidth": 2.0},
    "AP1": {"color": "#c1272d", "linestyle": (0, (5, 2))},
    "AP2a": {"color": "#e08e0b", "linestyle": "-."},
    "AP2b": {"color": "#2a9d5c", "linestyle": (0, (3, 1, 1, 1, 1, 1))},
    "MacKay": {"color": "#9467bd", "linestyle": (0, (1, 1))},
    "PEA": {"color": "#7a5230", "linestyle": (0, (8, 2, 2, 2))},
    "AP2 (default)": {"color": "#1f4e9c", "linestyle": "-", "linewidth": 2.4, "zorder": 1.9},
    "sampling": {"color": "0.45", "linestyle": "-"},
}
"""The line of each method, the same in every figure; without colour, the dashes tell them apart."""

SHADES = ("#93b5e1", "#6f98d2", "#4c79ba", "#2a5598", "#0b2a5b")
"""Colours of an ordered series, from light to dark."""

DASHES: tuple[Any, ...] = ((0, (1, 1)), (0, (3, 1.5)), "-.", (0, (7, 2)), "-")
"""The dashes that go with `SHADES`."""


def require() -> None:
    """Raise an `ImportError` that says what to install if matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError('figures need matplotlib: run `pip install "momentprop[experiments]"`') from error


def draw(out: Path, name: str, size: tuple[float, float], plot: Callable[["Figure"], None]) -> list[Path]:
    """Make a figure of this size in inches, let `plot` draw on it, and save `out/name.png` and `out/name.svg`."""
    require()
    import matplotlib
    from matplotlib.figure import Figure

    out.mkdir(parents=True, exist_ok=True)
    paths = [out / f"{name}.png", out / f"{name}.svg"]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        plot(figure)
        _save_png(figure, paths[0])
        figure.savefig(paths[1], metadata={"Date": None})
    return paths


def logarithmic(axis: "Axes", ticks: Sequence[float]) -> None:
    """Give an axis a logarithmic vertical scale with plain numbers."""
    axis.set_yscale("log")
    axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()


def _save_png(figure: "Figure", path: Path) -> None:
    """Save a figure with 256 colours, which looks the same and makes a smaller file."""
    from PIL import Image  # a dependency of matplotlib

    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=130)
    Image.open(drawn).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
