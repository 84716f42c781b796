"""The report of the dropout experiment; its sentences follow from the numbers."""

import math
import statistics
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from momentprop.checking.formatting import NONE, number
from momentprop_experiments.reproduction.dropout.dropout_figure import (
    NETWORKS,
    WAYS,
    WINDOW,
    Run,
    probabilities,
    running,
    with_dropout,
)
from momentprop_experiments.reproduction.outcome import table

_NEAR = 0.99  # the share of plain training's best accuracy that counts as reached
_SHOWN = (2, 5, 10, 20, 30, 40, 60)  # epochs
_METHODS = ("ap1", "ap2")

_NOTES = (
    "Adam with a learning rate of 0.001 · 0.96^k in epoch k, no batch normalization. Dropout with probability p is "
    "after every activation. All ways begin at the same point, scaled by the statistics of a batch, but for analytic "
    "normalization, of which the initial point is analytic too. Analytic dropout minimizes the loss of the mean, -log "
    "of the class posterior, as the paper; 'mean loss' is the mean of -log softmax over the noise, which sampled "
    "dropout minimizes. "
    f"Validation figures are running averages over about {WINDOW} epochs at the end of training, taken by AP1, and by "
    "AP2 where that is trained with. 'Epochs' tells when the validation accuracy first reaches "
    f"{_NEAR:.0%} of the best that plain training with the same seed reaches. ± is the standard deviation over seeds. "
    "Every network is tested both by AP1 and by AP2, which propagates the dropout of its training; NLL is the mean "
    "negative log-likelihood of the true class in nats."
)
_ANSWERS = (
    "Gains in validation accuracy are in points, against the other way with the same seeds, ± one standard error that "
    "the number of validation images causes (as if each way had other images: it is rather less). The answer is yes or "
    "no if the gain exceeds two of these."
)
_ACCURATE, _FAST = "more accurate than", "as fast as"
_YES, _NO, _UNCLEAR = "yes", "no", "no clear difference"
_PAPER = {
    ("analytic", "plain"): {0.2: _YES, 0.3: _YES},
    ("analytic-norm", "plain"): {0.2: _YES, 0.3: _YES},
    ("analytic", "sampled"): {0.3: _YES},
    ("analytic-norm", "sampled"): {0.3: _YES},
    ("sampled", "plain"): {0.3: _NO},
    ("analytic-expected", "plain"): {},
    ("analytic-expected", "sampled"): {},
    ("analytic-expected", "analytic"): {},
}  # whether the paper's caption calls the first more accurate, by probability


def markdown(title: str, data: dict[str, Any]) -> str:
    """Return the whole report in Markdown."""
    parts = [f"# {title}", _NOTES]
    for name, network in data["networks"].items():
        parts += [f"**{_title(name, network)}**", *_section(network)]
    return "\n\n".join(parts)


def _title(name: str, network: dict[str, Any]) -> str:
    few = f"{network['train_images']:,} images of " if network.get("train_images") else ""
    return f"{NETWORKS[name]}, {network['epochs']} epochs of {few}{network['data']}"


def _section(network: dict[str, Any]) -> Iterator[str]:
    runs = network["runs"]
    done = {name: run for name, run in runs.items() if run["test"] is not None}
    if len(done) < network["wanted"]:
        again = "the same command goes on with the others"
        only = " The tables are those of these runs; the curves show all." if done else ""
        yield f"Not complete: {len(done)} of {network['wanted']} runs are done; {again}.{only}"
    unfinished = {name: run for name, run in runs.items() if name not in done}
    if unfinished:
        yield _so_far(unfinished, network["epochs"])
    found = answers(done.values(), network["validation_images"])
    if found:
        yield summary(found)
        yield _ANSWERS
        yield table(("question", "p", "paper", "here", "by", "seeds"), [each.row for each in found])
    if done:
        yield _means(done.values())
        yield _course(done.values(), network["epochs"])
        yield _each(done)


def _so_far(unfinished: dict[str, Run], epochs: int) -> str:
    rows = [
        [name, f"{len(run['train_loss'])} of {epochs}", f"{last(run):.1%}", number(running(run["train_loss"])[-1], 3)]
        for name, run in unfinished.items()
    ]
    return table(("run", "epochs so far", "validation accuracy", "training loss"), rows)


@dataclass(frozen=True)
class Answer:
    """Whether one way is better than another at a probability of dropout, and the numbers that show it."""

    way: str
    better: str
    other: str
    p: float
    paper: str
    here: str
    by: str
    seeds: str

    @property
    def row(self) -> Sequence[str]:
        """The row of the table."""
        question = f"Is {WAYS[self.way]} {self.better} {WAYS[self.other]}?"
        return question, f"{self.p:g}", self.paper, self.here, self.by, self.seeds


def answers(done: Collection[Run], images: int) -> list[Answer]:
    """Answer whether each way is more accurate than another, and whether it is as fast as plain training."""
    found: list[Answer] = []
    for p in probabilities(done):
        ways = with_dropout(done, p)
        for (way, other), paper in _PAPER.items():
            pairs = _pairs(ways[way], ways[other])
            if pairs:
                found.append(Answer(way, _ACCURATE, other, p, paper.get(p, NONE), *_gain(pairs, images)))
        for way in list(WAYS)[1:]:
            pairs = _pairs(ways[way], ways["plain"])
            if pairs:
                paper_says = _YES if way in ("analytic", "analytic-norm") else NONE
                found.append(Answer(way, _FAST, "plain", p, paper_says, *_speed(pairs)))
    return found


def _gain(pairs: Sequence[tuple[Run, Run]], images: int) -> tuple[str, str, str]:
    gains = [last(run) - last(other) for run, other in pairs]
    gain, accuracy = statistics.fmean(gains), statistics.fmean(last(other) for _, other in pairs)
    error = math.sqrt(2 * accuracy * (1 - accuracy) / (images * len(pairs)))
    here = _UNCLEAR if abs(gain) < 2 * error else _YES if gain > 0 else _NO
    higher = f"higher for {sum(x > 0 for x in gains)} of {len(gains)}"
    return here, f"{100 * gain:+.1f} ± {100 * error:.1f} points", higher


def _speed(pairs: Sequence[tuple[Run, Run]]) -> tuple[str, str, str]:
    mine, plain = ([pair[i] for pair in pairs] for i in (0, 1))
    epochs, needed = _epochs(mine, plain), _epochs(plain, plain)
    assert needed is not None  # plain training reaches its own best
    here = _YES if epochs is not None and epochs <= needed else _NO
    by = "not reached" if epochs is None else f"{epochs:.0f} epochs, plain {needed:.0f}"
    return here, by, str(len(pairs))


def summary(found: Sequence[Answer]) -> str:
    """Say whether the paper's claim holds, and how many of its answers agree with ours."""
    told = []
    for p in dict.fromkeys(each.p for each in found):
        here = {each.better: each.here for each in found if (each.way, each.other, each.p) == ("analytic", "plain", p)}
        if here:
            accurate = {_YES: "improves", _NO: "lowers"}.get(here[_ACCURATE], "does not clearly change")
            fast = "does not slow the training down" if here[_FAST] == _YES else "slows the training down"
            told.append(f"With p = {p:g}, analytic dropout {accurate} the validation accuracy, and {fast}.")
    known = [each for each in found if each.paper != NONE]
    same = sum(each.paper == each.here for each in known)
    return " ".join([*told, f"Of {len(known)} answers of the paper, {same} are the same here."])


def _pairs(mine: Sequence[Run], others: Sequence[Run]) -> list[tuple[Run, Run]]:
    """Pair the runs with the same seed."""
    by_seed = {run["seed"]: run for run in others}
    return [(run, by_seed[run["seed"]]) for run in mine if run["seed"] in by_seed]


def last(run: Run) -> float:
    """Return the running average of the validation accuracy at the end of a run."""
    return running(run["validation_accuracy"])[-1]


def _epochs(runs: Sequence[Run], plain: Sequence[Run]) -> float | None:
    """Return the mean number of epochs, over the seeds, to come near the best accuracy of plain training."""
    found = [_epochs_to(run, other) for run, other in _pairs(runs, plain)]
    reached = [epoch for epoch in found if epoch is not None]
    return statistics.fmean(reached) if reached and len(reached) == len(runs) else None


def _epochs_to(run: Run, plain: Run) -> int | None:
    goal = _NEAR * max(running(plain["validation_accuracy"]))
    return next((epoch for epoch, x in enumerate(running(run["validation_accuracy"]), start=1) if x >= goal), None)


def _means(done: Collection[Run]) -> str:
    """Return the table of the means over seeds, with a row for each way and probability."""
    head = ("", "p", "seeds", "validation accuracy", "validation loss", "training loss", "epochs", *_tested())
    rows = []
    plain = [run for run in done if run["way"] == "plain"]
    for name, p, group in _groups(done):
        losses = (_mean([running(run[key])[-1] for run in group]) for key in ("validation_loss", "train_loss"))
        epochs = _epochs(group, plain)
        when = NONE if epochs is None else f"{epochs:.0f}"
        accuracy = _spread([last(run) for run in group])
        rows.append([name, p, str(len(group)), accuracy, *losses, when, *_tests(group)])
    return table(head, rows)


def _course(done: Collection[Run], epochs: int) -> str:
    """Return the table of mean validation accuracy and loss after some epochs, for each way and probability."""
    shown = [epoch for epoch in _SHOWN if epoch <= epochs]
    rows = [
        [name, p, *(f"{_at(group, 'accuracy', epoch):.1%}, {_at(group, 'loss', epoch):.2f}" for epoch in shown)]
        for name, p, group in _groups(done)
    ]
    return table(("validation accuracy and loss after", "p", *(f"epoch {epoch}" for epoch in shown)), rows)


def _at(group: Sequence[Run], what: str, epoch: int) -> float:
    return statistics.fmean(running(run[f"validation_{what}"])[epoch - 1] for run in group)


def _groups(done: Collection[Run]) -> Iterator[tuple[str, str, list[Run]]]:
    """Yield the words for each way and probability, and its runs."""
    for p in (0.0, *probabilities(done)):
        for way in WAYS:
            group = [run for run in done if run["way"] == way and run["dropout"] == p]
            if group:
                yield WAYS[way], NONE if p == 0 else f"{p:g}", group


def _each(done: dict[str, Run]) -> str:
    """Return the table of all runs."""
    rows = [[name, f"{last(run):.1%}", *_tests([run])] for name, run in done.items()]
    return table(("run", "validation accuracy", *_tested()), rows)


def _tested() -> list[str]:
    return [f"{what}, {method.upper()}" for what in ("test accuracy", "test NLL") for method in _METHODS]


def _tests(group: Sequence[Run]) -> list[str]:
    return [
        *(_spread([run["test"][method]["accuracy"] for run in group]) for method in _METHODS),
        *(_mean([run["test"][method]["loss"] for run in group]) for method in _METHODS),
    ]


def _mean(figures: Sequence[float]) -> str:
    return number(statistics.fmean(figures), 3)


def _spread(figures: Sequence[float]) -> str:
    mean = f"{statistics.fmean(figures):.1%}"
    return mean if len(figures) == 1 else f"{mean} ± {100 * statistics.stdev(figures):.1f}"
