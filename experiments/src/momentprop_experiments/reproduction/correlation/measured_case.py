"""One case of the experiment: its truths, and the figures and costs of every method."""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import momentprop
from momentprop.calibration import Calibration
from momentprop.checking import cost
from momentprop.kernels.joint_posterior import log_posterior
from momentprop_experiments.reproduction.correlation import measures, small_networks, truths
from momentprop_experiments.reproduction.correlation.correlation_cases import CorrelationCase
from momentprop_experiments.reproduction.correlation.effort import Effort
from momentprop_experiments.reproduction.correlation.kept_results import kept
from momentprop_experiments.reproduction.correlation.methods import (
    DRAWS,
    METHODS,
    MOST,
    TOGETHER,
    TRUE,
    answer,
    by_draws,
    moments,
    timed_draws,
)
from momentprop_experiments.reproduction.correlation.refusals import refusal
from momentprop_experiments.reproduction.correlation.truths import Noisy, Truth
from momentprop_experiments.reproduction.noisy_networks import Setting
from momentprop_experiments.reproduction.outcome import rounded

_SEEDS = {"deep": 1, "wide": 2, "equal time": 3}  # of the draws


class MeasuredCase:
    """One case: its network and inputs, its truths, and the figures of every method."""

    def __init__(self, name: str, case: CorrelationCase, setting: Setting, effort: Effort, folder: Path) -> None:
        self.name, self.case, self.effort, self.folder = name, case, effort, folder
        self.amount = effort.amounts[case.group]
        images = min(effort.images, self.amount.images or effort.images)
        variance = None if case.variance is None else torch.tensor(case.variance, device=setting.device)
        if case.data is None:
            found = small_networks.load(case.network, setting.options.networks)
            model, train, test = found.model.to(setting.device), found.train, found.test
        else:
            subject = setting.subject(case.noisy, effort.fitted, images)
            model, train, test = subject.model, subject.train, subject.test
        model.requires_grad_(False)
        self.train = train[: effort.fitted].to(setting.device)
        self.noisy = Noisy(model, test[:images].to(setting.device), variance, case.dropout)

    def all(self) -> dict[str, Any]:
        """Return everything about the case."""
        deep, wide = self.truths()
        started = time.perf_counter()
        settings = {
            **{name: each for name, each in asdict(self.effort).items() if name not in ("cases", "amounts")},
            "case": asdict(self.case),
            "truths": [deep.count, wide.count],
        }
        found = kept(
            self.folder / f"{self.name}.json", settings, lambda: self._figures(deep, wide), self.noisy.inputs.device
        )
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

    def truths(self) -> tuple[Truth, Truth]:
        """Return the truth of the moments and that of the class posteriors, which has more inputs and fewer draws."""
        started = time.perf_counter()
        few = self.noisy.first(self.effort.deep)
        deep = self._truth(few, self.amount.draws, _SEEDS["deep"], truths.KEPT)
        if len(few.inputs) == len(self.noisy.inputs):
            return deep, deep
        wide = self._truth(self.noisy, self.amount.wide_draws, _SEEDS["wide"], 0)
        _say(f"{self.name}: {time.perf_counter() - started:.0f} s for the draws")
        return deep, wide

    def _truth(self, noisy: Noisy, count: int, seed: int, keep: int) -> Truth:
        place = self.folder / "truths" / f"{self.name}-{len(noisy.inputs)}x{count}.safetensors"
        return truths.kept(place, noisy, count, self.amount.rows, seed, keep, self.case.title)

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
            found[TRUE] = {"kl": measures.divergence(log_posterior(wide.moments.loc, wide.covariance), wide)}
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
    """Run AP2 and one backward pass to the inputs for each output: the least that an adjoint takes."""
    with torch.enable_grad():
        x = noisy.inputs.clone().requires_grad_()
        moments = momentprop.propagate(
            noisy.model, x, input_variance=noisy.variance, dropout=noisy.dropout, covariance=False
        )
        y = moments.loc.flatten(1)
        for unit in range(y.shape[1]):
            torch.autograd.grad(y[:, unit].sum(), x, retain_graph=True)


def _say(line: str) -> None:
    """Print the progress if there is no bar."""
    if not sys.stderr.isatty():
        print(line, file=sys.stderr, flush=True)
