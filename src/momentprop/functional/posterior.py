r"""The class posterior, the end of a classifier."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop.dispatch import operation
from momentprop.kernels import joint_posterior as kernel
from momentprop.values import Categorical

PosteriorMethod = Literal["race", "fast", "normal", "logistic", "simplified", "centred"]


@operation
def class_posterior(input: Tensor, dim: int = -1, method: PosteriorMethod | None = None) -> Categorical:
    r"""The distribution $q(y) = E\,\mathrm{softmax}(X)_y$ of the class, with the classes moved to the last dimension.

    For values with a variance, `method` computes the expectation: `race` is a quadrature (nearly exact), `fast`
    replaces it for many classes, in linear time with a small constant, and the others come from `momentprop.paper`.
    The default is `race` up to 1024 classes and `fast` beyond; `logistic` for `Logistic`, `simplified` for `Fitted`.

    >>> import torch, momentprop
    >>> x = momentprop.Normal(torch.tensor([2.0, 0.0, 0.0]), torch.tensor([9.0, 1.0, 1.0]))
    >>> momentprop.functional.class_posterior(x).loc
    tensor([0.6212, 0.1894, 0.1894])
    """
    return Categorical.of(torch.log_softmax(input.movedim(dim, -1), -1))


@operation
def linear_posterior(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, method: PosteriorMethod | None = None
) -> Categorical:
    r"""The class posterior $q(y) = E\,\mathrm{softmax}(Wx + b)_y$ of a linear layer and a softmax together.

    The logits share their inputs, so they are correlated. Together, layer and softmax use the exact
    $\mathrm{Var}[X_k - X_y] = \sum_i (w_{ki} - w_{yi})^2\sigma_i^2$; one after the other, they treat $X_k$ and $X_y$ as
    independent. `method` is as in `class_posterior`; the default is `race` up to 16 classes and `fast` beyond. `race`,
    `normal` and `logistic` take $O(n^2)$ for $n$ classes, `simplified` and `centred` $O(n)$, and so does `fast` beyond
    64 classes.

    >>> import torch, momentprop
    >>> x = momentprop.Normal(torch.tensor([1.0, 1.0]), 4.0)
    >>> weight = torch.tensor([[1.0, 1.0], [0.0, 1.0]])  # the classes differ by the first input only
    >>> momentprop.functional.linear_posterior(x, weight).loc
    tensor([0.6477, 0.3523])
    >>> momentprop.functional.class_posterior(torch.nn.functional.linear(x, weight)).loc
    tensor([0.6015, 0.3985])
    """
    return Categorical.of(torch.log_softmax(F.linear(input, weight, bias), -1))


def joint_posterior(loc: Tensor, covariance: Tensor, points: int | None = None) -> Categorical:
    r"""The class posterior $q(y) = E\,\mathrm{softmax}(X)_y$ of jointly normal logits, with the classes last.

    `loc` has the shape `(..., classes)` and `covariance` the shape `(..., classes, classes)`; it can be singular. The
    expectation is an average over fixed points, so nothing is drawn. Its error is at most 3e-5 in KL divergence for up
    to 10 classes and deviations up to 10; for more classes see `kernels.joint_posterior`. First derivatives by
    both arguments work in every mode; `-joint_posterior(...).logits[..., y]` is the cross-entropy of a class.

    >>> import torch, momentprop
    >>> loc, covariance = torch.tensor([1.0, 0.0]), torch.tensor([[4.0, 4.0], [4.0, 4.0]])
    >>> momentprop.functional.joint_posterior(loc, covariance).loc  # the difference is certain
    tensor([0.7311, 0.2689])
    """
    return Categorical.of(kernel.log_posterior(loc, covariance, points))
