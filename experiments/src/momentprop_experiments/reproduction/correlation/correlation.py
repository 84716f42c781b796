"""Every method that follows correlations, and those that do not, against many draws."""

import hashlib
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import momentprop
from momentprop.calibration import Calibration
from momentprop.checking import cost
from momentprop.files import write_file
from momentprop.sampling import progress
from momentprop_experiments.options import DEFAULTS, Options
from momentprop_experiments.reproduction.correlation import he_mlps, measures, small_networks, truths
from momentprop_experiments.reproduction.correlation.correlation_cases import CASES, CorrelationCase
from momentprop_experiments.reproduction.correlation.correlation_figure import plot
from momentprop_experiments.reproduction.correlation.correlation_report import markdown
from momentprop_experiments.reproduction.correlation.methods import (
    DRAWS,
    METHODS,
    MOST,
    TOGETHER,
    TRUE,
    answer,
    by_draws,
    moments,
    posterior_by_draws,
    timed_draws,
)
from momentprop_experiments.reproduction.correlation.refusals import refusal
from momentprop_experiments.reproduction.correlation.truths import Noisy, Truth
from momentprop_experiments.reproduction.noisy_networks import Setting, exact_convolutions
from momentprop_experiments.reproduction.outcome import Outcome, rounded

NAME = "correlation"
TITLE = "Following correlations: deviations, correlations and class posteriors (table; takes a GPU)"

_SEEDS = {"deep": 1, "wide": 2, "equal time": 3}  # of the draws


@dataclass(frozen=True)
class Amount:
    """How much to draw for a kind of network."""

    draws: int  # of each input of the moments
    wide_draws: int  # of each input of the class posteriors
    rows: int  # inputs of a pass


@dataclass(frozen=True)
class Effort:
    """How much to measure."""

    images: int  # for the class posteriors
    deep: int  # the first of them, for the moments
    fitted: int  # training inputs and draws of a calibration
    samples: int
    batch: int  # inputs of a pass of a method
    timed: int  # inputs of a timed pass
    amounts: Mapping[str, Amount] = field(default_factory=dict)
    networks: int = 8  # random networks, their draws and their width
    network_draws: int = 1 << 20
    width: int = he_mlps.WIDTH
    cases: Sequence[str] = tuple(CASES)


FULL = Effort(
    1024, 64, 64, 1000, 64, 64,
    {
        "lenet": Amount(20_000, 20_000, 16_384),
        "cifar": Amount(20_000, 600, 8_192),
        "resnet18": Amount(20_000, 1_000, 8_192),
        "vit": Amount(20_000, 1_000, 8_192),
        "small": Amount(20_000, 20_000, 65_536),
    },
)  # fmt: skip
ON_CPU = Effort(
    16, 8, 16, 300, 8, 4,
    {
        "lenet": Amount(4_000, 4_000, 512),
        "cifar": Amount(400, 200, 32),
        "resnet18": Amount(400, 200, 64),
        "vit": Amount(400, 200, 64),
        "small": Amount(8_000, 8_000, 4_096),
    },
    networks=2,
    network_draws=1 << 17,
)  # fmt: skip
QUICK = Effort(
    4, 4, 4, 20, 4, 2,
    {"lenet": Amount(40, 40, 64), "small": Amount(200, 200, 512)},
    networks=2,
    network_draws=1 << 10,
    width=16,
    cases=("lenet-dropout", "sensor", "digits-mlp-0.25"),
)  # fmt: skip


def run(out: Path, options: Options = DEFAULTS) -> Outcome:
    """Try all methods in all cases; `quick` takes three small ones and few draws."""
    data = measure(options)
    return Outcome(data, markdown(TITLE, data), plot(out, NAME, data))


def measure(options: Options) -> dict[str, Any]:
    """Measure all numbers of the tables, or read those that an earlier call has measured."""
    setting, effort = Setting(options), options.choose(QUICK, ON_CPU, FULL)
    if options.images is not None:
        effort = Effort(**{**vars(effort), "images": options.images, "deep": min(options.images, effort.deep)})
    folder = options.runs_of(NAME)
    wanted = {name: CASES[name] for name in effort.cases}
    large = {name: case.noisy for name, case in wanted.items() if case.data is not None}
    cases = {}
    with progress(len(wanted) + 1, NAME) as bar, exact_convolutions():
        for name, case in wanted.items():
            if case.data is None or setting.has(case.noisy):
                cases[name] = _Measured(name, case, setting, effort, folder).all()
            bar.update(1)
        he = _kept(
            folder / "he-mlps.json",
            {"networks": effort.networks, "draws": effort.network_draws, "width": effort.width},
            lambda: he_mlps.measure(effort.networks, effort.network_draws, setting.device, effort.width),
        )
    told = {name: each for name, each in asdict(effort).items() if name in ("images", "deep", "fitted", "samples")}
    return {**told, "device": _device(setting), "cases": cases, "he_mlps": he, "left_out": setting.missing(large)}


def _device(setting: Setting) -> str:
    return torch.cuda.get_device_name(setting.device) if setting.device.type == "cuda" else "CPU"


class _Measured:
    """One case: its network and inputs, its truths, and the figures of every method."""

    def __init__(self, name: str, case: CorrelationCase, setting: Setting, effort: Effort, folder: Path) -> None:
        self.name, self.case, self.effort, self.folder = name, case, effort, folder
        self.amount = effort.amounts[case.group]
        variance = None if case.variance is None else torch.tensor(case.variance, device=setting.device)
        if case.data is None:
            found = small_networks.load(case.network, setting.options.networks)
            model, train, test = found.model.to(setting.device), found.train, found.test
        else:
            subject = setting.subject(case.noisy, effort.fitted, effort.images)
            model, train, test = subject.model, subject.train, subject.test
        model.requires_grad_(False)
        self.train = train[: effort.fitted].to(setting.device)
        self.noisy = Noisy(model, test[: effort.images].to(setting.device), variance, case.dropout)

    def all(self) -> dict[str, Any]:
        """Return everything about the case."""
        deep, wide = self._truths()
        started = time.perf_counter()
        settings = {
            **{name: each for name, each in asdict(self.effort).items() if name not in ("cases", "amounts")},
            "case": asdict(self.case),
            "truths": [deep.count, wide.count],
        }
        found = _kept(self.folder / f"{self.name}.json", settings, lambda: self._figures(deep, wide))
        _say(f"{self.name}: {time.perf_counter() - started:.0f} s for the methods")
        return {
            "title": self.case.title,
            "network": self.case.network,
            "draws": deep.count,
            "inputs": len(self.noisy.inputs),
            "wide_draws": wide.count,
            "floor": measures.floors(deep),
            **found,
        }

    def _truths(self) -> tuple[Truth, Truth]:
        started = time.perf_counter()
        amount, rows = self.amount, self.amount.rows
        place, few = self.folder / "truths", self.noisy.first(self.effort.deep)
        deep = truths.kept(
            place / f"{self.name}-deep.safetensors", few, amount.draws, rows, _SEEDS["deep"], title=self.case.title
        )
        if len(few.inputs) == len(self.noisy.inputs):
            return deep, deep
        wide = truths.kept(
            place / f"{self.name}-wide.safetensors",
            self.noisy,
            amount.wide_draws,
            rows,
            _SEEDS["wide"],
            keep=0,
            title=self.case.title,
        )
        _say(f"{self.name}: {time.perf_counter() - started:.0f} s for the draws")
        return deep, wide

    def _figures(self, deep: Truth, wide: Truth) -> dict[str, Any]:
        """Return the figures and the cost of every method, and why some are missing."""
        classes, batch = self.case.classes, self.effort.batch
        fitted: Calibration | None = None
        found: dict[str, dict[str, Any]] = {}
        refused: dict[str, str] = {}
        for name, method in METHODS.items():
            if method.full and not self.case.full:
                continue
            with refusal(refused, name):
                if method.calibrated and fitted is None:
                    fitted = self._calibrate()
                found[name] = measures.figures(answer(method, self.noisy, batch, classes, fitted), deep, wide)
        passes = self._costs(list(found), fitted)
        for name, as_long_as in DRAWS.items():
            if as_long_as in found:
                count = min(max(2, round(passes[as_long_as] / passes["draw"])), MOST)
                told = by_draws(self.noisy, count, self.amount.rows, classes, _SEEDS["equal time"])
                found[name] = {**measures.figures(told, deep, wide), "draws": count}
                passes[name] = count * passes["draw"]
        if classes:
            found[TRUE] = {"kl": measures.divergence(_true(wide), wide)}
        for name, figures in found.items():
            figures["cost"] = rounded(passes.get(name), 3)
        return {"methods": found, "bound": rounded(passes.get("bound"), 3), "refused": refused}

    def _calibrate(self) -> Calibration:
        found = momentprop.calibrate(
            self.noisy.model,
            self.train,
            input_variance=self.noisy.variance,
            dropout=self.case.dropout,
            samples=self.effort.samples,
        )
        return found.to(self.train.device)

    def _costs(self, names: Sequence[str], fitted: Calibration | None) -> dict[str, float]:
        """Return the time of each method in passes of the plain network, taken in turns."""
        some = self.noisy.first(self.effort.timed)

        def timed(name: str) -> Callable[[], Any]:
            return lambda: moments(METHODS[name], some, fitted)

        runs: dict[str, Callable[[], Any]] = {name: timed(name) for name in names}
        runs["draw"] = timed_draws(some)
        runs["bound"] = lambda: _ap2_and_backward(some)
        with torch.no_grad():
            found = cost.measured(lambda: some.model(some.inputs), runs)
        return {**found, "draw": found["draw"] / TOGETHER}


def _ap2_and_backward(noisy: Noisy) -> None:
    """Run AP2 and one backward pass by the inputs for each output: the least that an adjoint takes."""
    with torch.enable_grad():
        x = noisy.inputs.clone().requires_grad_()
        options = {"input_variance": noisy.variance, "dropout": noisy.dropout, "covariance": False}
        y = momentprop.propagate(noisy.model, x, **options).loc.flatten(1)
        for unit in range(y.shape[1]):
            torch.autograd.grad(y[:, unit].sum(), x, retain_graph=True)


def _true(truth: Truth) -> Tensor:
    """Return the log class posterior of a normal distribution with the moments of the draws."""
    return posterior_by_draws(truth.moments.loc, truth.covariance)


def _kept(place: Path, settings: Mapping[str, Any], compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what a file holds if it was made with these settings and this source, or compute and keep it."""
    asked = json.loads(json.dumps({**settings, "source": _source()}))
    if place.exists():
        found = json.loads(place.read_text())
        if found["settings"] == asked:
            return found["found"]  # type: ignore[no-any-return]
    found = compute()
    place.parent.mkdir(parents=True, exist_ok=True)
    write_file(place, json.dumps({"settings": asked, "found": found}).encode())
    return found


def _source() -> str:
    """Return a checksum of the library and of this package: numbers of another version are not reused."""
    digest = hashlib.sha256()
    folders = (Path(momentprop.__file__).parent, Path(__file__).parent)
    for file in sorted(file for folder in folders for file in folder.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _say(line: str) -> None:
    """Show the progress where there is no bar."""
    if not sys.stderr.isatty():
        print(line, file=sys.stderr, flush=True)
