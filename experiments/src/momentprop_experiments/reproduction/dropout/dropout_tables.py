"""The tables of the dropout experiment: runs by way and probability, and their differences by seed."""

import statistics
from collections.abc import Collection, Iterator, Sequence

from momentprop.checking.formatting import NONE, number
from momentprop_experiments.reproduction.by_seed import NO, OPEN, YES, BySeed
from momentprop_experiments.reproduction.dropout.dropout_figure import WAYS, Run, probabilities, running, with_dropout
from momentprop_experiments.reproduction.outcome import table

NEAR = 0.99
"""The share of plain training's best accuracy that counts as reached."""

_SHOWN = (2, 5, 10, 20, 40, 60)
_METHODS = ("ap1", "ap2")


def paired(mine: Sequence[Run], others: Sequence[Run]) -> list[tuple[Run, Run]]:
    """Pair the runs with the same seed."""
    by_seed = {run["seed"]: run for run in others}
    return [(run, by_seed[run["seed"]]) for run in mine if run["seed"] in by_seed]


def last(run: Run) -> float:
    """Return the running average of the validation accuracy at the end of a run."""
    return running(run["validation_accuracy"])[-1]


def _epochs(runs: Sequence[Run], plain: Sequence[Run]) -> float | None:
    """Return the mean number of epochs, over the seeds, to come near the best accuracy of plain training."""
    found = [epochs_to(run, other) for run, other in paired(runs, plain)]
    reached = [epoch for epoch in found if epoch is not None]
    return statistics.fmean(reached) if reached and len(reached) == len(runs) else None


def epochs_to(run: Run, plain: Run) -> int | None:
    """Return the epoch in which a run first comes near the best accuracy of plain training, or None."""
    goal = NEAR * max(running(plain["validation_accuracy"]))
    return next((epoch for epoch, x in enumerate(running(run["validation_accuracy"]), start=1) if x >= goal), None)


def means(done: Collection[Run]) -> str:
    """Return the table of the means over seeds, with a row for each way and probability."""
    head = (
        "",
        "p",
        "seeds",
        "validation accuracy",
        "validation loss",
        "training loss",
        "epochs needed",
        "epoch of least loss",
        *_tested(),
    )
    rows = []
    plain = [run for run in done if run["way"] == "plain"]
    for name, p, group in _groups(done):
        losses = (_mean([running(run[key])[-1] for run in group]) for key in ("validation_loss", "train_loss"))
        epochs = _epochs(group, plain)
        when = NONE if epochs is None else f"{epochs:.0f}"
        accuracy = _spread([last(run) for run in group])
        least = [1 + min(enumerate(run["validation_loss"]), key=lambda each: each[1])[0] for run in group]
        rows.append([name, p, str(len(group)), accuracy, *losses, when, _range(least), *_tests(group)])
    return table(head, rows)


def _range(epochs: Sequence[int]) -> str:
    low, high = min(epochs), max(epochs)
    return f"{low}" if low == high else f"{low}–{high}"


def course(done: Collection[Run], epochs: int) -> str:
    """Return the table of mean validation accuracy and loss after some epochs, for each way and probability."""
    shown = [epoch for epoch in _SHOWN if epoch <= epochs]
    rows = [
        [name, p, *(f"{_at(group, 'accuracy', epoch):.1%}, {_at(group, 'loss', epoch):.2f}" for epoch in shown)]
        for name, p, group in _groups(done)
    ]
    return table(("validation accuracy and loss after", "p", *(f"epoch {epoch}" for epoch in shown)), rows)


_COURSES = (("sampled", "plain"), ("analytic", "plain"), ("analytic-norm", "plain"), ("analytic", "sampled"))


def course_gains(done: Collection[Run], epochs: int) -> str:
    """Return the table of gains in validation accuracy after some epochs, by several pairs of the same seed."""
    shown = [epoch for epoch in (*_SHOWN[:3], 15, *_SHOWN[3:]) if epoch <= epochs]
    rows = []
    for p in probabilities(done):
        ways = with_dropout(done, p)
        for way, other in _COURSES:
            found = [[running(run["validation_accuracy"]) for run in pair] for pair in paired(ways[way], ways[other])]
            if len(found) > 1:
                gains = [BySeed.of([mine[epoch - 1] - its[epoch - 1] for mine, its in found]) for epoch in shown]
                title = f"{WAYS[way]} – {WAYS[other]}"
                rows.append([title, f"{p:g}", str(len(found)), *(gain.points for gain in gains)])
    return table(("first – second", "p", "seeds", *(f"epoch {epoch}" for epoch in shown)), rows)


_TESTED = (
    ("analytic", "ap2", "plain", "ap1"),
    ("analytic", "ap2", "sampled", "ap1"),
    ("analytic-expected", "ap2", "analytic", "ap2"),
    ("analytic-expected", "ap2", "sampled", "ap1"),
    ("analytic-fitted", "ap2", "analytic", "ap2"),
    ("analytic-fitted", "ap2", "sampled", "ap1"),
    ("analytic-calibrated", "ap2", "analytic", "ap2"),
    ("analytic-calibrated", "ap2", "sampled", "ap1"),
    ("analytic", "ap2", "analytic", "ap1"),
    ("sampled", "ap2", "sampled", "ap1"),
)


def paired_tests(done: Collection[Run]) -> str:
    """Return the table of differences on the test images, by several pairs of the same seed."""
    rows = []
    for p in probabilities(done):
        ways = with_dropout(done, p)
        for way, by, other, its in _TESTED:
            pairs = paired(ways[way], ways[other])
            if len(pairs) > 1:
                accuracy, loss = (
                    BySeed.of([mine["test"][by][key] - run["test"][its][key] for mine, run in pairs])
                    for key in ("accuracy", "loss")
                )
                title = f"{WAYS[way]} ({by.upper()}) – {WAYS[other]} ({its.upper()})"
                better = {YES: NO, NO: YES}.get(loss.verdict, OPEN)
                found = (accuracy.points, accuracy.verdict, loss.text(digits=3), better)
                rows.append([title, f"{p:g}", str(len(pairs)), *found])
    return table(("first – second", "p", "seeds", "accuracy, points", "better?", "NLL", "better?"), rows)


def _at(group: Sequence[Run], what: str, epoch: int) -> float:
    return statistics.fmean(running(run[f"validation_{what}"])[epoch - 1] for run in group)


def _groups(done: Collection[Run]) -> Iterator[tuple[str, str, list[Run]]]:
    """Yield the words for each way and probability, and its runs."""
    for p in (0.0, *probabilities(done)):
        for way in WAYS:
            group = [run for run in done if run["way"] == way and run["dropout"] == p]
            if group:
                yield WAYS[way], NONE if p == 0 else f"{p:g}", group


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
    return BySeed.of(figures).text(100, sign="") + " %"
