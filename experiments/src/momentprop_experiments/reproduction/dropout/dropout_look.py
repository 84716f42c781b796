r"""Examines a network during training with dropout: what AP2 says about it, and what draws say.

A layer is represented by its outputs before the activation. Its ratio is $\sqrt{\sum\sigma_\mathrm{AP2}^2 /
\sum\sigma_\mathrm{draws}^2}$ over units and images, and its correlation the root mean square over pairs of units, minus
what this many draws show for independent ones.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from momentprop.calibration import Calibration
from momentprop.functional import class_posterior
from momentprop.propagate import Family, propagate
from momentprop_experiments.reproduction.outcome import rounded

Images = tuple[Tensor, Tensor]
"""Images and their labels."""


@dataclass(frozen=True)
class Look:
    """How closely to look: the numbers of images for layers and for losses, of units in a layer, and of draws."""

    images: int
    losses: int
    units: int
    draws: int
    predicting: int  # draws of a prediction

    @torch.no_grad()
    def at(
        self,
        model: nn.Module,
        training: Images,
        validation: Images,
        family: Family = "normal",
        calibration: Calibration | None = None,
    ) -> dict[str, Any]:
        """Return the figures of every layer, and the losses and accuracies by AP1, by AP2 and by draws."""
        own = {"family": family, "calibration": calibration}
        model.eval()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            found = {
                "layers": self._layers(model, training[0][: self.images], own),
                "training": self._losses(model, [part[: self.losses] for part in training], own),
                "validation": self._losses(model, validation, own),
            }
        model.train()
        return found

    def _layers(self, model: nn.Module, images: Tensor, own: Mapping[str, Any]) -> dict[str, dict[str, float | None]]:
        """Compare the deviations of AP2 with those of draws, layer by layer."""
        names = [name for name, module in model.named_modules() if isinstance(module, nn.Linear | nn.Conv2d)]
        _, inside = propagate(model, images, dropout=True, covariance=False, record=names, **own)
        drawn = self._drawn(model, names, images)
        found = {}
        for name in names:
            chosen = _chosen(inside[name].loc, self.units)
            told = _units(inside[name].variance, chosen).expand(len(images), -1)
            true = drawn[name].var(0)
            ratio = (told.sum() / true.sum()).sqrt().item() if true.sum() > 0 else None
            found[name] = {"ratio": rounded(ratio), "correlation": rounded(_correlation(drawn[name]))}
        return found

    def _drawn(self, model: nn.Module, names: Sequence[str], images: Tensor) -> dict[str, Tensor]:
        """Return draws of some units of every layer, of shape (draws, images, units)."""
        found: dict[str, list[Tensor]] = {name: [] for name in names}

        def kept(name: str) -> Any:
            return lambda _, __, out: found[name].append(_units(out, _chosen(out, self.units)))

        hooks = [model.get_submodule(name).register_forward_hook(kept(name)) for name in names]
        for _ in range(self.draws):
            _draw(model, images)
        for hook in hooks:
            hook.remove()
        return {name: torch.stack(each).double() for name, each in found.items()}

    def _losses(self, model: nn.Module, given: Sequence[Tensor], own: Mapping[str, Any]) -> dict[str, float | None]:
        """Return the mean of -log q by every method, the mean of the loss over draws, and accuracies."""
        images, labels = given
        told = propagate(model, images, dropout=True, covariance=False, **own)
        log_draws = torch.stack([_draw(model, images).log_softmax(-1) for _ in range(self.predicting)])
        posteriors = {
            "AP1": model(images).log_softmax(-1),
            "AP2": class_posterior(told, -1, "race").logits,
            "draws": log_draws.logsumexp(0) - math.log(self.predicting),
        }
        losses = {f"loss by {name}": F.nll_loss(log_q, labels).item() for name, log_q in posteriors.items()}
        mean = F.nll_loss(log_draws.flatten(0, 1), labels.repeat(self.predicting)).item()
        right = {
            f"accuracy by {name}": (log_q.argmax(-1) == labels).double().mean().item()
            for name, log_q in posteriors.items()
        }
        return {name: rounded(x) for name, x in {**losses, "mean loss of draws": mean, **right}.items()}


def _draw(model: nn.Module, images: Tensor) -> Tensor:
    """Run the model with dropout and nothing else in training mode."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.train()
    logits: Tensor = model(images)
    model.eval()
    return logits


def _chosen(output: Tensor, units: int) -> Tensor:
    """Return the positions of some units of an item, the same in every call."""
    count = output[0].numel()
    return torch.linspace(0, count - 1, min(units, count)).round().long().to(output.device)


def _units(output: Tensor, chosen: Tensor) -> Tensor:
    return output.flatten(1)[:, chosen]


def _correlation(drawn: Tensor) -> float | None:
    """Return the root mean square correlation of two units, over pairs and images; None if nothing is random."""
    count, _, units = drawn.shape
    centred = drawn - drawn.mean(0)
    scaled = centred / centred.square().sum(0).sqrt().clamp(min=torch.finfo(torch.float64).tiny)
    square = torch.einsum("dnu,dnv->nuv", scaled, scaled).square()
    of_pairs = (square.sum((1, 2)) - square.diagonal(dim1=1, dim2=2).sum(1)) / (units * (units - 1))
    if not centred.any():
        return None
    return math.sqrt(max(0.0, of_pairs.mean().item() - 1 / (count - 1)))
