"""The report and figure on why analytic dropout loses; the sentences follow from the numbers."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from momentprop.checking.formatting import NONE, number
from momentprop_experiments.drawing import draw
from momentprop_experiments.reproduction.by_seed import ON_INTERVALS, BySeed, by_chance
from momentprop_experiments.reproduction.dropout.dropout_figure import LINES, WAYS, running
from momentprop_experiments.reproduction.outcome import table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Run = dict[str, Any]

NETWORKS = {"deep-mlp": "MLP of four hidden layers", "cifar": "CIFAR-10 network"}

_INTRODUCTION = (
    "The tables compare what AP2 assumes in training with what draws show. All ways of training begin at the same "
    "point, and dropout follows every activation."
)
_NOTES = """\
* 'AP2's σ by layer' is the ratio of AP2's deviations to those of draws: the root mean square over units and training
  images. 1 is right. AP2 has the family and the calibration of the training.
* The correlation is that between two logits, by draws: the root mean square over pairs.
* 'Loss, as trained' is the training loss of the last epoch, as the training computes it. The next columns take the
  first training images: 'by AP2' and 'by draws' are -log of the class posterior, which AP2 computes with a near exact
  softmax, and 'mean loss of draws' is the mean of -log over draws.
* Validation uses the method of the training: AP1 for plain training and sampled dropout, and AP2 for the others.
* Times are of the training steps alone. On a CPU they are processor times; on a GPU several runs may have shared it."""
_LOSS, _MEAN_LOSS = "loss by draws", "mean loss of draws"
_PAIRS = (
    ("analytic", "plain"),
    ("sampled", "plain"),
    ("analytic", "sampled"),
    ("analytic-fitted", "analytic"),
    ("analytic-calibrated", "analytic"),
    ("analytic-calibrated", "sampled"),
    ("analytic-expected", "analytic"),
    ("analytic-expected", "sampled"),
    ("analytic-joint", "analytic"),
    ("analytic-joint", "sampled"),
)
_SHARES = (0.1, 0.25, 0.5, 1.0)


def markdown(title: str, data: dict[str, Any]) -> str:
    """Return the whole report in Markdown."""
    parts = [f"# {title}", _INTRODUCTION, _NOTES]
    for name, found in data["networks"].items():
        settings = found["settings"]
        images = f"{settings['train_images']:,} images of " if settings.get("train_images") else ""
        title = f"{NETWORKS[name]}, {settings['epochs']} epochs on {images}{settings.get('data', 'digits')}"
        parts += [f"**{title}**", *_section(found)]
    return "\n\n".join(parts)


def _section(found: dict[str, Any]) -> Iterator[str]:
    runs = list(found["runs"].values())
    if len(runs) < found["wanted"]:
        yield f"Not complete: {len(runs)} of {found['wanted']} runs are done; the same command makes the others."
    if not runs:
        return
    yield "What AP2 assumes and what draws show, at the end of the training:"
    yield _believed(runs)
    yield "AP2's σ of the logits, as a ratio to that of draws, during the training:"
    yield _course(runs, found["looks"])
    verdicts = list(_verdicts(runs))
    if verdicts:
        yield (
            "Differences in validation accuracy and in validation loss by draws, at the last epoch that both ways "
            f"have. A lower loss is better. {ON_INTERVALS} {by_chance(2 * len(verdicts))}"
        )
        head = ("first – second", "p", "seeds", "epoch", "accuracy, points", "better?", "NLL by draws", "better?")
        yield table(head, verdicts)
    over_time = _over_time(runs)
    if over_time:
        yield (
            "Validation accuracy by AP1 after equal times of training, as a running average. Times are shares of what "
            "sampled dropout takes for all its epochs. Its own rows have accuracies, and the other rows gains over it, "
            "in points."
        )
        yield table(("", "p", "seeds", *(f"{share:.0%} of the time" for share in _SHARES)), over_time)


def _groups(runs: Sequence[Run]) -> Iterator[tuple[str, float, list[Run]]]:
    """Yield each way and probability with its runs, plain training first."""
    for p in sorted({run["dropout"] for run in runs}):
        for way in WAYS:
            group = [run for run in runs if run["way"] == way and run["dropout"] == p]
            if group:
                yield way, p, group


def _believed(runs: Sequence[Run]) -> str:
    head = ("", "p", "seeds", "AP2's σ by layer", "correlation of the logits", "loss, as trained", "by AP2",
            "by draws", "mean loss of draws", "validation accuracy", "NLL", "NLL by draws", "ms a step")  # fmt: skip
    rows = []
    for way, p, group in _groups(runs):
        believed, own = number(_mean(group, lambda run: run["train_loss"][-1]), 3), _own(way)
        if p == 0:
            right = _mean(group, lambda run: run["accuracy"][-1])
            loss = number(_mean(group, lambda run: run["loss"][-1]), 3)
            cells = [NONE, NONE, believed, NONE, NONE, NONE, f"{right:.1%}", loss, loss]
        else:
            layers = [_mean(group, lambda run, i=i: run["looks"]["ratio"][-1][i])  # type: ignore[misc]
                      for i in range(len(group[0]["looks"]["ratio"][-1]))]  # fmt: skip
            right = _mean(group, lambda run, own=own: run["looks"]["validation"][f"accuracy by {own}"][-1])  # type: ignore[misc]
            cells = [
                ", ".join(number(x, 2) for x in layers),
                number(_mean(group, lambda run: run["looks"]["correlation"][-1][-1]), 2),
                believed,
                *(_at_the_end(group, "training", key) for key in ("loss by AP2", _LOSS, _MEAN_LOSS)),
                f"{right:.1%}",
                *(_at_the_end(group, "validation", key) for key in (f"loss by {own}", _LOSS)),
            ]
        steps = _mean(group, lambda run: 1e3 * run["seconds"][-1] / len(run["seconds"]) / run["steps"])
        rows.append([_title(way, group), NONE if p == 0 else f"{p:g}", str(len(group)), *cells, number(steps, 2)])
    return table(head, rows)


def _title(way: str, group: Sequence[Run]) -> str:
    epochs = len(group[0]["seconds"])
    return WAYS[way] + (f" ({epochs} epoch{'s' * (epochs > 1)})" if way == "analytic-joint" else "")


def _mean(group: Sequence[Run], figure: Callable[[Run], float]) -> float:
    return statistics.fmean(figure(run) for run in group)


def _at_the_end(group: Sequence[Run], part: str, key: str) -> str:
    return number(_mean(group, lambda run: run["looks"][part][key][-1]), 3)


def _own(way: str) -> str:
    return "AP1" if way in ("plain", "sampled") else "AP2"


def _course(runs: Sequence[Run], looks: Sequence[int]) -> str:
    rows = [
        [_title(way, group), f"{p:g}", *(_ratio_at(group, epoch) for epoch in looks)]
        for way, p, group in _groups(runs)
        if p > 0
    ]
    return table(("", "p", *(f"epoch {epoch}" for epoch in looks)), rows)


def _ratio_at(group: Sequence[Run], epoch: int) -> str:
    if any(epoch not in run["looks"]["epochs"] for run in group):
        return NONE
    return number(_mean(group, lambda run: _of_logits(run, epoch)), 2)


def _of_logits(run: Run, epoch: int) -> float:
    """Return the ratio of deviations of the logits after an epoch."""
    looks = run["looks"]
    return float(looks["ratio"][looks["epochs"].index(epoch)][-1])


def _verdicts(runs: Sequence[Run]) -> Iterator[list[str]]:
    for p in sorted({run["dropout"] for run in runs} - {0.0}):
        for way, other in _PAIRS:
            mine = {run["seed"]: run for run in runs if run["way"] == way and run["dropout"] == p}
            its = {run["seed"]: run for run in runs if run["way"] == other and run["dropout"] in (p, 0.0)}
            seeds = sorted(mine.keys() & its.keys())
            if not seeds:
                continue
            epoch = min(len(run["seconds"]) for run in (mine[seeds[0]], its[seeds[0]]))
            accuracy, loss = (
                BySeed.of([_figure(mine[seed], epoch, key) - _figure(its[seed], epoch, key) for seed in seeds])
                for key in ("accuracy", "loss")
            )
            less = {"yes": "no", "no": "yes"}.get(loss.verdict, loss.verdict)
            yield [f"{WAYS[way]} – {WAYS[other]}", f"{p:g}", str(len(seeds)), str(epoch), accuracy.points,
                   accuracy.verdict, loss.text(digits=3), less]  # fmt: skip


def _figure(run: Run, epoch: int, key: str) -> float:
    """Return the validation accuracy by the way's own method, or the validation loss by draws, after an epoch."""
    if run["way"] == "plain":
        return float(run[key][epoch - 1])
    looks = run["looks"]
    column = f"accuracy by {_own(run['way'])}" if key == "accuracy" else _LOSS
    return float(looks["validation"][column][looks["epochs"].index(epoch)])


def _over_time(runs: Sequence[Run]) -> list[list[str]]:
    rows = []
    for p in sorted({run["dropout"] for run in runs} - {0.0}):
        sampled = {run["seed"]: run for run in runs if run["way"] == "sampled" and run["dropout"] == p}
        for way, q, group in _groups(runs):
            pairs = [(run, sampled[run["seed"]]) for run in group if run["seed"] in sampled and q in (p, 0.0)]
            if pairs:
                rows.append([_title(way, group), f"{p:g}", str(len(pairs)), *_at_times(pairs)])
    return rows


def _at_times(pairs: Sequence[tuple[Run, Run]]) -> Iterator[str]:
    """Yield the gains over sampled dropout at each time, or the accuracy of sampled dropout itself."""
    for share in _SHARES:
        accuracies = [(_at_time(run, share * its["seconds"][-1]), _at_time(its, share * its["seconds"][-1]))
                      for run, its in pairs]  # fmt: skip
        known = [(mine, its) for mine, its in accuracies if mine is not None and its is not None]
        if len(known) < len(pairs):
            yield NONE
        elif pairs[0][0]["way"] == "sampled":
            yield f"{statistics.fmean(its for _, its in known):.1%}"
        else:
            gain = BySeed.of([mine - its for mine, its in known])
            yield f"{gain.points} ({gain.verdict})"


def _at_time(run: Run, seconds: float) -> float | None:
    """Return the running average of the accuracy at a time; None before the first epoch ends, or after the last."""
    done = sum(x <= seconds for x in run["seconds"])
    if done == 0:
        return None
    return float(running(run["accuracy"])[done - 1])


def plot(out: Path, name: str, data: dict[str, Any]) -> list[Path]:
    """Draw ratio of deviations, losses and accuracy of the largest probability, a column for each network."""
    shown = {name: found for name, found in data["networks"].items() if found["runs"]}
    return draw(out, name, (max(6.4, 4.6 * len(shown)), 9.0), lambda figure: _plot(figure, shown))


def _plot(figure: "Figure", networks: dict[str, Any]) -> None:
    panels = figure.subplots(3, max(1, len(networks)), squeeze=False)
    for (ratio, losses, accuracy), (name, found) in zip(panels.T, networks.items(), strict=False):
        runs = list(found["runs"].values())
        p = max(run["dropout"] for run in runs)
        for way, q, group in _groups(runs):
            if q in (p, 0.0):
                _draw_way(ratio, losses, accuracy, way, group)
        ratio.set_title(f"{NETWORKS[name]}, p = {p:g}")
        ratio.axhline(1, color="0.6", linewidth=0.8)
        ratio.set(xscale="log", xlabel="epoch", ylabel="deviation of the logits,\nAP2 / draws")
        losses.set(xscale="log", yscale="log", xlabel="epoch", ylabel="training loss: by draws (circles),\nas believed")
        for axis in (ratio, losses):
            axis.set_xticks(found["looks"], [str(epoch) for epoch in found["looks"]])
            axis.minorticks_off()
        accuracy.set(xscale="log", xlabel="seconds of training steps", ylabel="validation accuracy, AP1 (%)")
    lines, names = panels[2, 0].get_legend_handles_labels()
    figure.legend(lines, names, loc="outside lower center", ncols=2)


def _draw_way(ratio: "Axes", losses: "Axes", accuracy: "Axes", way: str, group: Sequence[Run]) -> None:
    style = LINES[way]
    epochs = len(group[0]["seconds"])
    believed = [_mean(group, lambda run, k=k: run["train_loss"][k]) for k in range(epochs)]  # type: ignore[misc]
    losses.plot(range(1, epochs + 1), believed, **style)
    times = [_mean(group, lambda run, k=k: run["seconds"][k]) for k in range(epochs)]  # type: ignore[misc]
    course = [100 * statistics.fmean(each) for each in zip(*(running(run["accuracy"]) for run in group), strict=True)]
    accuracy.plot(times, course, label=WAYS[way], **style)
    looks = group[0]["looks"]["epochs"]
    if looks:
        ratios = [_mean(group, lambda run, k=k: _of_logits(run, k)) for k in looks]  # type: ignore[misc]
        ratio.plot(looks, ratios, marker=".", **style)
        drawn = [statistics.fmean(each)
                 for each in zip(*(run["looks"]["training"][_LOSS] for run in group), strict=True)]  # fmt: skip
        losses.plot(looks, drawn, marker="o", markersize=4, color=style["color"], linewidth=0.6)
