"""The charts of a report."""

import math
from collections.abc import Callable, Iterable, Sequence

from momentprop.checking import formatting, sentences, svg
from momentprop.checking.results import SAMPLED, Accuracy, Example, ModuleAccuracy, Results, Unit
from momentprop.checking.svg import WIDTH, Markup, Scale

_ROW = 16
_LETTERS = 22  # longer names are cut at the beginning


def _column(names: Iterable[str]) -> float:
    """The width of a column of names."""
    return 12 + 5.6 * min(_LETTERS, max(map(len, names)))


def means(report: Results) -> Markup:
    """`eps_mean` at every module, with the floor of the draws shaded."""
    return _by_module(report, "eps_mean", lambda floor: (0.0, floor.eps_mean or 0.0))


def deviations(report: Results) -> Markup:
    """`eps_std` at every module, shaded where the draws cannot tell it from 1."""
    return _by_module(report, "eps_std", lambda floor: (1 / (floor.eps_std or 1.0), floor.eps_std or 1.0))


def _by_module(report: Results, figure: str, band: Callable[[Accuracy], tuple[float, float]]) -> Markup:
    rows = {name: module for name, module in report.rows.items() if _numbers(module, figure)}
    numbers = [x for module in rows.values() for x in _numbers(module, figure).values()]
    numbers += [edge for module in rows.values() for edge in band(module.floor) if edge > 0]
    numbers += [0.5, 2.0] if figure == "eps_std" else [10 * min(numbers)]  # so that small errors look small
    left = _column(rows)
    scale = Scale(min(numbers) / 1.3, max(numbers) * 1.3, left + 8, WIDTH - 10, log=True)
    height = _ROW * len(rows) + 38
    shades, labels, marks = [], [], []
    for i, (name, module) in enumerate(rows.items()):
        y = 6 + _ROW * (i + 0.5)
        low, high = band(module.floor)
        start = scale(low) if low > 0 else scale.start
        shades.append(svg.box(start, y - _ROW / 2, scale(high) - start, _ROW, "floor"))
        labels.append(_label(name, left, y))
        for method, x in _numbers(module, figure).items():
            k = report.methods.index(method)
            title = f"{name}; {method}: {_told_as(figure, x)}"
            marks.append(svg.mark(scale(x), y + _shift(k, report.methods), k, title))
    lines = [_grid(scale, 6, height - 30)]
    lines += [svg.line(scale(1), 6, scale(1), height - 30, "one")] if figure == "eps_std" else []
    title, what = _WORDS[figure]
    axis = svg.text(scale.end, height - 4, what, "end", "axis")
    return svg.drawing(height, title, *shades, *lines, *labels, *marks, axis)


_WORDS = {
    "eps_mean": ("Errors of the means at every module", "in standard deviations"),
    "eps_std": ("Standard deviations at every module", "over the true ones"),
}


def _told_as(figure: str, x: float) -> str:
    if figure == "eps_mean":
        return f"means off by {formatting.number(x)} standard deviations"
    return f"deviations ×{formatting.number(x, 3)}"


def _shift(number: int, methods: Sequence[str]) -> float:
    """The offset of a method's mark from the middle of its row, so that equal marks stay visible."""
    return (number - (len(methods) - 1) / 2) * min(4, 10 / len(methods))


def _numbers(module: ModuleAccuracy, figure: str) -> dict[str, float]:
    """The figure of each method that has one and whose value fits a logarithmic scale."""
    found = {method: getattr(accuracy, figure) for method, accuracy in module.methods.items()}
    return {method: x for method, x in found.items() if x}


def _label(name: str, x: float, y: float) -> Markup:
    short = name if len(name) <= _LETTERS else "…" + name[1 - _LETTERS :]
    return svg.element("text", svg.element("title", name), short, x=x, y=y + 3.5, text_anchor="end", class_="name")


def _grid(scale: Scale, top: float, bottom: float) -> Markup:
    """Vertical lines with their numbers below."""
    ticks = scale.ticks()
    lines = [svg.line(scale(x), top, scale(x), bottom, "grid") for x in ticks]
    return svg.join([*lines, *(svg.text(scale(x), bottom + 12, f"{x:g}", "middle", "tick") for x in ticks)])


def unit(shown: Unit, methods: Sequence[str], only: Sequence[str] | None = None, title: str | None = None) -> Markup:
    """The histogram of an output unit, with a line for a method's mean, or a bell if it also has a deviation.

    With `only`, some of the methods are drawn, on the scale of all, so drawings side by side compare.
    """
    width, height, base = 170, 112, 96
    told = [(methods.index(name), *moments) for name, moments in shown.moments.items()]
    bars = _coarse(shown)
    ends = [loc + side * 3 * (stddev or 0) for _, loc, stddev in told for side in (-1, 1)]
    ends += [bars[0][0], bars[-1][1]]
    x = Scale(min(ends), max(ends), 5, width - 5)
    total = sum(shown.counts)
    densities = [count / (total * (right - left)) for left, right, count in bars]
    peaks = [1 / (stddev * math.sqrt(2 * math.pi)) for _, _, stddev in told if stddev]
    # a bell much narrower than the histogram is cut, so that the histogram stays visible
    y = Scale(0, max(max(densities), min(max(peaks, default=0), 3 * max(densities))) * 1.05, base, 16)
    parts = [svg.text(5, 11, title or shown.name, class_="unit")]
    parts += [
        svg.box(x(left), y(density), x(right) - x(left), base - y(density), "bars")
        for (left, right, _), density in zip(bars, densities, strict=True)
    ]
    parts.append(svg.line(5, base, width - 5, base, "base"))
    for k, loc, stddev in told:
        if only is None or methods[k] in only:
            line = svg.line(x(loc), 16, x(loc), base, f"line {svg.style(k)} dash")
            parts.append(_bell(x, y, loc, stddev, k) if stddev else line)
    parts += [svg.text(x(end), height - 4, _tick(x, end), anchor, "tick") for end, anchor in _ends(x)]
    names = [name for name in shown.moments if only is None or name in only]
    moments = [_moments("draws", shown.loc, shown.stddev), *(_moments(name, *shown.moments[name]) for name in names)]
    return svg.drawing(height, f"Draws of output unit {shown.name}; {'; '.join(moments)}", *parts, width=width)


def _moments(name: str, loc: float, stddev: float | None) -> str:
    spread = "" if stddev is None else f" ± {formatting.number(stddev)}"
    return f"{name}: {formatting.number(loc, 3)}{spread}"


def _coarse(shown: Unit, most: int = 32) -> list[tuple[float, float, int]]:
    """The histogram with at most `most` bins, each with its ends."""
    step = math.ceil(len(shown.counts) / most)
    return [
        (shown.start + i * shown.width, shown.start + (i + step) * shown.width, sum(shown.counts[i : i + step]))
        for i in range(0, len(shown.counts), step)
    ]


def _bell(x: Scale, y: Scale, loc: float, stddev: float, number: int) -> Markup:
    points = [loc + stddev * (i / 10) for i in range(-40, 41)]
    inside = [point for point in points if x.low <= point <= x.high]
    peak = 1 / (stddev * math.sqrt(2 * math.pi))
    curve = [(x(p), y(peak * math.exp(-0.5 * ((p - loc) / stddev) ** 2))) for p in inside]
    return svg.path(curve, f"line {svg.style(number)}")


def _ends(x: Scale) -> list[tuple[float, str]]:
    ticks = x.ticks(4)
    return [(tick, "middle") for tick in ticks if x.start + 8 < x(tick) < x.end - 8] or [
        (x.low, "start"),
        (x.high, "end"),
    ]


def _tick(x: Scale, tick: float) -> str:
    digits = max(0, math.ceil(-math.log10((x.high - x.low) / 4))) if x.high > x.low else 2
    return f"{tick:.{digits}f}" if digits < 6 else f"{tick:.3g}"


def probabilities(example: Example, methods: Sequence[str]) -> Markup:
    """The class probabilities of an input: a bar of the draws, and marks of the methods on it."""
    left = _column(shown.name for shown in example.units)
    scale = Scale(0, 1, left + 10, WIDTH - 12)
    height = _ROW * len(example.units) + 28
    parts = [_grid(scale, 4, height - 20)]
    for i, shown in enumerate(example.units):
        y = 4 + _ROW * (i + 0.5)
        sampled = example.probabilities[SAMPLED][i]
        parts.append(_label(shown.name, left, y))
        parts.append(
            svg.box(scale.start, y - 5, scale(sampled) - scale.start, 10, "bars", _told(shown, SAMPLED, sampled))
        )
        for k, method in enumerate(methods):
            if method in example.probabilities:
                found = example.probabilities[method][i]
                parts.append(svg.mark(scale(found), y + _shift(k, methods), k, _told(shown, method, found)))
    return svg.drawing(height, f"Class probabilities of {example.name}", *parts)


def _told(shown: Unit, method: str, probability: float) -> str:
    return f"class {shown.name}; {method}: {100 * probability:.1f} %"


def cost(report: Results) -> Markup:
    """The cost of every method in forward passes and its worth in draws, on one scale."""
    rows = [row for name in report.methods for row in _cost_rows(report, name)]
    most = max([report.samples, *(count for _, count, *_ in rows)])
    left = _column(label for label, *_ in rows)
    scale = Scale(0.5, most * 1.6, left + 6, WIDTH - 62, log=True)
    height = _ROW * len(rows) + 38
    parts = [_grid(scale, 4, height - 30)]
    for i, (label, count, told, style) in enumerate(rows):
        y = 4 + _ROW * (i + 0.5)
        parts.append(_label(label, left, y))
        parts.append(svg.box(scale.start, y - 5, scale(count) - scale.start, 10, style, f"{label}: {told}"))
        parts.append(svg.text(scale(count) + 4, y + 3.5, told, class_="tick"))
    parts.append(svg.text(scale.end, height - 4, "forward passes or draws", "end", "axis"))
    return svg.drawing(height, "The cost of the methods, and their worth", *parts)


def _cost_rows(report: Results, name: str) -> list[tuple[str, float, str, str]]:
    style = svg.style(report.methods.index(name))
    passes, nominal = report.cost[name].measured, report.cost[name].nominal
    told = formatting.number(passes) + (f" (nominal {nominal})" if nominal is not None else "")
    rows = [(f"{name} costs", passes, told, f"{style} solid")]
    found = report.at_output(name)
    worths = {"means": found.worth_mean, "deviations": found.worth_std}
    if report.posterior is not None and name in report.posterior.methods:
        worths["classes"] = report.posterior.worth[name][sentences.best(report.posterior.methods[name])[0]]
    for what, count in worths.items():
        if count is not None:
            rows.append((f"worth, {what}", count, formatting.brief_worth(count, report.samples), f"{style} pale"))
    return rows


def reliability(report: Results) -> Markup:
    """The share of draws inside each method's intervals, against the nominal share."""
    side, left, bottom = 250, 44, 264
    x, y = Scale(0, 1, left, left + side), Scale(0, 1, bottom, bottom - side)
    levels = sorted((float(level) / 100 for level in report.floor_at_output.coverage), key=float)
    floors = {level: report.floor_at_output.coverage[f"{100 * level:g}"] for level in levels}
    upper = [(x(p), y(p + 2 * floors[p])) for p in levels]
    lower = [(x(p), y(p - 2 * floors[p])) for p in reversed(levels)]
    parts = [_frame(x, y)]
    parts.append(svg.path([(x(0), y(0)), *upper, (x(1), y(1)), *lower, (x(0), y(0))], "floor"))
    parts.append(svg.line(x(0), y(0), x(1), y(1), "one"))
    for k, method in enumerate(report.methods):
        covered = report.at_output(method).coverage
        points = [(p, covered[f"{100 * p:g}"]) for p in levels if f"{100 * p:g}" in covered]
        if points:
            parts.append(svg.path([(x(0), y(0)), *((x(p), y(c)) for p, c in points)], f"line {svg.style(k)}"))
            parts += [svg.mark(x(p), y(c), k, _held(method, p, c)) for p, c in points]
    parts.append(svg.text(x.end, bottom + 30, "nominal coverage", "end", "axis"))
    parts.append(svg.text(left, 9, "observed coverage", "start", "axis"))
    return svg.drawing(bottom + 36, "Nominal and observed coverage of intervals", *parts)


def _held(method: str, nominal: float, observed: float) -> str:
    return f"{method}; {formatting.percent(nominal)} intervals hold {formatting.percent(observed)}"


def _frame(x: Scale, y: Scale) -> Markup:
    ticks = (0.0, 0.25, 0.5, 0.75, 1.0)
    parts = [svg.line(x(t), y.start, x(t), y.end, "grid") for t in ticks]
    parts += [svg.line(x.start, y(t), x.end, y(t), "grid") for t in ticks]
    parts += [svg.text(x(t), y.start + 14, f"{100 * t:g} %", "middle", "tick") for t in ticks]
    parts += [svg.text(x.start - 5, y(t) + 4, f"{100 * t:g} %", "end", "tick") for t in ticks]
    return svg.join(parts)
