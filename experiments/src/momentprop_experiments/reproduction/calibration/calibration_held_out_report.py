"""The report on calibrated AP2 on held-out images."""

from collections.abc import Sequence
from typing import Any

from momentprop.checking.formatting import NONE, brief_worth, number, percent
from momentprop_experiments.reproduction.calibration.calibration_cases import TARGETS
from momentprop_experiments.reproduction.outcome import table

METHODS = {"ap1": "AP1", "ap2": "AP2", "calibrated": "calibrated"}
_TOLD = {"eps_mean": "eps_mean", "eps_std": "eps_std", "layers": "layers", "rms_log_std": "rms log σ", "kl": "KL"}

_NOTES = (
    "`eps_mean` is the error of the means in deviations: the average of |μ - μ*| divided by the average of σ*, where "
    "the star marks the moments of the draws. `eps_std` is the factor by which deviations are off, the geometric mean "
    "of σ/σ*; 1 is right. 'rms log σ' is the typical error of a single deviation, the root mean square of log(σ/σ*). "
    "KL is the divergence of the class posterior from that of the draws, in nats. It is a mean over few images, and "
    "one image can make up nearly all of it, so it does not rank methods that are close. The floor is the error that "
    "even a perfect method would show, because the draws are finite."
)


def markdown(title: str, data: dict[str, Any]) -> str:
    """Return the whole report in Markdown."""
    parts = [
        f"# {title}",
        f"The tables compare AP1, AP2 and calibrated AP2 with draws. The calibration was fitted to {data['images']} "
        f"training images with {data['samples']:,} draws; all errors are over the first {data['images']} test images. "
        f"{_draws(data)} {_NOTES}",
        *data["left_out"],
        "**Errors at the output**",
        _at_output(data),
        "**Deviations inside the network**",
        "The table has the smallest and the largest `eps_std` over all layers that mix units, and in brackets over all "
        "modules.",
        _ranges(data),
        "**Intervals: the share of draws that they hold**",
        "An interval is right if it holds as many draws as its level says.",
        _coverage(data),
        "**How many draws have the same error at the output**",
        "The second column has the number of draws that serve as the truth; numbers above it cannot be told apart.",
        _worth(data),
    ]
    if any(case["targets"] is not None for case in data["cases"].values()):
        parts += ["**Targets**", _aims(), _targets(data)]
    return "\n\n".join(parts)


def _draws(data: dict[str, Any]) -> str:
    counts = {case["network"].split("-")[0]: case["draws"] for case in data["cases"].values()}
    told = []
    for count in sorted(set(counts.values()), reverse=True):
        names = ", ".join(name for name in counts if counts[name] == count)
        told.append(f"{count:,} draws ({names})")
    return f"The truth comes from {'; '.join(told)}."


def _verdict(case: dict[str, Any]) -> str:
    if case["targets"] is None:
        return NONE
    missed = [_TOLD[name] for name, met in case["targets"].items() if not met]
    return f"missed: {', '.join(missed)}" if missed else "met"


def _at_output(data: dict[str, Any]) -> str:
    head = ["case", "eps_mean: AP1", "AP2", "calibrated", "floor", "eps_std: AP2", "calibrated"]
    head += ["rms log σ: AP2", "calibrated", "floor", "KL: AP1", "AP2", "calibrated", "floor", "targets"]
    rows = []
    for case in data["cases"].values():
        found, floor = case["methods"], case["floor"]
        row = [case["title"], *(number(found[name]["eps_mean"]) for name in METHODS), number(floor["eps_mean"])]
        row += [number(found[name]["eps_std"], 3) for name in ("ap2", "calibrated")]
        row += [number(found[name]["rms_log_std"]) for name in ("ap2", "calibrated")] + [number(floor["rms_log_std"])]
        row += [*(number(found[name]["kl"]) for name in METHODS), number(floor["kl"]), _verdict(case)]
        rows.append(row)
    return table(head, rows)


def _ranges(data: dict[str, Any]) -> str:
    rows = []
    for case in data["cases"].values():
        both = [case["methods"][name] for name in ("ap2", "calibrated")]
        cells = [f"{_span(x['range_of_eps_std'])} ({_span(x['range_of_eps_std_everywhere'])})" for x in both]
        rows.append([case["title"], str(len(case["layers"]["modules"])), *cells])
    return table(["case", "layers", "AP2", "calibrated"], rows)


def _span(ends: Sequence[float]) -> str:
    return f"{number(ends[0], 3)} … {number(ends[1], 3)}" if ends else NONE


def _coverage(data: dict[str, Any]) -> str:
    levels = ("50", "90", "99")
    head = ["case", *(f"{level} %: {name}" for level in levels for name in ("AP2", "calibrated"))]
    rows = []
    for case in data["cases"].values():
        found = [case["methods"][name]["coverage"] for name in ("ap2", "calibrated")]
        rows.append([case["title"], *(percent(each.get(level)) for level in levels for each in found)])
    return table(head, rows)


def _worth(data: dict[str, Any]) -> str:
    head = ["case", "draws", "means: AP1", "AP2", "calibrated", "deviations: AP2", "calibrated"]
    head += ["classes: AP1", "AP2", "calibrated"]
    keys = [(name, "eps_mean") for name in METHODS] + [(name, "rms_log_std") for name in ("ap2", "calibrated")]
    keys += [(name, "kl") for name in METHODS]
    rows = []
    for case in data["cases"].values():
        found, draws = case["methods"], case["draws"]
        counts = [brief_worth(found[name]["worth"][figure], draws) for name, figure in keys]
        rows.append([case["title"], f"{draws:,}", *counts])
    return table(head, rows)


def _aims() -> str:
    one = next(iter(TARGETS.values()))
    return (
        f"These are our targets for the CIFAR-10 network: `eps_std` from {one.eps_std[0]} to {one.eps_std[1]} at the "
        f"output and from {one.layers[0]} to {one.layers[1]} after every layer that mixes units, and rms log σ of at "
        f"most {one.rms_log_std}. The targets for `eps_mean`, and for how many times smaller KL is than AP2's, are in "
        "the table. The further aim is an `eps_mean` of 0.025, which 1,000 draws have, and `eps_std` from 0.95 to 1.05 "
        "after every such layer."
    )


def _targets(data: dict[str, Any]) -> str:
    rows = []
    for name, case in data["cases"].items():
        if case["targets"] is None:
            continue
        target, met = TARGETS[name.removeprefix("cifar-")], case["targets"]
        plain, found = case["methods"]["ap2"], case["methods"]["calibrated"]
        times = f"{number(plain['kl'] / found['kl'])} (≥ {target.divergence:g})" if found["kl"] else NONE
        told = {
            "eps_mean": f"{number(found['eps_mean'])} (≤ {target.eps_mean})",
            "eps_std": number(found["eps_std"], 3),
            "layers": _span(found["range_of_eps_std"]),
            "rms_log_std": number(found["rms_log_std"]),
            "kl": times,
        }
        cells = [f"{text}: {'met' if met[key] else 'missed'}" for key, text in told.items()]
        rows.append([case["title"], *cells, "met" if case["stretch"] else "missed"])
    head = ["case", "eps_mean", "eps_std", "eps_std by layer", "rms log σ", "KL, times smaller", "further aim"]
    return table(head, rows)
