r"""The accuracy of class posteriors if the softmax absorbs the linear layer before it: the table of `nn.Softmax`.

    python benchmarks/absorbed_softmax.py

There are 30 random inputs. The weights of all classes share a part that is twice as large as the part of each class,
which alone gives its logit a variance of 0.3 or 3. The numbers are $KL(p\,\|\,q)$ in nats, averaged over eight
instances, where $p$ comes from 400,000 draws. It takes two minutes on a CPU.
"""

import argparse
import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop import Categorical, Normal
from momentprop.checking.metrics import divergence
from momentprop.functional import class_posterior, linear_posterior
from momentprop.markdown import table
from momentprop_experiments.provenance import start

METHODS = ("race", "fast", "logistic", "simplified", "normal")
CLASSES, VARIANCES = (2, 10, 100), (0.3, 3.0)
INPUTS, INSTANCES, AT_ONCE = 30, 8, 20_000

_NOTES = (
    "A linear layer with random inputs precedes a softmax. The table has the divergence of the class probabilities "
    "from those of draws, in nats, as a mean over eight random instances; less is better. In the rows 'before', the "
    "softmax takes independent logits from the layer; in the rows 'absorbed', it takes the layer's inputs. The head of "
    "a column has the number of classes, and the variance that a class's own weights give its logit."
)

Posterior = Callable[[Normal, Tensor], Categorical]


def posteriors() -> dict[str, Posterior]:
    """Return the posteriors to compare by name."""
    found: dict[str, Posterior] = {
        "softmax of the means": lambda x, weight: class_posterior(F.linear(x.loc, weight)),
    }
    for method in METHODS:
        found[f"`{method}`, before"] = lambda x, weight, m=method: class_posterior(F.linear(x, weight), method=m)
        found[f"`{method}`, absorbed"] = lambda x, weight, m=method: linear_posterior(x, weight, method=m)
    return found


def instance(classes: int, variance: float, seed: int) -> tuple[Normal, Tensor]:
    """Draw an input and weights."""
    generator = torch.Generator().manual_seed(1000 * classes + seed)
    weight = torch.randn(classes, INPUTS, generator=generator) + 2 * torch.randn(INPUTS, generator=generator)
    loc = 2 * torch.randn(1, INPUTS, generator=generator)
    x = Normal(loc.double(), 2 * variance * torch.rand(1, INPUTS, generator=generator).double())
    return x, (weight / math.sqrt(INPUTS)).double()


def truth(x: Normal, weight: Tensor, draws: int) -> Tensor:
    """Return the posterior by draws."""
    generator = torch.Generator().manual_seed(0)
    parts = [
        torch.softmax(x.sample(AT_ONCE, generator=generator) @ weight.T, -1).mean(0) for _ in range(draws // AT_ONCE)
    ]
    return torch.stack(parts).mean(0)


def measure(draws: int) -> dict[str, dict[str, float]]:
    """Measure the divergences of all methods in all cases."""
    found: dict[str, dict[str, float]] = {name: {} for name in posteriors()}
    for classes, variance in itertools.product(CLASSES, VARIANCES):
        instances = [instance(classes, variance, seed) for seed in range(INSTANCES)]
        true = [truth(x, weight, draws) for x, weight in instances]
        for name, posterior in posteriors().items():
            each = [divergence(p, posterior(*given).logits) for p, given in zip(true, instances, strict=True)]
            found[name][f"{classes}, {variance:g}"] = sum(each) / INSTANCES
    return found


def report(found: dict[str, dict[str, float]]) -> str:
    """Return the table."""
    head = ["method", *next(iter(found.values()))]
    rows = [[name, *(f"{float(f'{x:.1g}'):g}" for x in row.values())] for name, row in found.items()]
    return f"{_NOTES}\n\n{table(head, rows)}"


def main() -> None:
    """Measure, print the table and save it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draws", type=int, default=400_000)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks"))
    options = parser.parse_args()
    made = start()
    found = measure(options.draws)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "absorbed-softmax.json").write_text(json.dumps({**found, "made": made("cpu")}, indent=1) + "\n")
    text = report(found)
    (options.out / "absorbed-softmax.md").write_text(f"# The softmax that absorbs a linear layer\n\n{text}\n")
    print(text)


if __name__ == "__main__":
    main()
