r"""The class posterior, in which a classifier ends."""

from typing import Literal

import torch
from torch import Tensor

from momentprop.dispatch import operation
from momentprop.values import Categorical

PosteriorMethod = Literal["race", "fast", "normal", "logistic", "simplified", "centred"]


@operation
def class_posterior(input: Tensor, dim: int = -1, method: PosteriorMethod | None = None) -> Categorical:
    r"""The distribution $q(y) = E\,\mathrm{softmax}(X)_y$ of the class, with the classes moved to the last dimension.

    For values with a variance `method` is how the expectation is taken: `race` is a quadrature (near exact), `fast` its
    substitute for many classes, linear in time with a small constant, and the others are those of `momentprop.paper`.
    By default it is the race up to 1024 classes and fast beyond; `logistic` for `Logistic`, `simplified` for `Fitted`.

    >>> import torch, momentprop
    >>> x = momentprop.Normal(torch.tensor([2.0, 0.0, 0.0]), torch.tensor([9.0, 1.0, 1.0]))
    >>> momentprop.functional.class_posterior(x).loc
    tensor([0.6212, 0.1894, 0.1894])
    """
    return Categorical.of(torch.log_softmax(input.movedim(dim, -1), -1))
