r"""Two small data sets for regression, one measured and one generated, standardized by their training part."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class RegressionData:
    """Inputs and targets of shape (n, 1), split into a training and a test part."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def diabetes(seed: int) -> RegressionData:
    """Load the 442 patients of Efron and others (2004), ten inputs each, from scikit-learn; a fifth is for tests."""
    try:
        datasets = importlib.import_module("sklearn.datasets")
    except ImportError as error:
        raise ImportError(
            'the diabetes data come with scikit-learn: run `pip install "momentprop[experiments]"`'
        ) from error
    found = datasets.load_diabetes(scaled=False)
    inputs, targets = (torch.tensor(part, dtype=torch.float32) for part in (found.data, found.target))
    return _split(inputs, targets[:, None], len(inputs) // 5, seed)


def generated(seed: int) -> RegressionData:
    r"""Draw 1,500 points with input-dependent noise: $y = \sin 2x_1 + x_2 x_3/2 + (0.1 + 0.4|x_1|)\,\varepsilon$.

    The inputs are standard normal, and the target ignores the fourth; a third of the points is for tests.

    >>> table = generated(0)
    >>> [tuple(part[0].shape) for part in (table.train, table.test)]
    [(1000, 4), (500, 4)]
    """
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(1500, 4, generator=generator)
    noise = torch.randn(1500, generator=generator)
    targets = torch.sin(2 * inputs[:, 0]) + inputs[:, 1] * inputs[:, 2] / 2 + (0.1 + 0.4 * inputs[:, 0].abs()) * noise
    return _split(inputs, targets[:, None], 500, seed)


DATA: dict[str, Callable[[int], RegressionData]] = {"diabetes": diabetes, "generated": generated}
"""The data sets by name."""


def _split(inputs: Tensor, targets: Tensor, count: int, seed: int) -> RegressionData:
    """Set test examples aside, and standardize all columns with the mean and deviation of the others."""
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(seed))
    test, train = order[:count], order[count:]
    inputs, targets = (_standardized(part, train) for part in (inputs, targets))
    return RegressionData((inputs[train], targets[train]), (inputs[test], targets[test]))


def _standardized(columns: Tensor, train: Tensor) -> Tensor:
    deviation, mean = torch.std_mean(columns[train], 0)
    return (columns - mean) / deviation
