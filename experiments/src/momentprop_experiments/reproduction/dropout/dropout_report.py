"""The report of the dropout experiment; its sentences follow from the numbers."""

import math
import statistics
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from momentprop.checking.formatting import NONE, number
from momentprop_experiments.reproduction.by_seed import NO, ON_INTERVALS, OPEN, YES, BySeed, by_chance
from momentprop_experiments.reproduction.dropout.dropout_figure import (
    NETWORKS,
    WAYS,
    WINDOW,
    Run,
    probabilities,
    running,
    with_dropout,
)
from momentprop_experiments.reproduction.dropout.dropout_tables import (
    NEAR,
    course,
    course_gains,
    epochs_to,
    last,
    means,
    paired,
    paired_tests,
)
from momentprop_experiments.reproduction.outcome import table

_ROUNDING = math.sqrt(2 / 12)  # the deviation of the rounding in a difference of two numbers of epochs

_INTRODUCTION = (
    "The tables compare ways of training a network: without dropout (plain), with dropout by draws (sampled), and with "
    "dropout that AP2 propagates (analytic)."
)
_NOTES = f"""\
* Training uses Adam with a learning rate of 0.001 · 0.96^k in epoch k, and no batch normalization. Dropout with
  probability p follows every activation. All ways begin at the same point, scaled by the statistics of a batch, except
  analytic normalization, whose initial point is analytic too.
* Analytic dropout minimizes the loss of the mean, -log of the class posterior, as in the paper. 'Mean loss' is the mean
  of -log softmax over the noise, which sampled dropout minimizes. 'The paper's rules' are the formulas of the paper
  (`--family fitted`). 'Calibrated' means that draws correct AP2's variances after every epoch.
* Validation figures are running averages over about {WINDOW} epochs at the end of training. They are by AP2 where AP2
  trains, and by AP1 elsewhere.
* 'Epochs needed' is when the validation accuracy first reaches {NEAR:.0%} of the best that plain training with the same
  seed reaches. 'Epoch of least loss' is when the validation loss is least, as a range over the seeds.
* Every network is tested by AP1 and by AP2, which propagates the dropout of its training. NLL is the mean negative
  log-likelihood of the true class, in nats."""
_ANSWERS = (
    "Each question compares two ways with the same seeds: in points of validation accuracy, with the number of seeds "
    f"for which the first way is higher, or in epochs, with the number of seeds. {ON_INTERVALS}"
)
_ACCURATE, _FAST = "more accurate than", "as fast as"
_PAPER = {
    ("analytic", "plain"): {0.2: YES, 0.3: YES},
    ("analytic-norm", "plain"): {0.2: YES, 0.3: YES},
    ("analytic", "sampled"): {0.3: YES},
    ("analytic-norm", "sampled"): {0.3: YES},
    ("sampled", "plain"): {0.3: NO},
    ("analytic-expected", "plain"): {},
    ("analytic-expected", "sampled"): {},
    ("analytic-expected", "analytic"): {},
    ("analytic-fitted", "plain"): {0.2: YES, 0.3: YES},
    ("analytic-fitted", "sampled"): {0.3: YES},
    ("analytic-fitted", "analytic"): {},
    ("analytic-calibrated", "plain"): {},
    ("analytic-calibrated", "sampled"): {},
    ("analytic-calibrated", "analytic"): {},
}  # whether the paper's caption calls the first more accurate, by probability


def markdown(title: str, data: dict[str, Any]) -> str:
    """Return the whole report in Markdown."""
    parts = [f"# {title}", _INTRODUCTION, _NOTES]
    for name, network in data["networks"].items():
        parts += [f"**{_title(name, network)}**", *_section(network)]
    return "\n\n".join(parts)


def _title(name: str, network: dict[str, Any]) -> str:
    few = f"{network['train_images']:,} images of " if network.get("train_images") else ""
    return f"{NETWORKS[name]}, {network['epochs']} epochs on {few}{network['data']}"


def _section(network: dict[str, Any]) -> Iterator[str]:
    runs = network["runs"]
    done = {name: run for name, run in runs.items() if run["test"] is not None}
    if len(done) < network["wanted"]:
        again = "the same command makes the others"
        only = " The tables cover these runs only; the curves show all." if done else ""
        yield f"Not complete: {len(done)} of {network['wanted']} runs are done; {again}.{only}"
    unfinished = {name: run for name, run in runs.items() if name not in done}
    if unfinished:
        yield _so_far(unfinished, network["epochs"])
    found = answers(done.values())
    if found:
        yield summary(found)
        yield _ANSWERS
        yield _table_of(found)
    if done:
        yield _where(done.values())
        yield means(done.values())
        yield course(done.values(), network["epochs"])
        if len({run["seed"] for run in done.values()}) > 1:
            yield "The first way's validation accuracy less the second's, in points, where there are several seeds:"
            yield course_gains(done.values(), network["epochs"])
            yield "Differences on the test images, where there are several seeds. A lower NLL is better."
            yield paired_tests(done.values())


def _where(done: Collection[Run]) -> str:
    """Say on which devices and at which commits the runs were made, as far as they recorded it."""
    known = [run["made"] for run in done if run.get("made")]
    devices = [f"{made['device']}, commit {(made['commit'] or 'unknown')[:9]}" for made in known]
    told = [f"{devices.count(each)} on {each}" for each in dict.fromkeys(devices)]
    unknown = len(done) - len(known)
    if unknown:
        told.append(
            f"{unknown} before runs recorded their device, commit, versions and seconds. These are not known, and the "
            "`--device` in their commands comes from the call that wrote this report"
        )
    return f"Of {len(done)} runs, we made {'; '.join(told)}."


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
    def cell(self) -> str:
        """What the table says about it."""
        return f"{self.here}: {self.by}; {self.seeds}"


def _table_of(found: Sequence[Answer]) -> str:
    """Return the table of answers, with the paper's and ours for each probability."""
    shown = sorted({each.p for each in found})
    rows: dict[str, dict[float, Answer]] = {}
    for each in found:
        rows.setdefault(f"{WAYS[each.way]} {each.better} {WAYS[each.other]}?", {})[each.p] = each
    head = [text for p in shown for text in (f"p = {p:g}, paper", f"p = {p:g}, here")]
    cells = {
        question: [text for p in shown for text in ((by[p].paper, by[p].cell) if p in by else (NONE, NONE))]
        for question, by in rows.items()
    }
    return table(("question", *head), [[question, *each] for question, each in cells.items()])


def answers(done: Collection[Run]) -> list[Answer]:
    """Answer whether each way is more accurate than another, and whether it is as fast as plain training."""
    found: list[Answer] = []
    for p in probabilities(done):
        ways = with_dropout(done, p)
        for (way, other), paper in _PAPER.items():
            pairs = paired(ways[way], ways[other])
            if pairs:
                found.append(Answer(way, _ACCURATE, other, p, paper.get(p, NONE), *_gain(pairs)))
        for way in list(WAYS)[1:]:
            pairs = paired(ways[way], ways["plain"])
            if pairs:
                paper_says = YES if way in ("analytic", "analytic-norm", "analytic-fitted") else NONE
                found.append(Answer(way, _FAST, "plain", p, paper_says, *_speed(pairs)))
    return found


def _gain(pairs: Sequence[tuple[Run, Run]]) -> tuple[str, str, str]:
    gains = [last(run) - last(other) for run, other in pairs]
    found = BySeed.of(gains)
    return found.verdict, found.points, f"{sum(x > 0 for x in gains)} of {len(gains)}"


def _speed(pairs: Sequence[tuple[Run, Run]]) -> tuple[str, str, str]:
    needed = [epochs_to(plain, plain) for _, plain in pairs]
    taken = [epochs_to(*pair) for pair in pairs]
    late = taken.count(None)
    if late:
        return OPEN, f"not reached by {late} of {len(pairs)}", str(len(pairs))
    found = BySeed.of([a - b for a, b in zip(needed, taken, strict=True) if a is not None and b is not None], _ROUNDING)
    here, plain = (statistics.fmean(x for x in each if x is not None) for each in (taken, needed))
    return found.verdict, f"{here:.0f} epochs, plain {plain:.0f} ({found.text()})", str(len(pairs))


def summary(found: Sequence[Answer]) -> str:
    """Say whether the paper's claim holds, and how many of its answers agree with ours."""
    told = []
    for p in dict.fromkeys(each.p for each in found):
        here = {each.better: each.here for each in found if (each.way, each.other, each.p) == ("analytic", "plain", p)}
        if here:
            way, unsure = "analytic dropout", "it is not settled whether"
            accurate = {YES: f"{way} improves", NO: f"{way} lowers"}.get(here[_ACCURATE], f"{unsure} {way} improves")
            fast = {YES: "it is faster", NO: "it slows the training down"}.get(here[_FAST], f"{unsure} it is as fast")
            told.append(f"With p = {p:g}, {accurate} the validation accuracy, and {fast}.")
    known = [each for each in found if each.paper != NONE]
    settled = [each for each in known if each.here != OPEN]
    same = sum(each.paper == each.here for each in settled)
    return " ".join(
        [
            *told,
            f"The paper answers {len(known)} of the questions below: {same} of its answers hold here, "
            f"{len(settled) - same} are contradicted, and {len(known) - len(settled)} are not settled. "
            f"{by_chance(len(found))}",
        ]
    )
