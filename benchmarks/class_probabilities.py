"""Class probabilities of noisy digits: how many points they take, what they cost, and how exact they are.

    python benchmarks/class_probabilities.py

A perceptron and a LeNet are trained on the digits of the package. The logits of 16 images have the mean and the
covariance that `propagate` gives, and the truth is the average softmax of a million draws of such logits. It takes a
minute on a CPU, and writes `class_probabilities.json` and `class_probabilities.md` into `results/benchmarks`.
"""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from momentprop import propagate
from momentprop.data import digits
from momentprop.kernels.joint_posterior import MANY, posterior
from momentprop.markdown import table
from momentprop_experiments.provenance import start

OUT = Path(__file__).parents[1] / "results" / "benchmarks" / "class_probabilities"
IMAGES, DRAWS, AT_ONCE, NOISES = 16, 1_000_000, 50_000, (0.1, 0.4, 1.0)


def networks() -> dict[str, nn.Sequential]:
    """Return the networks by name, before training."""
    return {
        "perceptron": nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10)),
        "LeNet": nn.Sequential(
            nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
        ),
    }  # fmt: skip


def trained(model: nn.Sequential) -> nn.Sequential:
    """Train a network for an epoch."""
    images, labels = digits("train")
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for batch in torch.randperm(len(labels)).split(100):
        loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval().requires_grad_(False)


def by_draws(loc: Tensor, covariance: Tensor) -> tuple[Tensor, float]:
    """Return the probabilities by draws, and the divergence from the truth that these have on average."""
    generator = torch.Generator().manual_seed(1)
    root = torch.linalg.cholesky(covariance.double() + 1e-9 * torch.eye(loc.shape[-1])).float()
    total, squares = torch.zeros_like(loc).double(), torch.zeros_like(loc).double()
    for _ in range(DRAWS // AT_ONCE):
        noise = torch.randn(len(loc), AT_ONCE, loc.shape[-1], generator=generator)
        p = (loc[:, None] + noise @ root.mT).softmax(-1)
        total, squares = total + p.double().sum(1), squares + p.double().square().sum(1)
    q = total / DRAWS
    return q, float(((squares / DRAWS - q * q) / (2 * DRAWS * q)).sum(-1).mean())


def milliseconds(function: Callable[[], Tensor]) -> float:
    """Return the processor time of an image."""
    function()
    start = time.process_time()
    function()
    return 1e3 * (time.process_time() - start) / IMAGES


def rows() -> Iterator[list[str]]:
    """Yield the rows of the table."""
    x = digits("test").images[:IMAGES]
    for name, model in networks().items():
        model = trained(model)
        for noise in NOISES:
            y = propagate(model, x, input_std=noise)
            truth, floor = by_draws(y.loc, y.covariance)
            q = posterior(y.loc, y.covariance).double()
            apart = (truth * (truth / q).log()).sum(-1)
            cost = [milliseconds(lambda y=y, n=n: posterior(y.loc, y.covariance, n)) for n in (None, MANY)]
            yield [
                name, f"{noise:g}", f"{float(y.stddev.mean()):.2g}", f"{float(apart.max()):.1e}", f"{floor:.1e}",
                *(f"{each:.2g}" for each in cost),
            ]  # fmt: skip


def main() -> None:
    """Measure, print and write the table."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    head = ["network", "noise", "deviation of logits", "largest KL", "KL of the draws", "ms", f"ms, {MANY:,} points"]
    made = start()
    found = list(rows())
    data = {"rows": [dict(zip(head, row, strict=True)) for row in found], "made": made("cpu")}
    OUT.with_suffix(".json").write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    text = table(head, found)
    OUT.with_suffix(".md").write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
