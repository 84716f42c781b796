"""The methods that are compared, each by one call of the public interface."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import momentprop
from momentprop.calibration import Calibration
from momentprop.functional import class_posterior
from momentprop.kernels.joint_posterior import log_posterior
from momentprop_experiments.reproduction.correlation.truths import Noisy, drawn
from momentprop_experiments.reproduction.posterior_scores import mean_of_softmax


@dataclass(frozen=True)
class Method:
    """A method: its title, and the arguments of `propagate`."""

    title: str
    options: Mapping[str, Any] = field(default_factory=dict)
    calibrated: bool = False
    full: bool = False  # whether only cases with few units have it


def _probes(count: int) -> Method:
    return Method(f"probes {count}", {"covariance": True, "probes": count, "seed": 0})


METHODS = {
    "ap1": Method("AP1", {"method": "ap1"}),
    "ap2": Method("AP2", {"covariance": False}),
    "linear": Method("linear", {"method": "linear"}),
    "joint": Method("joint", {"covariance": True}),
    "probes16": _probes(16),
    "probes64": _probes(64),
    "calibrated": Method("calibrated", {"covariance": False}, calibrated=True),
    "calibrated-joint": Method("calibrated, joint", {"covariance": True}, calibrated=True),
    "full": Method("full", {"method": "full"}, full=True),
}
"""The methods by name."""

DRAWS = {"draws": "joint", "draws64": "probes64"}
"""Monte Carlo with as many draws as fit into the time of a method."""

TOGETHER = 64
"""Draws of a pass when they are timed."""

MOST = 10_000
"""The most draws, however many would fit into the time."""

TRUE = "true"
"""The normal distribution with the moments of the draws: the best class posterior that moments can give."""

TITLES = {
    **{name: method.title for name, method in METHODS.items()},
    "draws": "draws, as long as joint",
    "draws64": "draws, as long as probes 64",
    TRUE: "true moments",
}


@dataclass(frozen=True)
class Answer:
    """A method's answer for some inputs: what it does not know is None."""

    loc: Tensor  # shape: (inputs, units)
    variance: Tensor | None = None
    covariance: Tensor | None = None  # shape: (inputs, units, units)
    log_q: Tensor | None = None  # shape: (inputs, classes), the log class posterior

    def first(self, count: int) -> "Answer":
        """Return the answer for the first inputs."""
        rest = (None if part is None else part[:count] for part in (self.variance, self.covariance, self.log_q))
        return Answer(self.loc[:count], *rest)


def answer(method: Method, noisy: Noisy, batch: int, classes: bool, calibration: Calibration | None = None) -> Answer:
    """Return the answer of a method, some inputs at a time."""
    size = max(1, batch // max(1, method.options.get("probes", 0) // 4))
    parts = [_answer(method, noisy, some, classes, calibration) for some in noisy.inputs.split(size)]
    rest = (_joined([getattr(part, name) for part in parts]) for name in ("variance", "covariance", "log_q"))
    return Answer(torch.cat([part.loc for part in parts]), *rest)


def moments(method: Method, noisy: Noisy, calibration: Calibration | None = None, inputs: Tensor | None = None) -> Any:
    """Run a method; what it computes only on request is computed."""
    options = {**method.options, **({"calibration": calibration} if method.calibrated else {})}
    if options.get("method") != "ap1":
        options["input_variance"] = noisy.variance
    x = noisy.inputs if inputs is None else inputs
    y = momentprop.propagate(noisy.model, x, dropout=noisy.dropout, **options)
    if hasattr(y, "covariance"):
        _ = y.covariance
    return y


@torch.no_grad()
def _answer(method: Method, noisy: Noisy, x: Tensor, classes: bool, calibration: Calibration | None) -> Answer:
    y = moments(method, noisy, calibration, x)
    loc = y.loc.flatten(1)
    if method.options.get("method") == "ap1":
        return Answer(loc, log_q=loc.log_softmax(-1) if classes else None)
    covariance = getattr(y, "covariance", None)
    if not classes:
        log_q = None
    elif covariance is None:
        log_q = class_posterior(y).logits
    else:
        log_q = log_posterior(loc, covariance)  # `y.probabilities()` in logarithms, which do not underflow
    return Answer(loc, y.variance.flatten(1), covariance, log_q)


def by_draws(noisy: Noisy, count: int, rows: int, classes: bool, seed: int) -> Answer:
    """Return the answer of a number of fresh draws."""
    cuda = [noisy.inputs.device] if noisy.inputs.is_cuda else []
    found: dict[int, list[Tensor]] = {start: [] for start in range(0, len(noisy.inputs), rows)}
    with torch.random.fork_rng(devices=cuda):
        torch.manual_seed(seed)
        for where, some in drawn(noisy, rows):
            found[where.start].append(some)
            if all(sum(map(len, each)) >= count for each in found.values()):
                break
    draws = torch.cat([torch.cat(each)[:count] for each in found.values()], 1).double()
    mean = draws.mean(0)
    apart = draws - mean
    covariance = torch.einsum("nbc,nbd->bcd", apart, apart) / (count - 1)
    variance = covariance.diagonal(dim1=-2, dim2=-1)
    return Answer(mean, variance, covariance, mean_of_softmax(draws) if classes else None)


def timed_draws(noisy: Noisy) -> Callable[[], Any]:
    """Return a function that makes `TOGETHER` draws of every input in one pass."""
    stream = drawn(noisy, TOGETHER * len(noisy.inputs))
    return lambda: next(stream)


def _joined(parts: list[Tensor | None]) -> Tensor | None:
    known = [part for part in parts if part is not None]
    return torch.cat(known) if known else None
