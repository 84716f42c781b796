"""Statistics are checked when they are made."""

import math

import pytest
import torch
from torch import Tensor

from momentprop import Statistics

"""Operations whose rule for `Normal` is right for one pixel; those with indices refuse it themselves."""


@pytest.mark.parametrize(
    ("loc", "variance", "words"),
    [
        (torch.zeros(3), torch.tensor([1.0, 0.0, 0.0]), "channels 1, 2 are of zero variance"),
        (torch.zeros(3), torch.tensor([1.0, math.nan, 1.0]), "variance must be finite"),
        (torch.zeros(3), -torch.ones(3), "variance must be non-negative"),
        (torch.zeros(1, 3, 1, 1), torch.ones(1, 3, 1, 1), r"a shape like \(3,\), but loc has \(1, 3, 1, 1\)"),
    ],
)
def test_statistics_that_are_none_are_refused(loc: Tensor, variance: Tensor, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Statistics(loc, variance)
