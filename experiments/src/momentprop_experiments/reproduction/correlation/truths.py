r"""The truth of a case: moments, correlations and class posteriors of many draws, made once and kept.

Draws are plain passes over batches of noisy copies of the inputs. Little of them is kept: the mean, the covariance over
the units and the mean softmax of each half of the draws, from which the error of the whole follows, and some draws
themselves, to count how many an interval holds.
"""

import copy
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from momentprop import Estimate, Sample
from momentprop.sampling import RunningMoments, progress
from momentprop.training import checkpoint as checkpoints
from momentprop.training.checkpoint import Checkpoint, CheckpointError

KEPT = 256
"""The number of draws that are kept of each input, if any are."""

_RUNNING = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@dataclass(frozen=True)
class Noisy:
    """A network with inputs, and what is random in it."""

    model: nn.Module
    inputs: Tensor
    variance: Tensor | None = None  # of the inputs; broadcasts to one of them
    dropout: bool = False

    def first(self, count: int) -> "Noisy":
        """Return the same with the first inputs only."""
        return Noisy(self.model, self.inputs[:count], self.variance, self.dropout)


@dataclass(frozen=True)
class Truth:
    """What many draws say about the outputs for each input; the first dimension of a pair is for the halves."""

    moments: Estimate  # shape: (inputs, units)
    covariances: Tensor  # shape: (2, inputs, units, units), or (1, …) of all draws where no draws are kept
    posteriors: Tensor  # shape: (2, inputs, units), the means of the softmax
    draws: Tensor  # shape: (some draws, inputs, units), standardized: their deviation from the mean over that of all
    count: int  # of all draws

    @property
    def covariance(self) -> Tensor:
        """The covariance of the units."""
        return self.covariances.mean(0)

    @property
    def posterior(self) -> Tensor:
        """The class posterior."""
        return self.posteriors.mean(0)


@torch.no_grad()
def drawn(noisy: Noisy, rows: int) -> Iterator[tuple[slice, Tensor]]:
    """Make draws without end: which inputs, and draws of their outputs, of shape (some, inputs, units).

    `rows` is the number of inputs of a pass. Parts of the inputs take turns.
    """
    model = _acting(noisy.model, noisy.dropout)
    deviation = None if noisy.variance is None else noisy.variance.sqrt()
    while True:
        for start in range(0, len(noisy.inputs), rows):
            some = noisy.inputs[start : start + rows]
            times = max(1, rows // len(some))
            x = some.repeat(times, *(1,) * (some.ndim - 1))
            if deviation is not None:
                x = x + deviation * torch.randn_like(x)
            y = model(Sample(x)).loc
            yield slice(start, start + len(some)), y.reshape(times, len(some), -1)


def _acting(model: nn.Module, dropout: bool) -> nn.Module:
    """Return a copy whose dropout acts if it should, as in `propagate`."""
    found = copy.deepcopy(model).eval()
    for module in found.modules() if dropout else ():
        module.training = not isinstance(module, _RUNNING)
    return found


class _Half:
    """Sums over one half of the draws of some inputs."""

    def __init__(self) -> None:
        self.count, self.sum, self.products, self.softmax = 0, torch.zeros(()), torch.zeros(()), torch.zeros(())
        self.centre: Tensor | None = None

    def add(self, draws: Tensor) -> None:
        draws = draws.double()
        if self.centre is None:
            self.centre = draws.mean(0)  # sums of squares around it lose no digits
        apart = draws - self.centre
        self.count += len(draws)
        self.sum = self.sum + apart.sum(0)
        self.products = self.products + torch.einsum("nbc,nbd->bcd", apart, apart)
        self.softmax = self.softmax + draws.softmax(-1).sum(0)

    def means(self) -> tuple[Tensor, Tensor]:
        """Return the covariance and the mean softmax."""
        mean = self.sum / self.count
        whole = self.products - self.count * mean[..., :, None] * mean[..., None, :]
        return whole / (self.count - 1), self.softmax / self.count


class _Part:
    """The draws of some inputs, summed up."""

    def __init__(self) -> None:
        self.moments, self.halves, self.some = RunningMoments(), (_Half(), _Half()), list[Tensor]()
        self.single = 0  # the half that gets the next single draw

    def add(self, draws: Tensor, keep: int) -> None:
        """Add draws to the halves in turns, and keep the first ones."""
        self.some.append(draws[: max(keep - self.moments.count, 0)].float())
        self.moments.add(draws)
        for i, half in enumerate((self.single, 1 - self.single)):
            if len(draws) > i:
                self.halves[half].add(draws[i::2])
        self.single = (self.single + len(draws)) % 2


def draw(noisy: Noisy, count: int, rows: int, seed: int, keep: int = KEPT, title: str = "draws") -> Truth:
    """Make at least this many draws of every input, and keep the first ones."""
    parts = {start: _Part() for start in range(0, len(noisy.inputs), rows)}
    cuda = [noisy.inputs.device] if noisy.inputs.is_cuda else []
    with torch.random.fork_rng(devices=cuda), progress(len(parts) * count, title) as bar:
        torch.manual_seed(seed)
        for where, draws in drawn(noisy, rows):
            parts[where.start].add(draws, keep)
            bar.update(len(draws))
            if min(part.moments.count for part in parts.values()) >= count:
                break
    estimates = [part.moments.estimate(torch.float32) for part in parts.values()]
    names = ("loc", "variance", "loc_error", "variance_error")
    moments = Estimate(*(torch.cat([getattr(each, name) for each in estimates]) for name in names))
    means = [[part.halves[half].means() for part in parts.values()] for half in (0, 1)]
    some = [torch.cat(part.some) for part in parts.values()]
    fewest = min(len(each) for each in some)
    covariances = torch.stack([torch.cat([covariance for covariance, _ in half]) for half in means]).float()
    return Truth(
        moments,
        covariances if keep else covariances.mean(0, keepdim=True),
        torch.stack([torch.cat([posterior for _, posterior in half]) for half in means]),
        (torch.cat([each[:fewest] for each in some], 1) - moments.loc) / moments.stddev,
        min(part.moments.count for part in parts.values()),
    )


def kept(place: Path, noisy: Noisy, count: int, rows: int, seed: int, keep: int = KEPT, title: str = "draws") -> Truth:
    """Return the truth from its file if that was made with the same settings, or make and store it."""
    settings = _settings(noisy, count, seed)
    try:
        found = checkpoints.read(place) if place.exists() else None
    except CheckpointError:
        found = None  # it is made again
    if found is None or found.state != settings:
        place.parent.mkdir(parents=True, exist_ok=True)
        checkpoints.write(place, Checkpoint(settings, _tensors(draw(noisy, count, rows, seed, keep, title))))
        found = checkpoints.read(place)
    tensors = {name: tensor.to(noisy.inputs.device) for name, tensor in found.tensors.items()}
    moments = Estimate(*tensors["moments"].unbind())
    return Truth(
        moments, tensors["covariances"], tensors["posteriors"], tensors["draws"].float(), int(tensors["count"])
    )


def _tensors(truth: Truth) -> dict[str, Tensor]:
    moments = truth.moments
    return {
        "moments": torch.stack([moments.loc, moments.variance, moments.loc_error, moments.variance_error]),
        "covariances": truth.covariances,
        "posteriors": truth.posteriors,
        "draws": truth.draws.half(),
        "count": torch.tensor(truth.count),
    }


def _settings(noisy: Noisy, count: int, seed: int) -> dict[str, Any]:
    """Return everything that the truth depends on; weights and inputs as a checksum."""
    digest = hashlib.sha256()
    for tensor in (*noisy.model.state_dict().values(), noisy.inputs):
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return {
        "what": digest.hexdigest(),
        "variance": None if noisy.variance is None else json.loads(json.dumps(noisy.variance.tolist())),
        "dropout": noisy.dropout,
        "draws": count,
        "seed": seed,
    }
