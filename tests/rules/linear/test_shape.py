"""Assignment to an index."""

import torch

from momentprop import Normal


def test_assignment_to_an_index_writes_means_and_variances() -> None:
    x = Normal(torch.zeros(3), 1.0)
    x[0] = 5.0
    x[1] = Normal(torch.tensor(2.0), 3.0)
    assert x.loc.tolist() == [5, 2, 0]
    assert x.variance.tolist() == [0, 3, 1]
