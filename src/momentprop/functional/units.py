r"""Stochastic binary units: $Y = [\![X - Z \ge 0]\!]$ with logistic or normal noise $Z$."""

from typing import Literal

import torch
from torch import Tensor

from momentprop.dispatch import operation
from momentprop.kernels.tails import cdf

LogisticMethod = Literal["exact", "ap2a", "ap2b", "pea", "mackay"]


@operation
def logistic_bernoulli(input: Tensor, method: LogisticMethod | None = None, training: bool = True) -> Tensor:
    r"""A unit that is one with probability $S(X) = 1/(1+e^{-X})$, and zero otherwise.

    On a tensor it is drawn in training and is $S(x)$ otherwise, as dropout does. On a value with a variance, `method`
    names the approximation of $E\,S(X)$; by default it is the best of the value's family: `exact` for `Normal` and
    `ap2b` for `Logistic` and `Fitted`. The others are the paper's (see `momentprop.paper`).

    >>> import torch, momentprop
    >>> momentprop.functional.logistic_bernoulli(momentprop.Normal(torch.tensor([1.0]), 4.0))
    Normal(loc=tensor([0.6477]),
           variance=tensor([0.2282]))
    """
    probability = torch.sigmoid(input)
    return torch.bernoulli(probability) if training else probability


@operation
def probit_bernoulli(input: Tensor, training: bool = True) -> Tensor:
    r"""A unit that is one with probability $\Phi(X)$, and zero otherwise; drawn or averaged as `logistic_bernoulli`."""
    probability = cdf(input)
    return torch.bernoulli(probability) if training else probability
