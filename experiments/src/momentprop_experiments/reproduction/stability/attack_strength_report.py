"""The report and figure on masked gradients; the sentences follow from the numbers."""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from momentprop.checking.formatting import number
from momentprop_experiments.drawing import draw
from momentprop_experiments.reproduction.by_seed import ON_INTERVALS, BySeed, by_chance
from momentprop_experiments.reproduction.outcome import table
from momentprop_experiments.reproduction.stability.stability_report import COLOURS, NETWORKS, curve_title

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NAMES = {"mlp": "MLP", "lenet": "LeNet"}
_STANDARD = "standard, AP1"
_RANDOM, _SIGN, _DESCENT = "random signs", "gradient sign", "descent"
_RESTARTS, _FROM, _TWIN, _STRONGEST = "descent with restarts", "from the standard network", "from its twin", "strongest"
_ATTACKS = (_RANDOM, _FROM, _TWIN, _SIGN, _DESCENT, _RESTARTS, _STRONGEST)
_SIGNS = (
    ("descent is stronger than one step", _SIGN, _DESCENT),
    ("gradients are stronger than random signs", _RANDOM, _SIGN),
    ("its own are stronger than the standard network's", _FROM, _DESCENT),
    ("and than its twin's", _TWIN, _DESCENT),
)
"""What holds where gradients are not masked: words, the weaker attack and the stronger one."""

_CLAIMS = (
    ("Bernoulli units by AP2 – standard", "bernoulli-ap2, AP2", _STANDARD),
    ("input noise by AP2 – standard", "noise-ap2, AP2", _STANDARD),
    ("standard – batch normalization", _STANDARD, "batch-norm, AP1"),
    ("Bernoulli units by AP2 – standard with drawn noise", "bernoulli-ap2, AP2", "noise-drawn, AP1"),
    ("Bernoulli units: by AP2 – drawn, tested by AP2", "bernoulli-ap2, AP2", "bernoulli-drawn, AP2"),
    ("Bernoulli units: by AP2 – drawn, tested by AP1", "bernoulli-ap2, AP2", "bernoulli-drawn, AP1"),
    ("the same weights: AP2 – AP1", "bernoulli-ap2, AP2", "bernoulli-ap2, AP1"),
    ("Bernoulli units by AP2: normalized – not", "bernoulli-norm, AP2", "bernoulli-ap2, AP2"),
    ("Bernoulli units by AP2, normalized – standard", "bernoulli-norm, AP2", _STANDARD),
    ("Bernoulli units by AP2, normalized – standard with drawn noise", "bernoulli-norm, AP2", "noise-drawn, AP1"),
    ("Bernoulli units: by AP2, normalized – drawn, tested by AP2", "bernoulli-norm, AP2", "bernoulli-drawn, AP2"),
)

_LOSSES = (
    ("Does batch normalization have a lower training loss than the standard network", "standard", "batch-norm"),
    ("Does the standard network have a lower one than Bernoulli units by AP2", "bernoulli-ap2", "standard"),
)


def markdown(title: str, data: dict[str, Any]) -> str:
    """Return the whole report in Markdown."""
    parts = [f"# {title}", _NOTES]
    if data["missing"]:
        names = ", ".join(_NAMES[name] for name in data["missing"])
        parts.append(f"Not complete: the {names} is not trained or attacked yet; the same command goes on with it.")
    for name, found in data["networks"].items():
        parts += [f"**{_NAMES[name]} on {found['data']}**", *_section(found)]
    return "\n\n".join(parts)


_NOTES = (
    "A network that only hides its gradients would look stable under gradient attacks, and fall to others. The tables "
    "compare many attacks. None changes a pixel by more than its level. They aim at the log-likelihood of the true "
    "class by the very method that is tested, except those 'from the standard network' and 'from its twin', a network "
    "of its own kind: these are made on a network of another seed. With random signs and restarts, an image must "
    f"withstand every try, and under 'strongest' all attacks in the table. {ON_INTERVALS}"
)


def _section(found: dict[str, Any]) -> Iterator[str]:
    yield (
        f"{found['epochs']} epochs, {found['seeds']} seeds, the first {found['images']:,} test images. A descent has "
        f"{found['steps']} steps, and {found['restarts']} starts where it has restarts. Random signs are tried "
        f"{found['random']} times. Sampling averages {found['draws']} draws, or {found['gradient_draws']} for a "
        "gradient."
    )
    yield "Accuracy in % under every attack, as a mean over the seeds:"
    for i, level in enumerate(found["levels"]):
        yield table(
            (f"level {level:g}", "clean", *_ATTACKS, f"descent to {found['large']:g}"),
            [[curve_title(name), *_accuracies(runs, i)] for name, runs in found["found"].items()],
        )
    signs = [[curve_title(name), *_gaps(runs, found["images"]), _losses(runs)] for name, runs in found["found"].items()]
    yield (
        "Every statement in the head of this table holds where gradients are not masked. The cells say whether it "
        "does, and by how many points one attack is stronger than the other, on average over levels."
    )
    yield table(("", *(words for words, _, _ in _SIGNS), "loss by gradient / random signs"), signs)
    claims = [(words, a, b) for words, a, b in _CLAIMS if a in found["found"] and b in found["found"]]
    yield (
        "The next table says whether the first of two networks, written 'first – second', is more accurate, and by how "
        f"many points on average over levels. {by_chance(3 * len(claims) + len(_SIGNS) * len(signs))}"
    )
    rows = [[words, *_verdicts(found["found"][a], found["found"][b], found["images"])] for words, a, b in claims]
    yield table(
        (f"noise of deviation {found['noise']:g}, and attacks", "noise", "gradient sign", "the strongest"), rows
    )
    yield _training(found["training_loss"])


def _accuracies(runs: list[dict[str, Any]], level: int) -> list[str]:
    of_attacks = [_percent(runs, lambda run, name=name: run["attacks"][name][level]["accuracy"]) for name in _ATTACKS]  # type: ignore[misc]
    return [_percent(runs, lambda run: run["clean"]), *of_attacks, _percent(runs, lambda run: run["large change"])]


def _percent(runs: list[dict[str, Any]], figure: Callable[[dict[str, Any]], float]) -> str:
    return f"{100 * statistics.fmean(figure(run) for run in runs):.1f}"


def _over_levels(run: dict[str, Any], attack: str, key: str = "accuracy") -> float:
    return statistics.fmean(level[key] for level in run["attacks"][attack])


def _gaps(runs: list[dict[str, Any]], images: int) -> Iterator[str]:
    for _, weaker, stronger in _SIGNS:
        gap = _counted([_over_levels(run, weaker) - _over_levels(run, stronger) for run in runs], images)
        yield f"{gap.verdict}: {gap.points}"


def _counted(gaps: Sequence[float], images: int) -> BySeed:
    """Summarize differences of two shares of some images, which come in steps of one image."""
    return BySeed.of(gaps, math.sqrt(2 / 12) / images)


def _losses(runs: list[dict[str, Any]]) -> str:
    by_gradient, by_chance = (
        statistics.fmean(_over_levels(run, attack, "loss") for run in runs) for attack in (_SIGN, _RANDOM)
    )
    return f"{number(by_gradient, 2)} / {number(by_chance, 2)}"


def _verdicts(one: list[dict[str, Any]], other: list[dict[str, Any]], images: int) -> Iterator[str]:
    pairs = list(zip(one, other, strict=True))
    gaps = [
        _counted([a["noise"] - b["noise"] for a, b in pairs], images),
        *(_counted([_over_levels(a, attack) - _over_levels(b, attack) for a, b in pairs], images)
          for attack in (_SIGN, _STRONGEST)),
    ]  # fmt: skip
    return (f"{gap.verdict}: {gap.points}" for gap in gaps)


def _training(losses: dict[str, list[list[float]]]) -> str:
    """Return the table of training losses after some epochs, and what they say to the paper's explanation."""
    epochs = len(next(iter(losses.values()))[0])
    shown = sorted({1, (epochs + 1) // 2, epochs})
    mean = {kind: [statistics.fmean(epoch) for epoch in zip(*each, strict=True)] for kind, each in losses.items()}
    rows = [[NETWORKS[kind], *(number(each[epoch - 1], 3) for epoch in shown)] for kind, each in mean.items()]
    said = []
    for words, more, less in _LOSSES:
        gap = BySeed.of([a[-1] - b[-1] for a, b in zip(losses[more], losses[less], strict=True)])
        lower = sum(b < a for a, b in zip(mean[more], mean[less], strict=True))
        verdict = gap.verdict.capitalize()
        said.append(
            f"{words}? {verdict}, at the end ({gap.text(digits=4)} nats); the mean over the seeds is lower in {lower} "
            f"of {epochs} epochs."
        )
    head = ("training loss, nats", *(f"epoch {epoch}" for epoch in shown))
    return f"{table(head, rows)}\n\n{' '.join(said)}"


def plot(out: Path, name: str, data: dict[str, Any]) -> list[Path]:
    """Draw the accuracy under every attack at the last level, a panel for each network."""
    return draw(
        out, name, (10.2, 1.2 + 3.2 * max(1, len(data["networks"]))), lambda figure: _plot(figure, data["networks"])
    )


def _plot(figure: "Figure", networks: dict[str, Any]) -> None:
    panels = figure.subplots(max(1, len(networks)), 1, squeeze=False)[:, 0]
    for axis, (name, found) in zip(panels, networks.items(), strict=False):
        for curve, runs in found["found"].items():
            kind, method = curve.split(", ")
            heights = [100 * statistics.fmean(run["attacks"][attack][-1]["accuracy"] for run in runs)
                       for attack in _ATTACKS]  # fmt: skip
            dashes = "-" if method == "AP2" else (0, (5, 2)) if method == "AP1" else (0, (1, 1))
            axis.plot(range(len(_ATTACKS)), heights, marker="o", markersize=4, label=curve_title(curve),
                      color=COLOURS[kind], linestyle=dashes)  # fmt: skip
        axis.set_xticks(range(len(_ATTACKS)), [attack.replace(" ", "\n", 1) for attack in _ATTACKS])
        axis.set_title(f"{_NAMES[name]}, level {found['levels'][-1]:g}")
        axis.set_ylabel("test accuracy (%)")
        axis.legend(loc="upper right", ncols=2)
