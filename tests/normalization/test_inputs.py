"""Statistics of inputs."""

import math
from typing import Any

import pytest
import torch

from momentprop import input_statistics
from tests.rules.statistics.data import data_of

"""Operations whose rule for `Normal` is right for one pixel; those with indices refuse it themselves."""


@pytest.mark.parametrize("shape", [(700, 4), (70, 4, 5), (70, 4, 5, 6), (7, 4, 3, 4, 5)])
def test_input_statistics_are_those_of_channels(shape: tuple[int, ...]) -> None:
    x = data_of(*shape)
    found = input_statistics(x)
    others = [0, *range(2, x.ndim)]
    torch.testing.assert_close(found.loc, x.double().mean(others).float())
    torch.testing.assert_close(found.variance, x.double().var(others, correction=0).float())


def test_input_statistics_of_batches_are_those_of_all() -> None:
    x = 1000 + data_of(2500, 4, 3, 3).double() * 1e-3
    whole = input_statistics(x)
    data = torch.utils.data.TensorDataset(x, torch.zeros(len(x)))
    for given in (x.split(77), [(part, 0) for part in x.split(300)], torch.utils.data.DataLoader(data, batch_size=512)):
        found = input_statistics(given)
        torch.testing.assert_close(found.loc, whole.loc)
        torch.testing.assert_close(found.variance, whole.variance, rtol=1e-9, atol=0)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        (torch.zeros(0, 3), ValueError, "no inputs"),
        ([], ValueError, "no inputs"),
        (torch.ones(3), ValueError, r"\(examples, channels, ...\)"),
        (torch.ones(3, 2, dtype=torch.uint8), TypeError, "floating-point"),
        ([{"x": torch.ones(3, 2)}], TypeError, "this is a dict"),
        ([torch.rand(3, 2), torch.rand(3, 3)], ValueError, "3 channels, but those before it have 2"),
        (torch.tensor([[1.0, math.nan], [2.0, 0.0]]), ValueError, "channel 1 is not finite"),
        (torch.tensor([[1.0, 3.0], [2.0, 3.0]]), ValueError, "channel 1 is of zero variance"),
    ],
)
def test_inputs_without_statistics_are_refused(given: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        input_statistics(given)
