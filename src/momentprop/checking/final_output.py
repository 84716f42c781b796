"""The final output of a network: its class probabilities, and the units that a report shows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from momentprop.checking.accumulators import Histogram
from momentprop.checking.joint_output import Correlations, JointOutput, log_posterior, marginal
from momentprop.functional.posterior import class_posterior
from momentprop.rules.reductions.softmax import MOST_RACING_INDEPENDENT
from momentprop.sampling import RunningMoments
from momentprop.values import Categorical, Certain, Estimate, Joint, Normal
from momentprop.values.uncertain import Uncertain

Classes = int | Literal["auto"] | None
"""The dimension of the classes, None if the output is not logits, or "auto" to detect it."""

MOST_UNITS = 10
"""The largest number of units shown of an output."""


@dataclass
class Probabilities:
    """Class probabilities of every row by draws, and their logarithms by each method and figure."""

    truth: Tensor  # shape: (rows, classes)
    variance: Tensor  # of the softmax over draws
    log_q: dict[str, dict[str, Tensor]]


@dataclass
class ShownUnits:
    """Some output units of one input: their histograms, moments and positions in the output."""

    input: int
    step: int  # rows per input, such as the positions of a text; the report shows the first
    units: list[int]
    counts: Tensor  # shape: (units, bins)
    center: Tensor
    width: Tensor
    truth: Estimate
    values: dict[str, Any]

    @property
    def row(self) -> int:
        """The row of the output that is shown."""
        return self.input * self.step


class FinalOutput:
    """Accumulates draws of the final output."""

    def __init__(self, values: Mapping[str, Any], name: str, classes: Classes, show: Sequence[int]) -> None:
        first = next(iter(values.values()))
        self.dim = _class_dim(first, name, classes)
        self.all_values = values
        told = {method: value for method, value in values.items() if isinstance(value, Uncertain | Certain)}
        self.values = {method: marginal(value) for method, value in told.items()}
        self.joint = JointOutput(told)
        self.are_probabilities: bool | None = None  # or logits; the first draw decides
        self.softmax = RunningMoments()
        self.moments = RunningMoments()
        self._choose(first, [i for i in show if i < (first.shape[0] if first.ndim else 1)])

    def _choose(self, first: Any, inputs: Sequence[int]) -> None:
        loc = self._rows(first.loc)
        rows, units = loc.shape
        self.step = rows // first.shape[0] if first.ndim else 1
        self.chosen = {i: _most_likely(loc[i * self.step], self.dim is not None) for i in inputs}
        picks = [i * self.step * units + unit for i, chosen in self.chosen.items() for unit in chosen]
        self.index = torch.tensor(picks, dtype=torch.long, device=loc.device)
        self.histogram = Histogram(*self._bins(loc.flatten()[self.index]))

    def _bins(self, loc: Tensor) -> tuple[Tensor, Tensor]:
        """The center and the initial width of the bins: an eighth of a deviation, if some method knows it."""
        width = loc.abs().double().clamp(min=1e-6) * 1e-3
        told = next((value for value in self.values.values() if isinstance(value, Uncertain)), None)
        if told is None:
            return loc, width
        value = self._at_index(told)
        return value.loc, torch.where(value.stddev > 0, value.stddev / 8, width)

    def _rows(self, tensor: Tensor, stacked: int = 0) -> Tensor:
        """The output as rows of units; if it has classes, they are the units."""
        if self.dim is not None:
            tensor = tensor.movedim(self.dim, -1)
            return tensor.flatten(stacked, -2) if tensor.ndim > stacked + 1 else tensor.unsqueeze(-2)
        tensor = tensor if tensor.ndim > stacked else tensor.unsqueeze(-1)
        return tensor.flatten(stacked + 1) if tensor.ndim > stacked + 1 else tensor.unsqueeze(-1)

    def add(self, draws: Tensor) -> None:
        """Add draws, stacked along the first dimension."""
        rows = self._rows(draws, stacked=1)
        if self.dim is not None:
            if self.are_probabilities is None:
                self.are_probabilities = _are_probabilities(rows)
            self.softmax.add(rows if self.are_probabilities else torch.softmax(rows.double(), -1))
        chosen = rows.flatten(1)[:, self.index]
        if not chosen.isfinite().all():
            raise ValueError(
                "some draws of the output are NaN, or infinite where its mean is not, so that they have no variance: "
                "make the noise smaller, or change the model"
            )
        self.moments.add(chosen)
        self.histogram.add(chosen)
        self.joint.add(draws)

    def correlations(self) -> Correlations | None:
        """The correlations of the units of an input, if a method tells them."""
        return self.joint.correlations()

    def probabilities(self) -> Probabilities | None:
        """The class probabilities, if the output has classes."""
        if self.dim is None:
            return None
        truth = self.softmax.estimate(torch.float64)
        log_q = {}
        for name, value in self.all_values.items():
            found = log_posteriors(value, self.dim, bool(self.are_probabilities))
            log_q[name] = {figure: logits.reshape(-1, logits.shape[-1]).cpu() for figure, logits in found.items()}
        return Probabilities(truth.loc.cpu(), truth.variance.cpu(), log_q)

    def shown(self) -> list[ShownUnits]:
        """The chosen units, input by input."""
        if not self.chosen:
            return []
        sizes = [len(units) for units in self.chosen.values()]
        histogram = self.histogram
        counts, center, width = (x.cpu().split(sizes) for x in (histogram.counts, histogram.center, histogram.width))
        truth = _split(self.moments.estimate(torch.float64), sizes)
        values = {name: _split(self._at_index(value), sizes) for name, value in self.values.items()}
        return [
            ShownUnits(
                i, self.step, units, counts[k], center[k], width[k], truth[k], {m: v[k] for m, v in values.items()}
            )
            for k, (i, units) in enumerate(self.chosen.items())
        ]

    def _at_index(self, value: Any) -> Any:
        return value.each(lambda part: self._rows(part).flatten()[self.index].double())


def _split(value: Any, sizes: Sequence[int]) -> Any:
    return value.each(lambda part: part.cpu().split(sizes))


def log_posteriors(value: Any, dim: int, is_probability: bool) -> dict[str, Tensor]:
    """The logarithms of class probabilities in float64, classes last; logits pass each softmax approximation."""
    if isinstance(value, Categorical):
        found = {"kl": value.logits}
    elif is_probability:
        found = {"kl": value.loc.double().movedim(dim, -1).log()}
    elif isinstance(value, Joint) and value.batch_dim != dim % value.ndim:
        found = {"kl_joint": log_posterior(value, dim)}
    elif isinstance(value, Uncertain):
        normal: Any = Normal.of(value.loc.double(), value.variance.double())
        few = normal.shape[dim] <= MOST_RACING_INDEPENDENT
        methods: tuple[Any, ...] = ("simplified", "logistic", "race") if few else ("simplified", "fast")
        found = {f"kl_{method}": class_posterior(normal, dim, method).logits for method in methods}
    else:
        found = {"kl": value.loc.movedim(dim, -1)}
    return {figure: torch.log_softmax(logits.double(), -1) for figure, logits in found.items()}


def _are_probabilities(rows: Tensor) -> bool:
    return bool((rows >= 0).all() and ((rows.double().sum(-1) - 1).abs() < 1e-3).all())


def _class_dim(value: Any, name: str, classes: Classes) -> int | None:
    """The dimension of the classes, counted from the end."""
    if classes is None:
        return None
    if isinstance(classes, int):
        return classes if classes < 0 else classes - value.ndim
    if isinstance(value, Categorical):
        return -1
    is_logits = name.endswith(".logits")
    if value.ndim == 4 and is_logits:
        return -3  # an image of logits
    return -1 if (value.ndim == 2 or is_logits) and value.shape[-1] > 1 else None


def _most_likely(loc: Tensor, classes: bool) -> list[int]:
    """The units of a row to show: the likeliest classes, or the first units."""
    finite = loc.isfinite().nonzero().flatten()  # masked units have no distribution to show
    count = min(MOST_UNITS, len(finite))
    return sorted(finite[loc[finite].topk(count).indices].tolist()) if classes else finite[:count].tolist()
