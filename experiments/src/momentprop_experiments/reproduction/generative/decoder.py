"""A generative sigmoid belief network on the embedded digits, trained by AP2 and by sampling estimators.

All train the same bound from the same initial point, with the same optimizer. The report shows the bound on test images
by draws, and the tighter importance-weighted bound, against epochs and against time. Each training has a folder, and a
call resumes it.
"""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from momentprop import built_kernels
from momentprop.data.embedded import digits
from momentprop.errors import UserError
from momentprop.sampling import progress
from momentprop.training import Settings, fit
from momentprop.training.distributed import processes
from momentprop.training.loop import Trainer
from momentprop.training.training_examples import as_examples
from momentprop_experiments.drawing import LINES, draw
from momentprop_experiments.options import DEFAULTS, Options
from momentprop_experiments.provenance import start, together
from momentprop_experiments.reproduction.generative.digit_model import LOWER, UPPER, Bound, DigitModel, bounds
from momentprop_experiments.reproduction.outcome import Outcome, rounded, table
from momentprop_experiments.turns import Clock, Run, milliseconds, take_turns

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "decoder"
TITLE = "A generative belief network of digits, trained by AP1, AP2, straight-through and the score function"


class Estimator(NamedTuple):
    """The method of `fit`, the options of the model, and how many times as many epochs it gets."""

    method: str
    options: dict[str, Any] = {}  # noqa: RUF012
    times: int = 1


_SCORE = {"gradient": "score", "draws": 5}
ESTIMATORS = {
    "AP1": Estimator("ap1"),
    "AP2": Estimator("ap2"),
    "straight-through": Estimator("sample"),
    "score function": Estimator("sample", _SCORE),
    "straight-through, 4 × as long": Estimator("sample", times=4),
    "score function, 2 × as long": Estimator("sample", _SCORE, times=2),
}
"""The last two take about as much time as AP2; their learning rate falls as much over all their epochs."""

BATCH = 100

_LINES = (LINES["AP1"], LINES["AP2 (default)"], LINES["AP2b"], LINES["sampling"], LINES["AP2b"], LINES["sampling"])
_STYLES = dict(zip(ESTIMATORS, _LINES, strict=True))


@dataclass(frozen=True)
class Effort:
    """How much to train and measure."""

    stages: tuple[int, ...]  # the epochs after which the bounds are measured
    seeds: int
    draws: int  # for each test image
    images: int | None = None

    def stages_of(self, name: str) -> tuple[int, ...]:
        """Return the stages of an estimator."""
        return tuple(ESTIMATORS[name].times * stage for stage in self.stages)


FULL = Effort((5, 10, 20, 40, 80), 3, 200)
QUICK = Effort((1, 2), 1, 10, 200)


def run(out: Path, options: Options = DEFAULTS) -> Outcome:
    """Train and measure; `quick` takes few images and two epochs."""
    effort = QUICK if options.quick else FULL
    end = None if options.minutes is None else time.monotonic() + 60 * options.minutes
    wanted = [(name, seed, effort.stages_of(name)) for seed in range(effort.seeds) for name in ESTIMATORS]
    rows: list[dict[str, Any]] = []
    with progress(sum(len(stages) for *_, stages in wanted), NAME) as bar:
        for name, seed, stages in wanted:
            place = options.runs_of(NAME) / f"{_file_name(name)}-{seed}"
            for stage in stages:
                if end is not None and time.monotonic() > end:
                    raise UserError(f"the time is up after {len(rows)} measurements; run the same command to resume")
                rows.append({"estimator": name, "seed": seed, **measured(name, seed, stage, place, effort)})
                bar.update(1)
    origins = together([row.pop("made", None) for row in rows])  # some may be from earlier calls
    data = {
        **asdict(effort),
        "units": [LOWER, UPPER],
        "seconds_per_epoch": epoch_seconds(effort, Clock(3, 1.0, 0.01) if options.quick else Clock(seconds=30.0)),
        "rows": rows,
        "rows_made": origins,
    }
    return Outcome(data, _report(data), draw(out, NAME, (8.6, 3.4), lambda figure: _plot(figure, data)))


def measured(name: str, seed: int, epochs: int, place: Path, effort: Effort) -> dict[str, Any]:
    """Train up to this number of epochs and measure the bounds, or read stored ones."""
    file = place / f"bounds-{epochs}.json"
    if file.exists():
        return dict(json.loads(file.read_text()))
    made = start()
    model, settings = _start(name, seed, epochs)
    images = _binary("train", effort.images)
    history = fit(model, (images, images), settings, objective=Bound(model), out=place, resume=True, progress=False)
    bound, weighted = bounds(model.eval(), _binary("test", effort.images), effort.draws)
    found = {
        "epochs": epochs,
        "training_objective": rounded(-history[-1]["train_loss"], 6),
        "bound": rounded(bound, 6),
        "weighted_bound": rounded(weighted, 6),
        "made": made("cpu"),
    }
    file.write_text(json.dumps(found) + "\n")
    return found


def epoch_seconds(effort: Effort, clock: Clock) -> dict[str, float]:
    """Return the seconds that each estimator takes for an epoch, measured in alternating steps."""
    images = _binary("train", effort.images)
    chosen = torch.arange(BATCH)

    def step(name: str) -> Run:
        model, settings = _start(name, 0, 1)
        trainer = Trainer(model, as_examples((images, images)), settings, processes("cpu"), objective=Bound(model))
        return lambda: trainer.step(chosen)

    with torch.random.fork_rng(), built_kernels.at_once():
        rounds = take_turns({name: step(name) for name in ESTIMATORS}, clock)
    return {name: rounded(milliseconds(rounds, name) / 1000 * len(images) / BATCH, 3) for name in ESTIMATORS}  # type: ignore[misc]


def _start(name: str, seed: int, epochs: int) -> tuple[DigitModel, Settings]:
    """Return a model at its initial point, and how to train it."""
    estimator = ESTIMATORS[name]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = DigitModel(**estimator.options)
    decay = 0.96 ** (1 / estimator.times)
    return model, Settings(
        method=estimator.method,
        epochs=epochs,
        batch_size=BATCH,
        learning_rate=3e-3,
        decay=decay,
        seed=seed,
        device="cpu",
    )


def _file_name(name: str) -> str:
    return name.lower().replace("×", "x").replace(",", "").replace(" ", "-")


def _binary(split: str, images: int | None) -> Tensor:
    """Return digits of black and white pixels, of shape (n, 784)."""
    return (digits(split).images.flatten(1)[:images] > 0.5).float()


def _spread(data: dict[str, Any], name: str, epochs: int, key: str) -> list[float]:
    return [row[key] for row in data["rows"] if row["estimator"] == name and row["epochs"] == epochs]


def _report(data: dict[str, Any]) -> str:
    seeds = f"{data['seeds']} seed{'s' * (data['seeds'] > 1)}"
    equal = [name for name, estimator in ESTIMATORS.items() if estimator.times == 1]
    stages = [(name, *(_span(_spread(data, name, stage, "bound")) for stage in data["stages"])) for name in equal]
    return "\n\n".join(
        [
            f"# {TITLE}",
            f"A layer of {data['units'][1]} binary units generates a layer of {data['units'][0]}, and these generate "
            "the 784 binary pixels of a digit. The tables have lower bounds of the log-likelihood of the embedded "
            f"digits, in nats per image: the mean over {seeds}, and the range in brackets. More is better. The score "
            "function takes 5 draws.",
            f"**The bound on test images after some epochs, by {data['draws']} draws of the hidden units**",
            table(("trained by", *(f"{n} epoch{'s' * (n > 1)}" for n in data["stages"])), stages),
            "**At the end of the training**",
            "The training objective is the bound as the method itself estimates it on the training images. The "
            "importance-weighted bound is tighter.",
            table(
                (
                    "trained by",
                    "epochs",
                    "ms per epoch",
                    "training objective",
                    "test bound",
                    "importance-weighted bound",
                ),
                [_at_the_end(data, name) for name in ESTIMATORS],
            ),
        ]
    )


def _at_the_end(data: dict[str, Any], name: str) -> tuple[str, ...]:
    last = data["stages"][-1] * ESTIMATORS[name].times
    keys = ("training_objective", "bound", "weighted_bound")
    milliseconds_an_epoch = 1000 * data["seconds_per_epoch"][name]
    return name, str(last), f"{milliseconds_an_epoch:.0f}", *(_span(_spread(data, name, last, key)) for key in keys)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _span(values: list[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.1f}"
    return f"{_mean(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def _plot(figure: "Figure", data: dict[str, Any]) -> None:
    """Draw the bound against epochs, equally many for all, and against time, about as long for all."""
    by_epoch, by_time = figure.subplots(1, 2, sharey=True)
    for name, estimator in ESTIMATORS.items():
        stages = [stage * estimator.times for stage in data["stages"]]
        curve = [_mean(_spread(data, name, stage, "bound")) for stage in stages]
        seconds = [data["seconds_per_epoch"][name] * stage for stage in stages]
        if estimator.times == 1:
            by_epoch.semilogx(stages, curve, marker="o", markersize=3, label=name, **_STYLES[name])
        if estimator.times > 1 or name.startswith("AP"):
            by_time.semilogx(seconds, curve, marker="o", markersize=3, label=name, **_STYLES[name])
    by_epoch.set_xticks(data["stages"], [str(stage) for stage in data["stages"]])
    by_epoch.set(xlabel="epochs", ylabel="test bound, nats")
    by_time.set_xticks((1, 3, 10, 30), ("1", "3", "10", "30"))
    by_time.set(xlabel="seconds of training")
    for axis in (by_epoch, by_time):
        axis.minorticks_off()
        axis.legend(loc="lower right")
