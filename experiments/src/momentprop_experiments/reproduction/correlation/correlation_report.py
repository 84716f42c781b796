"""The report on following correlations."""

from collections.abc import Callable, Sequence
from typing import Any

from momentprop.checking.formatting import NONE, number
from momentprop_experiments.reproduction.correlation.correlation_targets import TARGETS, figure, judged, span, told
from momentprop_experiments.reproduction.correlation.methods import TITLES
from momentprop_experiments.reproduction.outcome import table

_NOTES = """\
* `eps_mean` is the error of the means in deviations: the average of |μ - μ*| over that of σ*, where the star marks the
  moments of the draws. σ is the factor by which deviations are off, the geometric mean of σ/σ*; 1 is right. 'rms log σ'
  is the typical error of one deviation, the root mean square of log(σ/σ*).
* *Linear* is the delta method, *joint* is AP2 with `covariance=True`, and *probes* is joint with `probes=16` or `64`.
  *Draws* are as many as fit into the time of joint.
* The floor is the error that exact moments would show, because the draws are finite. Divergences do not contain theirs.
  ± is the standard error over the inputs.
* Numbers in titles are variances of the inputs. ResNet-18 (16) has width 16."""

_ON_OTHERS = (
    "*Error* is the mean error of the correlations between outputs. *95 %* is how many per cent of the draws the 95 % "
    "intervals hold. *Cost* is in passes of the plain network; the bound is AP2 and a backward pass to the inputs for "
    "each output."
)
_ON_TARGETS = "A figure of a method should lie in a range in each of some cases. The further aim is a narrower range."

Cell = Callable[[dict[str, Any], str], str]


def markdown(title: str, data: dict[str, Any]) -> str:
    """Return the whole report in Markdown."""
    parts = [f"# {title}", _amount(data), _NOTES, *data["left_out"]]
    deviations = ("ap2", "linear", "joint", "probes16", "probes64", "calibrated", "calibrated-joint", "draws")
    parts += [
        "**Means: `eps_mean`** (linear has AP1's means, and joint AP2's; ± is for AP2)",
        _means(data),
        "**Deviations: σ (rms log σ)**",
        _table(data, deviations, _deviation, "rms"),
        "**Class posteriors: KL in nats** (*true moments* is a normal distribution with the moments of the draws)",
        _table(
            data, ("ap1", *(name for name in deviations if name != "probes16"), "true"), _with_error, only_with="kl"
        ),
        "**Correlations, intervals and cost**",
        _ON_OTHERS,
        _others(data),
    ]
    if any("full" in case["methods"] for case in data["cases"].values()):
        parts += ['**The whole covariance matrix, `method="full"`**', _full(data)]
    parts += ["**Random ReLU networks: mean squared error of the means**", _he(data["he_mlps"])]
    parts += ["**Targets**", _ON_TARGETS, _targets(data)]
    refused = _refused(data)
    if refused:
        parts += ["**Methods that cannot run**", refused]
    return "\n\n".join(parts)


def _amount(data: dict[str, Any]) -> str:
    draws = sorted({case["draws"] for case in data["cases"].values()})
    wide = sorted({case["wide_draws"] for case in data["cases"].values()})
    return (
        f"The tables compare methods with and without correlations, on held-out inputs ({data['device']}). Moments are "
        f"compared with {_span(draws)} draws on {data['deep']} inputs, and class posteriors with {_span(wide)} draws "
        f"on up to {data['images']:,}. Calibrations are fitted to {data['fitted']} training inputs with "
        f"{data['samples']:,} draws."
    )


def _span(counts: Sequence[int]) -> str:
    return f"{counts[0]:,}" if counts[0] == counts[-1] else f"{counts[0]:,} to {counts[-1]:,}"


def _table(
    data: dict[str, Any], methods: Sequence[str], cell: Cell, floor: str | None = None, only_with: str | None = None
) -> str:
    head = ["case", *(_brief(name) for name in methods), *(["floor"] if floor else [])]
    rows = []
    for case in data["cases"].values():
        if only_with is None or any(only_with in found for found in case["methods"].values()):
            last = [number(case["floor"][floor])] if floor else []
            rows.append([case["title"], *(cell(case, name) for name in methods), *last])
    return table(head, rows)


def _means(data: dict[str, Any]) -> str:
    names = ("ap1", "ap2", "probes16", "probes64", "calibrated", "draws")
    rows = []
    for case in data["cases"].values():
        error = case["methods"]["ap2"]["eps_mean"][1]
        cells = [number(figure(case, name, "eps_mean")) for name in names]
        rows.append([case["title"], *cells, number(error, 1), number(case["floor"]["eps_mean"])])
    return table(["case", *(_brief(name) for name in names), "±", "floor"], rows)


def _with_error(case: dict[str, Any], method: str) -> str:
    value, error = case["methods"].get(method, {}).get("kl") or (None, None)
    return number(value) if error is None else f"{number(value)}±{number(error, 1)}"


def _plain(name: str) -> Cell:
    return lambda case, method: number(figure(case, method, name))


def _deviation(case: dict[str, Any], method: str) -> str:
    value, rms = (figure(case, method, name) for name in ("sigma", "rms"))
    return NONE if value is None else f"{number(value, 3)} ({number(rms)})"


def _percent(case: dict[str, Any], method: str) -> str:
    value = figure(case, method, "coverage")
    return NONE if value is None else f"{100 * value:.1f}"


_OTHERS: dict[str, tuple[Cell, tuple[str, ...]]] = {
    "error": (_plain("correlation"), ("joint", "probes64", "calibrated-joint")),
    "95 %": (_percent, ("ap2", "joint", "probes64", "calibrated-joint")),
    "cost": (_plain("cost"), ("ap2", "linear", "joint", "probes64")),
}


def _others(data: dict[str, Any]) -> str:
    head = ["case"]
    for title, (_, names) in _OTHERS.items():
        told = [_brief(name) for name in names]
        head += [f"{title}: {told[0]}", *told[1:], *(["floor"] if title == "error" else [])]
    rows = []
    for case in data["cases"].values():
        row = [case["title"]]
        for title, (cell, names) in _OTHERS.items():
            row += [cell(case, name) for name in names]
            row += [number(case["floor"]["correlation"])] if title == "error" else []
        count = case["methods"].get("draws", {}).get("draws")
        rows.append([*row, number(case["bound"]), NONE if count is None else str(count)])
    return table([*head, "bound", "draws"], rows)


def _brief(name: str) -> str:
    return TITLES[name].split(", as")[0].replace("calibrated, joint", "cal., joint")


def _full(data: dict[str, Any]) -> str:
    rows = []
    for case in data["cases"].values():
        if "full" in case["methods"]:
            cells = [_plain("eps_mean"), _deviation, _plain("correlation"), _with_error, _plain("cost")]
            rows.append([case["title"], *(cell(case, "full") for cell in cells)])
    return table(["case", "eps_mean", "σ (rms log σ)", "correlations", "KL", "cost"], rows)


def _he(found: dict[str, Any]) -> str:
    cells = [number(found["mse"].get(name, (None,))[0]) for name in ("ap1", "ap2", "probes64", "full")]
    head = ["networks", "draws", *(TITLES[name] for name in ("ap1", "ap2", "probes64", "full")), "floor"]
    row = [str(found["networks"]), f"{found['draws']:,}", *cells, number(found["floor"])]
    return table([*head, "target (further aim)"], [[*row, "full ≤ 3.5e-05 (1e-05)"]])


def _targets(data: dict[str, Any]) -> str:
    rows = []
    for target in TARGETS:
        verdict = judged(target, data)
        row = [
            target.what,
            TITLES[target.method],
            told(target.target),
            span(verdict.found),
            _verdict(verdict.found, verdict.missed, data),
        ]
        if target.stretch is None:
            row += [NONE, NONE]
        else:
            better = f" ({TITLES[target.better]})" if target.better else ""
            row += [told(target.stretch) + better, _verdict(verdict.further, verdict.missed_further, data)]
        rows.append(row)
    return table(["figure", "method", "target", "found", "met", "further aim", "met"], rows)


def _verdict(found: dict[str, float], missed: Sequence[str], data: dict[str, Any]) -> str:
    if not found:
        return NONE
    if not missed:
        return "yes" if len(found) == 1 else f"all {len(found)}"
    few = "; ".join(_case(name, data) for name in missed[:2]) + ("; …" if len(missed) > 2 else "")
    return "no" if len(found) == 1 else f"{len(found) - len(missed)} of {len(found)}, not {few}"


def _case(name: str, data: dict[str, Any]) -> str:
    """Return the title of a case, as the tables have it."""
    return str(data["cases"][name]["title"]).removesuffix(" †") if name in data["cases"] else name


def _refused(data: dict[str, Any]) -> str:
    """Say which methods refused which cases; one line for each reason."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for name, case in (*data["cases"].items(), ("random networks", data["he_mlps"])):
        for method, reason in case["refused"].items():
            reasons.setdefault((TITLES[method], reason), []).append(name)
    lines = []
    for (method, reason), names in reasons.items():
        few = "; ".join(_case(name, data) for name in names)
        where = "in all cases" if len(names) >= len(data["cases"]) else f"in {few}"
        lines.append(f"- {method} {where}: `{reason.replace('`', '')}`")
    return "\n".join(lines)
