"""Are gradients masked? Attacks with more steps and restarts, from other networks, and without gradients.

A defence that only hides its gradients looks stable under the attacks of `stability`. It would give itself away
(Athalye and others 2018): single steps would be as strong as many, random changes as strong as gradients, attacks made
on another network stronger than its own, and a large change would still leave it right. The networks come from
`stability`, with LeNets from `stability-deep`, which without a GPU are trained for two epochs of 10,000 images.
"""

import dataclasses
import functools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop.files import write_file
from momentprop.sampling import progress
from momentprop.training.distributed import as_device
from momentprop_experiments.attacks import LogPosterior, gradient_sign, projected_descent, restarted_descent
from momentprop_experiments.options import DEFAULTS, Options
from momentprop_experiments.provenance import provenance
from momentprop_experiments.reproduction.outcome import Outcome, rounded
from momentprop_experiments.reproduction.stability import stability, stability_deep
from momentprop_experiments.reproduction.stability.attack_strength_report import markdown, plot
from momentprop_experiments.reproduction.stability.robustness import Trials, first, posterior_of, training_loss
from momentprop_experiments.runs.config import Config
from momentprop_experiments.runs.schedule import complete
from momentprop_experiments.runs.training_run import load_data, load_model

NAME = "stability-attacks"
TITLE = "Are gradients masked? Restarts, attacks from other networks and without gradients (table, figure)"

_MLP = {
    "standard": ("AP1",),
    "batch-norm": ("AP1",),
    "noise-drawn": ("AP1",),
    "bernoulli-ap2": ("AP2", "AP1"),
    "bernoulli-drawn": ("AP2", "sampling"),
    "bernoulli-norm": ("AP2",),
}
_LENET = {
    "standard": ("AP1",),
    "batch-norm": ("AP1",),
    "noise-ap2": ("AP2",),
    "bernoulli-ap2": ("AP2",),
    "bernoulli-drawn": ("AP1",),
}


@dataclass(frozen=True)
class Strength:
    """How strong the attacks are, and on how many test images."""

    images: int
    steps: int
    restarts: int
    levels: tuple[float, ...]
    large: float  # a change that must make every answer wrong
    noise: float  # the deviation of drawn noise
    random: int = 10  # tries of random signs
    draws: int = 64
    gradient_draws: int = 16


@dataclass(frozen=True)
class Subject:
    """The networks to attack, and how."""

    trials: Trials
    runs: str  # the experiment whose runs these are
    strength: Strength


_SHORT = {"epochs": 2, "train_images": 10_000}
_MLP_STRENGTH = Strength(300, 20, 3, (0.1, 0.2), 1.0, 1.0)
_LENET_STRENGTH = Strength(80, 10, 2, (0.1, 0.2), 1.5, 1.0)


def subjects(options: Options) -> dict[str, Subject]:
    """Return the networks to attack; a GPU attacks more images of each, and the fully trained LeNets."""
    if options.quick:
        effort = dataclasses.replace(stability.QUICK, seeds=2)
        strength = Strength(40, 5, 2, (0.2,), 2.0, 1.0, random=2, draws=8, gradient_draws=4)
        return {"mlp": Subject(_trials(effort, stability.NETWORKS, _MLP, ""), stability.NAME, strength)}
    on_cpu = as_device(options.device).type == "cpu"
    mlp = dataclasses.replace(stability.FULL, seeds=3 if on_cpu else 5)
    lenet, short = stability_deep.LENET, {"train_images": _SHORT["train_images"]} if on_cpu else {}
    if on_cpu:
        lenet = dataclasses.replace(lenet, epochs=_SHORT["epochs"])
    kinds = {
        name: {**settings, "init": "bn", "graph": True, **short} for name, settings in stability_deep.KINDS.items()
    }
    more: dict[str, Any] = {} if on_cpu else {"images": 1000, "steps": 40, "restarts": 10}
    strengths = [dataclasses.replace(each, **more) for each in (_MLP_STRENGTH, _LENET_STRENGTH)]
    prefix = "lenet-short-" if on_cpu else "lenet-"
    return {
        "mlp": Subject(_trials(mlp, stability.NETWORKS, _MLP, ""), stability.NAME, strengths[0]),
        "lenet": Subject(_trials(lenet, kinds, _LENET, prefix), stability_deep.NAME, strengths[1]),
    }


def _trials(effort: Any, kinds: Any, tried: Any, prefix: str) -> Trials:
    return Trials(effort, {name: kinds[name] for name in tried}, tried, prefix)


def run(out: Path, options: Options = DEFAULTS) -> Outcome:
    """Train what is missing, and attack every network that is trained; `quick` takes two seeds of the MLP."""
    data: dict[str, Any] = {"networks": {}, "missing": []}
    for name, subject in subjects(options).items():
        folder = options.runs_of(subject.runs)
        if complete(subject.trials.runs(options.device), folder, options):
            data["missing"].append(name)
            continue
        effort = subject.trials.effort
        bench = Bench(subject, folder, options)
        each = [(kind, method) for kind, methods in subject.trials.tried.items() for method in methods]
        found: dict[str, Any] = {f"{kind}, {method}": [] for kind, method in each}
        with progress(effort.seeds * len(each), f"{NAME}, {name}") as bar:
            for seed in range(effort.seeds):
                for kind, method in each:
                    found[f"{kind}, {method}"].append(bench.result(kind, method, seed))
                    bar.update(1)
        about = {"data": effort.data, "epochs": effort.epochs, "seeds": effort.seeds}
        losses = {
            kind: [training_loss(folder / subject.trials.place(kind, seed)) for seed in range(effort.seeds)]
            for kind in subject.trials.kinds
        }
        strength = dataclasses.asdict(subject.strength)
        data["networks"][name] = {**about, **strength, "training_loss": losses, "found": found}
    return Outcome(data, markdown(TITLE, data), plot(out, NAME, data))


class Bench:
    """The trained networks of a subject, and the images that attacks on them made."""

    def __init__(self, subject: Subject, folder: Path, options: Options) -> None:
        self.subject, self.folder, self.options = subject, folder, options
        self.device = as_device(options.device)
        self.posterior = functools.cache(self._posterior)
        self.made_on = functools.cache(self._made_on)

    def result(self, kind: str, method: str, seed: int) -> dict[str, Any]:
        """Attack a network under a method, or read what an earlier call found."""
        file = self.folder / self.subject.trials.place(kind, seed) / f"attacks-{method}.json"
        of = json.loads(json.dumps([dataclasses.asdict(self.subject.strength), self._test(kind, seed)]))
        if file.exists():
            kept: dict[str, Any] = json.loads(file.read_text())
            if kept["of"] == of:
                return dict(kept["found"])
        started = time.perf_counter()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            found = self._attacked(kind, method, seed)
        found["made"] = provenance(self.device, time.perf_counter() - started)
        write_file(file, json.dumps({"of": of, "found": found}).encode())
        return found

    def _test(self, kind: str, seed: int) -> Any:
        """Return the test figures of a run, which distinguish it from another in the same folder."""
        place = self.folder / self.subject.trials.place(kind, seed)
        return json.loads((place / "result.json").read_text())["test"]

    def _posterior(self, kind: str, method: str, seed: int) -> tuple[LogPosterior, LogPosterior, Tensor, Tensor]:
        """Return the class posterior, the one to attack, and images and labels."""
        place, strength = self.folder / self.subject.trials.place(kind, seed), self.subject.strength
        model, about = load_model(place)
        config = Config.from_dict(about["config"])
        images, labels = first(load_data(config, self.options.root).test, strength.images, self.device)
        exact = torch.float32 if method == "sampling" else torch.float64  # as in `robustness`
        model = model.to(self.device, exact).requires_grad_(False)
        made = posterior_of(model, method, config, place)
        return made(strength.draws), made(strength.gradient_draws), images.to(exact), labels

    def _made_on(self, kind: str, method: str, seed: int, level: float) -> Tensor:
        """Return the images at the end of a projected descent on this network."""
        _, attacked, images, labels = self.posterior(kind, method, seed)
        return projected_descent(attacked, images, labels, level, self.subject.strength.steps)

    def _attacked(self, kind: str, method: str, seed: int) -> dict[str, Any]:
        told, attacked, images, labels = self.posterior(kind, method, seed)
        strength = self.subject.strength
        by_level = [dict(self._at(kind, method, seed, level)) for level in strength.levels]
        right = _judge(told, labels)
        noisy = images + strength.noise * torch.randn_like(images)
        far = projected_descent(attacked, images, labels, strength.large, strength.steps)
        return {
            "clean": _share(right(images)[0]),
            "noise": _share(right(noisy)[0]),
            "large change": _share(right(far)[0]),
            "attacks": {name: [level[name] for level in by_level] for name in by_level[0]},
        }

    def _at(self, kind: str, method: str, seed: int, level: float) -> Iterator[tuple[str, dict[str, float | None]]]:
        """Yield the accuracy and the mean loss under every attack of one level, and under the strongest for each."""
        told, attacked, images, labels = self.posterior(kind, method, seed)
        strength, right = self.subject.strength, _judge(told, labels)
        other = (seed + 1) % self.subject.trials.effort.seeds
        sign = gradient_sign(attacked, images, labels)
        descents = restarted_descent(attacked, images, labels, level, strength.steps, strength.restarts)
        changes: dict[str, Sequence[Tensor] | Iterator[Tensor]] = {
            "random signs": [images + level * torch.randn_like(images).sign() for _ in range(strength.random)],
            "gradient sign": [images + level * sign],
            "descent": [self.made_on(kind, method, seed, level)],
            "descent with restarts": descents,
            "from the standard network": [self.made_on("standard", "AP1", other, level).to(images)],
            "from its twin": [self.made_on(kind, method, other, level)],
        }
        strongest = torch.ones_like(labels, dtype=torch.bool)
        for name, changed in changes.items():
            tried = [right(each) for each in changed]
            standing = torch.stack([each for each, _ in tried]).all(0)
            strongest &= standing
            yield name, {"accuracy": _share(standing), "loss": rounded(sum(loss for _, loss in tried) / len(tried))}
        yield "strongest", {"accuracy": _share(strongest), "loss": None}


def _judge(told: LogPosterior, labels: Tensor) -> Callable[[Tensor], tuple[Tensor, float]]:
    """Return a function from images to which of them are right, and the mean loss."""

    @torch.no_grad()
    def right(images: Tensor) -> tuple[Tensor, float]:
        log_q = told(images)
        return log_q.argmax(-1) == labels, F.nll_loss(log_q, labels).item()

    return right


def _share(right: Tensor) -> float:
    return float(right.double().mean())
