r"""What a calibration can depend on: trials on the CIFAR network; `momentprop.calibrate` keeps what pays.

A calibration predicts from the propagated value how far AP2 is off, and corrects it. Each trial is one way to predict:
layer by layer, from front to back, it fits a prediction of $\log(\sigma^{*2}/\sigma^2)$, and sometimes of
$(\mu^* - \mu)/\sigma^*$. A trial is a list of stages, each fitted to what the earlier ones leave.
`momentprop.calibrate` works like "state, then log v of all channels, rank 16", with shrinkage.

    python benchmarks/calibration_trials.py --root DATA --out results/benchmarks

It takes two minutes on an H200, and needs CIFAR-10 (`momentprop data get cifar10`).
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from momentprop import Normal, Sample
from momentprop.checking import metrics
from momentprop.data import load
from momentprop.functional import class_posterior
from momentprop.markdown import table
from momentprop.values import Estimate
from momentprop_experiments.provenance import start
from momentprop_experiments.runs import trained_networks

MIXING = (nn.Conv2d, nn.AdaptiveAvgPool2d)
CASES = {
    "LReLU, input variance 0.01": ("cifar-lrelu", 0.01, False),
    "LReLU, input variance 0.1": ("cifar-lrelu", 0.1, False),
    "LReLU, dropout 0.2": ("cifar-dropout", None, True),
    "Bernoulli": ("cifar-bernoulli", None, False),
    "logistic transform, input variance 0.1": ("cifar-logistic", 0.1, False),
}

Predict = Callable[[Normal], Tensor]
Stage = Callable[[Normal, Tensor], Predict]
"""A function from an uncorrected value and a target of its shape to a fitted prediction of the target."""


@dataclass(frozen=True)
class Trial:
    """Stages for the logarithm of the variance, and stages for the mean."""

    title: str
    variance: Sequence[Stage] = ()
    mean: Sequence[Stage] = ()
    oracle: bool = False


@dataclass(frozen=True)
class TrialNetwork:
    """A network and its noise, to observe by draws and to propagate with corrections."""

    model: nn.Sequential
    variance: float | None
    dropout: bool

    def layers(self) -> list[nn.Module]:
        """Return the layers, with dropout active if it is part of the noise."""
        self.model.eval()
        for module in self.model:
            if isinstance(module, nn.Dropout):
                module.train(self.dropout)
        return list(self.model)

    @torch.no_grad()
    def observe(self, images: Tensor, samples: int, at_once: int = 4096) -> tuple[dict[int, Estimate], Tensor]:
        """Return the moments after every mixing layer, and the mean class probabilities, over `samples` draws."""
        layers, sums, probabilities, done = self.layers(), {}, 0.0, 0
        origin: dict[int, Tensor] = {}
        while done < samples:
            repeats = min(max(at_once // len(images), 1), samples - done)
            x: Any = images.repeat(repeats, 1, 1, 1)
            x = Sample(x if self.variance is None else x + self.variance**0.5 * torch.randn_like(x))
            for i, layer in enumerate(layers):
                x = layer(x)
                if isinstance(layer, MIXING):
                    draws = x.loc.reshape(repeats, len(images), *x.shape[1:])
                    origin.setdefault(i, draws.mean(0))  # near the mean, so that the sums of squares do not cancel
                    centred = draws - origin[i]
                    first, second = sums.get(i, (0.0, 0.0))
                    sums[i] = (first + centred.sum(0).double(), second + centred.square().sum(0).double())
            probabilities = probabilities + x.loc.softmax(-1).reshape(repeats, len(images), -1).sum(0).double()
            done += repeats
        found = {}
        for i, (first, second) in sums.items():
            variance = ((second - first * first / samples) / (samples - 1)).float()
            mean = (origin[i].double() + first / samples).float()
            found[i] = Estimate(mean, variance, (variance / samples).sqrt(), variance * (2 / samples) ** 0.5)
        return found, probabilities / samples

    @torch.no_grad()
    def propagate(self, images: Tensor, correct: Callable[[int, Normal], Normal]) -> dict[int, Normal]:
        """Run AP2 with a correction after every mixing layer; return the corrected values, and the output at -1."""
        x: Any = Normal(images, self.variance or 0.0)
        found = {}
        for i, layer in enumerate(self.layers()):
            given, x = x, layer(x)
            if isinstance(layer, MIXING):
                x.given = given
                x = found[i] = correct(i, x)
        return {**found, -1: x}


def fit(case: TrialNetwork, images: Tensor, truth: dict[int, Estimate], trial: Trial) -> dict[int, Any]:
    """Fit the predictions of a trial for every mixing layer."""
    found: dict[int, Any] = {}

    def learn(i: int, value: Normal) -> Normal:
        target = (truth[i].variance / value.variance).log()
        target = torch.where(target.isfinite(), target, 0.0)
        factors = _fit_stages(trial.variance, value, target)
        shifts = _fit_stages(trial.mean, value, (truth[i].loc - value.loc) / truth[i].variance.clamp(min=1e-20).sqrt())
        found[i] = (factors, shifts)
        return apply(found, i, value)

    case.propagate(images, learn)
    return found


def _fit_stages(stages: Sequence[Stage], value: Normal, target: Tensor) -> list[Predict]:
    found: list[Predict] = []
    for stage in stages:
        found.append(stage(value, target))
        target = target - found[-1](value)
    return found


def apply(found: dict[int, Any], i: int, value: Normal) -> Normal:
    """Correct a value with the predictions of its layer."""
    factors, shifts = found[i]
    variance = value.variance
    if factors:
        variance = variance * sum(predict(value) for predict in factors).clamp(-8, 8).exp()
    loc = value.loc
    if shifts:
        loc = loc + variance.sqrt() * sum(predict(value) for predict in shifts)
    return value.of(loc, variance)


def _units(x: Tensor) -> Tensor:
    """Reshape units to (channels, images and positions)."""
    return x.transpose(0, 1).flatten(1)


def _state(names: str) -> Callable[[Normal], Tensor]:
    """Return a function that stacks features of a unit's own state, chosen by name, along a new first dimension."""

    def features(value: Normal) -> Tensor:
        log_v = value.variance.clamp(min=1e-20).log()
        a = (value.loc / value.variance.clamp(min=1e-20).sqrt()).clamp(-6, 6)
        known = {
            "1": torch.ones_like(a),
            "v": log_v,
            "a": a,
            "aa": a * a,
            "vv": log_v * log_v,
            "va": log_v * a,
            "aaa": a * a * a,
            "|a|": a.abs(),
            "on": torch.sigmoid(1.6 * a),
            "m": value.loc,
            "image": log_v.mean((1, 2, 3), keepdim=True).expand_as(a),
            "near": log_v.mean(1, keepdim=True).expand_as(a),
        }
        return torch.stack([known[name] for name in names.split()])

    return features


def per_channel(names: str, weigh: float = 0.0, ridge: float = 1e-4) -> Stage:
    """Fit least squares in each channel, with the variance to the power of `weigh` as weights."""
    features = _state(names)

    def stage(value: Normal, target: Tensor) -> Predict:
        x = features(value).transpose(1, 2).flatten(2).double()  # features, channels, units
        y, w = _units(target).double(), _units(value.variance).double().clamp(min=1e-20) ** weigh
        gram = torch.einsum("fcu,gcu,cu->cfg", x, x, w) / w.sum(1)[:, None, None]
        right = torch.einsum("fcu,cu,cu->cf", x, y, w) / w.sum(1)[:, None]
        gram = gram + ridge * torch.diag_embed(torch.diagonal(gram, dim1=1, dim2=2) + 1e-12)
        coefficients = torch.linalg.solve(gram, right).float()
        low, high = features(value).amin((1, 3, 4)), features(value).amax((1, 3, 4))

        def predict(value: Normal) -> Tensor:
            x = features(value).clamp(low[:, None, :, None, None], high[:, None, :, None, None])
            return torch.einsum("fnchw,cf->nchw", x, coefficients)

        return predict

    return stage


def per_layer(value: Normal, target: Tensor) -> Predict:
    """Fit one factor for all units of a layer."""
    mean = target.mean()
    return lambda value: mean.expand_as(value.loc)


def per_position(value: Normal, target: Tensor) -> Predict:
    """Fit one factor for each position, for all channels."""
    mean = target.mean((0, 1))
    return lambda value: mean.expand_as(value.loc)


def per_unit(value: Normal, target: Tensor) -> Predict:
    """Fit one factor for each channel and position, shrunk by its error over the images."""
    error = target.var(0) / len(target)
    spread = (target.mean(0).square().mean() - error.mean()).clamp(min=0)
    mean = target.mean(0) * spread / (spread + error + 1e-12)
    return lambda value: mean.expand_as(value.loc)


def across(rank: int | None, names: str = "v a", more: str = "", components: int | None = None) -> Stage:
    """Fit reduced-rank ridge regression on features of all channels at a position; held-out images choose the ridge.

    `more` adds the means of the features over the image or over 3 by 3 positions, or features of the layer's input
    under its kernel; `components` limits the features to that many principal components.
    """

    def rows(value: Any) -> Tensor:
        maps = _maps(value, names)
        if more == "image":
            maps = torch.cat([maps, maps.mean((2, 3), keepdim=True).expand_as(maps)], 1)
        if more == "near":
            near = F.avg_pool2d(maps, 3, 1, 1, count_include_pad=False) if maps.shape[-1] > 1 else maps
            maps = torch.cat([maps, near], 1)
        if more == "input":
            maps = torch.cat([maps, _under_kernel(_maps(value.given, "v m"), value)], 1)
        return maps.permute(0, 2, 3, 1).flatten(0, 2)  # units, features

    def stage(value: Normal, target: Tensor) -> Predict:
        x, y = rows(value), target.permute(0, 2, 3, 1).flatten(0, 2).double()
        mean, std = x.mean(0), x.std(0) + 1e-6
        x = ((x - mean) / std).double()
        basis = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
        if components is not None and components < x.shape[1]:
            basis = torch.linalg.eigh(x.T @ x)[1][:, -components:]
            x = x @ basis
        cut = len(x) * 3 // 4  # whole images: units are in the order of images
        ridges = [10.0 ** (k / 2) for k in range(-8, 5)]
        losses = [(x[cut:] @ _ridge(x[:cut], y[:cut], r) - y[cut:]).square().mean() for r in ridges]
        best = min(range(len(ridges)), key=lambda i: float(losses[i]))
        coefficients = _ridge(x, y, ridges[best])
        if losses[best] > y[cut:].square().mean():
            coefficients = torch.zeros_like(coefficients)
        if rank is not None:
            right = torch.linalg.svd(x @ coefficients if len(x) < 4096 else _root(x.T @ x) @ coefficients)[2]
            coefficients = coefficients @ right[:rank].T @ right[:rank]
        coefficients = (basis @ coefficients).float()

        def predict(value: Normal) -> Tensor:
            y = ((rows(value) - mean) / std).clamp(-4, 4) @ coefficients
            n, c, h, w = value.shape
            return y.reshape(n, h, w, c).permute(0, 3, 1, 2)

        return predict

    return stage


def _maps(value: Normal, names: str) -> Tensor:
    """Return the features of all channels along the channel dimension."""
    return _state(names)(value).transpose(0, 1).flatten(1, 2)


def _under_kernel(maps: Tensor, like: Normal) -> Tensor:
    """Average maps over roughly the receptive field of a layer without padding."""
    return F.adaptive_avg_pool2d(maps, like.shape[2:])


def _root(gram: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(gram)
    return values.clamp(min=0).sqrt()[:, None] * vectors.T


def _ridge(x: Tensor, y: Tensor, ridge: float) -> Tensor:
    gram = x.T @ x / len(x)
    return torch.linalg.solve(gram + ridge * torch.eye(len(gram), dtype=x.dtype, device=x.device), x.T @ y / len(x))


STATE = per_channel("1 v a aa")
TRIALS = [
    Trial("plain AP2"),
    Trial("a factor for each layer", [per_layer]),
    Trial("a factor for each channel", [per_channel("1")]),
    Trial("+ log v", [per_channel("1 v")]),
    Trial("+ log v, a, a^2 (state)", [STATE]),
    Trial("state, weighed by v", [per_channel("1 v a aa", weigh=1.0)]),
    Trial("state, weighed by v^1/2", [per_channel("1 v a aa", weigh=0.5)]),
    Trial("state and (log v)^2, a log v, a^3, abs a", [per_channel("1 v a aa vv va aaa |a|")]),
    Trial("state and the image's mean of log v", [per_channel("1 v a aa image")]),
    Trial("state and the position's mean of log v", [per_channel("1 v a aa near")]),
    Trial("state and both means", [per_channel("1 v a aa image near")]),
    Trial("state, then a factor for each position", [STATE, per_position]),
    Trial("state, then a factor for each unit", [STATE, per_unit]),
    *(
        Trial(f"state, then log v and a of all channels, rank {rank}", [STATE, across(rank)])
        for rank in (4, 8, 16, 32, 64)
    ),
    Trial("state, then log v and a of all channels, full rank", [STATE, across(None)]),
    Trial("state, then log v of all channels, rank 16", [STATE, across(16, "v")]),
    Trial("state, then a of all channels, rank 16", [STATE, across(16, "a")]),
    Trial("state, then Phi(a) of all channels, rank 16", [STATE, across(16, "on")]),
    Trial("state, then log v and Phi(a) of all channels, rank 16", [STATE, across(16, "v on")]),
    Trial("state, then log v, a, a^2 of all channels, rank 16", [STATE, across(16, "v a aa")]),
    Trial("the same by 64 principal components, rank 16", [STATE, across(16, components=64)]),
    Trial("the same by 128 principal components, rank 16", [STATE, across(16, components=128)]),
    Trial("the same and its means over the image, rank 16", [STATE, across(16, more="image")]),
    Trial("the same and its means over 3 by 3, rank 16", [STATE, across(16, more="near")]),
    Trial("the same and the layer's input, rank 16", [STATE, across(16, more="input")]),
    Trial("the same and the layer's input, full rank", [STATE, across(None, more="input")]),
    Trial("channel, then log v and a of all channels, full rank", [per_channel("1"), across(None)]),
    Trial(
        "state, then all channels, rank 16, and a shift by the state", [STATE, across(16)], [per_channel("1 v a aa")]
    ),
    Trial("state, and a shift of the mean for each channel", [STATE], [per_channel("1")]),
    Trial("state, and a shift by the state", [STATE], [per_channel("1 v a aa")]),
    Trial("true deviations (oracle)", oracle=True),
]
FEW = {
    "plain AP2",
    "a factor for each channel",
    "+ log v, a, a^2 (state)",
    "state, then log v and a of all channels, rank 16",
    "state, then log v and a of all channels, full rank",
}


def score(
    case: TrialNetwork, images: Tensor, truth: dict[int, Estimate], classes: Tensor, found: dict[int, Any], oracle: bool
) -> dict[str, float]:
    """Measure a trial on held-out images."""

    def correct(i: int, value: Normal) -> Normal:
        return value.of(value.loc, truth[i].variance) if oracle else apply(found, i, value)

    values = case.propagate(images, correct)
    layers = {}
    for i, value in values.items():
        if i >= 0:
            flat = [part.double().flatten() for part in (value.loc, value.stddev)]
            star = truth[i].each(lambda part: part.double().flatten())
            varies = star.variance > 1e-12
            if not varies.any():
                continue
            star = star.each(lambda part, varies=varies: part[varies])
            layers[i] = {
                "eps_mean": metrics.eps_mean(flat[0][varies], star),
                "eps_std": metrics.eps_std(flat[1][varies], star),
                "rms_log_std": metrics.rms_log_std(flat[1][varies], star),
            }
    kl = metrics.divergence(classes, class_posterior(values[-1]).logits.double())
    *inner, last = layers.values()
    factors = [layer["eps_std"] for layer in inner]
    return {**last, "kl": kl, "lowest": min(factors), "highest": max(factors)}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all trials in all cases."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.allow_tf32 = False  # the 10 bits of TF32 would round small noise away
    data = load("cifar10", options.root)
    results: dict[str, Any] = {}
    for title, (name, variance, dropout) in CASES.items():
        model, about = trained_networks.load(name, options.networks)
        mean, std = (torch.tensor(about[part]) for part in ("mean", "std"))
        test, train = (
            replace(part, mean=mean, std=std).batch(range(count))[0].to(device)
            for part, count in ((data.test, options.images), (data.train, max(options.calibrate)))
        )
        case = TrialNetwork(model.to(device), variance, dropout)
        torch.manual_seed(0)
        truth, classes = case.observe(test, options.samples)
        seen, _ = case.observe(train, options.calibration_samples)
        results[title] = {}
        for count in options.calibrate:
            part = {i: estimate.each(lambda x, count=count: x[:count]) for i, estimate in seen.items()}
            for trial in TRIALS:
                if count != options.main and trial.title not in FEW:
                    continue
                found = fit(case, train[:count], part, trial)
                figure = score(case, test, truth, classes, found, trial.oracle)
                results[title].setdefault(trial.title, {})[str(count)] = figure
                print(title, "|", trial.title, count, *(f"{k} {v:.3g}" for k, v in figure.items()), flush=True)
    return {
        "images": options.images,
        "samples": options.samples,
        "calibration_samples": options.calibration_samples,
        "main": options.main,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "cases": results,
    }


def report(data: dict[str, Any]) -> str:
    """Return the tables in Markdown."""
    lines = [f"# Trials of what a calibration depends on\n\n{(__doc__ or '').split(chr(10) * 2)[1]}\n"]
    lines.append(
        f"The tables have errors in the CIFAR network on {data['images']} held-out test images, compared with "
        f"{data['samples']:,} draws, whose own eps_mean is {metrics.eps_mean_floor(data['samples']):.3f}. Calibrations "
        f"are fitted to {data['main']} training images with {data['calibration_samples']:,} draws. Errors are after "
        f"the pooling; 'eps_std by layer' is the range over the layers before it. Measured on {data['device']} with "
        f"torch {data['torch']}.\n"
    )
    head = [
        "trial",
        "eps_mean",
        "eps_std",
        "rms log σ",
        "KL",
        "eps_std by layer",
        "eps_mean if fitted to other numbers of images",
    ]
    for title, trials in data["cases"].items():
        rows = []
        for trial, counts in trials.items():
            x = counts[str(data["main"])]
            shown = [f"{x['eps_mean']:.3f}", f"{x['eps_std']:.3f}", f"{x['rms_log_std']:.3f}", f"{x['kl']:.2g}"]
            others = "; ".join(f"{n}: {y['eps_mean']:.3f}" for n, y in counts.items() if n != str(data["main"]))
            rows.append([trial, *shown, f"{x['lowest']:.2f} to {x['highest']:.2f}", others])
        lines.append(f"## {title}\n\n{table(head, rows)}\n")
    return "\n".join(lines)


def main() -> None:
    """Measure, and save the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--root", type=Path)
    parser.add_argument("--networks", type=Path)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks"))
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--samples", type=int, default=6000)
    parser.add_argument("--calibrate", type=int, nargs="+", default=[8, 64, 512])
    parser.add_argument("--main", type=int, default=64)
    parser.add_argument("--calibration-samples", type=int, default=1000)
    options = parser.parse_args()
    made = start()
    data = measure(options)
    data["made"] = made("cuda" if torch.cuda.is_available() else "cpu")
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "calibration-trials.json").write_text(json.dumps(data, indent=1) + "\n")
    (options.out / "calibration-trials.md").write_text(report(data))


if __name__ == "__main__":
    main()
