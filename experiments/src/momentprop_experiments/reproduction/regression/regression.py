r"""Regression with noisy inputs: likelihood and coverage of AP2, calibrated AP2 and Monte Carlo dropout.

A network with two outputs, a mean and a variance of the target, is trained on clean inputs, with dropout. Then its
test inputs get noise of a known variance, and a method predicts a normal distribution of the target. Its variance is
the variance of the mean under input noise and dropout, plus the mean of the variance that the network predicts.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import momentprop
from momentprop import Normal
from momentprop.sampling import progress
from momentprop.training import Regression, Settings, fit, gaussian_nll
from momentprop_experiments.options import DEFAULTS, Options
from momentprop_experiments.reproduction.by_seed import BySeed
from momentprop_experiments.reproduction.outcome import Outcome, rounded
from momentprop_experiments.reproduction.regression.regression_data import DATA, RegressionData
from momentprop_experiments.reproduction.regression.regression_report import markdown, plot

NAME = "regression"
TITLE = "Regression with noisy inputs: AP2 and Monte Carlo dropout (table, curves)"

LEVELS = (0.5, 0.9, 0.99)
"""The levels of the intervals for the target."""

TRAINED_BY = {"ap2": "AP2 (analytic dropout)", "sample": "sampled dropout"}


@dataclass(frozen=True)
class RegressionEffort:
    """How much to train and measure."""

    data: Sequence[str]
    epochs: int
    seeds: int
    variances: Sequence[float]  # of the noise on standardized inputs
    counts: Sequence[int]  # Monte Carlo draws
    samples: int  # draws to fit a calibration to
    inputs: int  # inputs to fit it to
    hidden: int = 50
    dropout: float = 0.1


FULL = RegressionEffort(("diabetes", "generated"), 60, 5, (0.0, 0.1, 0.3, 1.0), (8, 32, 128), 300, 64)
QUICK = RegressionEffort(("generated",), 8, 1, (0.0, 0.3), (8, 32, 128), 50, 16)


class MeanAndVariance(nn.Module):
    """Two hidden layers with dropout, and two outputs: the mean and the variance of a target."""

    def __init__(self, inputs: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            *(nn.Linear(inputs, hidden), nn.ReLU(), nn.Dropout(dropout)),
            *(nn.Linear(hidden, hidden), nn.ReLU(), nn.Dropout(dropout)),
        )
        self.mean = nn.Linear(hidden, 1)
        self.variance = nn.Sequential(nn.Linear(hidden, 1), nn.Softplus())

    def forward(self, x: Any) -> Any:
        """Return the mean and the variance."""
        features = self.trunk(x)
        return self.mean(features), self.variance(features)


def run(out: Path, options: Options = DEFAULTS) -> Outcome:
    """Train and measure; `quick` takes the generated data and one seed."""
    effort = QUICK if options.quick else FULL
    measured = []
    with progress(len(effort.data) * effort.seeds * len(TRAINED_BY), NAME) as bar:
        for figures in _measured(effort):
            measured.append(figures)
            bar.update(1)
    data = {**dataclasses.asdict(effort), "trained_by": TRAINED_BY, "figures": _over_seeds(measured)}
    return Outcome(data, markdown(TITLE, data), plot(out, NAME, data))


Figures = dict[tuple[str, ...], float]
"""Metrics by data set, training, noise, method and name."""


def _measured(effort: RegressionEffort) -> Iterator[Figures]:
    for name in effort.data:
        for seed in range(effort.seeds):
            table = DATA[name](seed)
            for method in TRAINED_BY:
                model = trained(table, effort, method, seed)
                yield {
                    (name, method, f"{variance:g}", *key): figure
                    for variance in effort.variances
                    for key, figure in _figures(model, table, effort, variance, seed).items()
                }


def trained(table: RegressionData, effort: RegressionEffort, method: str, seed: int) -> nn.Module:
    """Train a network on the clean training inputs."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = MeanAndVariance(table.train[0].shape[1], effort.hidden, effort.dropout)
    settings = Settings(method=method, epochs=effort.epochs, batch_size=32, learning_rate=3e-3, seed=seed, device="cpu")
    fit(model, table.train, settings, objective=Regression(), progress=False)
    return model.eval()


@torch.no_grad()
def _figures(
    model: nn.Module, table: RegressionData, effort: RegressionEffort, variance: float, seed: int
) -> dict[tuple[str, str], float]:
    generator = torch.Generator().manual_seed(1000 + seed)
    inputs, targets = table.test
    noisy = _noisy(inputs, variance, generator)
    draws = _draws(model, noisy, variance, max(effort.counts), seed)
    noise: dict[str, Any] = {"input_variance": variance or None, "dropout": True}
    fitted_to = table.train[0][: effort.inputs]
    calibration = momentprop.calibrate(model, fitted_to, samples=effort.samples, seed=seed, **noise)
    told = {
        "AP1": _total(*model(noisy)),
        "AP2": _total(*momentprop.propagate(model, noisy, **noise, covariance=False)),
        "calibrated AP2": _total(
            *momentprop.propagate(model, noisy, calibration=calibration, **noise, covariance=False)
        ),
        **{f"Monte Carlo, {count}": _of_draws(draws[0][:count], draws[1][:count]) for count in effort.counts},
    }
    found = {(name, key): figure for name, each in told.items() for key, figure in scores(each, targets).items()}
    for count in effort.counts:
        nll = _mixture_nll(draws[0][:count], draws[1][:count], targets)
        found[f"Monte Carlo, {count}", "nll_of_mixture"] = nll
    return found


def _noisy(inputs: Tensor, variance: float, generator: torch.Generator | None = None) -> Tensor:
    return torch.add(inputs, torch.randn(inputs.shape, generator=generator), alpha=variance**0.5)


def _draws(model: nn.Module, inputs: Tensor, variance: float, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return means and variances for draws of the input and of dropout, of shape (draws, n, 1)."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        repeated = inputs.expand(count, *inputs.shape)
        model.train()
        mean, spread = model(_noisy(repeated, variance))
        model.eval()
    return mean, spread


def _total(mean: Any, variance: Any) -> Normal:
    """Return the distribution of the target, whose variances add up."""
    of_mean = getattr(mean, "variance", 0.0)
    return Normal(getattr(mean, "loc", mean), of_mean + getattr(variance, "loc", variance))


def _of_draws(means: Tensor, variances: Tensor) -> Normal:
    spread, mean = torch.var_mean(means, 0)
    return Normal(mean, spread + variances.mean(0))


def _mixture_nll(means: Tensor, variances: Tensor, targets: Tensor) -> float:
    """Return the NLL of the mixture of the normal distributions that the draws predict."""
    losses = gaussian_nll(means, targets.expand_as(means), variances)
    return math.log(len(means)) - float((-losses).logsumexp(0).mean())


def scores(told: Normal, targets: Tensor) -> dict[str, float]:
    """Return negative log-likelihood, root mean square error, mean deviation, and coverage of intervals.

    >>> scores(Normal(torch.zeros(2, 1), 1.0), torch.tensor([[0.5], [2.0]]))["coverage_90"]
    0.5
    """
    found = {
        "nll": float(gaussian_nll(told, targets).mean()),
        "rmse": float((told.loc - targets).square().mean().sqrt()),
        "deviation": float(told.stddev.mean()),
    }
    for level in LEVELS:
        low, high = told.interval(level)
        found[f"coverage_{100 * level:g}"] = float(((targets >= low) & (targets <= high)).double().mean())
    return found


def _over_seeds(measured: Sequence[Figures]) -> dict[str, Any]:
    """Return mean, standard error and all numbers of the seeds, by data set, training, noise, method and name."""
    nested: dict[str, Any] = {}
    for key in dict.fromkeys(key for figures in measured for key in figures):
        known = [figures[key] for figures in measured if key in figures]
        found = BySeed.of(known)
        place = nested
        for word in key[:-1]:
            place = place.setdefault(word, {})
        place[key[-1]] = {
            "mean": rounded(found.mean),
            "error": rounded(found.error, 2),
            "each": [rounded(x, 6) for x in known],
        }
    return nested
