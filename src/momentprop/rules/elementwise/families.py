r"""Rules of `Logistic` and `Fitted` for which the paper has formulas; they borrow all others from `Normal`.

`Logistic` assumes logistic units; `Fitted` has the formulas of the paper's implementation.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop import paper
from momentprop.dispatch import Transform
from momentprop.dispatch.registry import elementwise
from momentprop.kernels.moments import Kernel, Moments
from momentprop.rules.elementwise.rectifier import channel_slopes, leaky
from momentprop.rules.elementwise.threshold import stepping
from momentprop.values import Fitted, Logistic

PaperFunction = Callable[..., tuple[Tensor, Tensor]]


def _kernel(function: PaperFunction, *fixed: float) -> Kernel:
    def kernel(mean: Tensor, variance: Tensor, *more: Tensor) -> Moments:
        return Moments(*function(mean, variance, *fixed, *more))

    return kernel


def _logistic_transform(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    return paper.ap2b(mean, variance), paper.logistic_variance_heuristic(mean, variance)


@elementwise("heaviside", on=Logistic)
def heaviside_logistic(input: Logistic, values: Tensor) -> Transform:
    r"""Moments of $[\![X \ge 0]\!]$ for logistic $X$: $\mu' = S(\mu/s)$, $\sigma'^2 = \mu'(1-\mu')$.

    Error: exact for logistic units; for normal ones 0.79 of $\sigma'$ within $|a| \le 3$
    Source: paper, "Heaviside Step Function"
    """
    return stepping(_kernel(paper.heaviside_logistic), input, values)


@elementwise("heaviside", on=Fitted)
def heaviside_fitted(input: Fitted, values: Tensor) -> Transform:
    r"""Moments of $[\![X \ge 0]\!]$ with $\Phi(a) \approx S(\pi a/\sqrt 3)$, the logistic form.

    Error: 0.79 of $\sigma'$ within $|a| \le 3$
    Source: paper, "Implementation Details"
    """
    return stepping(_kernel(paper.heaviside_logistic), input, values)


@elementwise("relu", on=Logistic)
def relu_logistic(input: Logistic, inplace: bool = False) -> Transform:
    r"""Moments of $\max(0, X)$ for logistic $X$, with the dilogarithm.

    Error: exact for logistic units; for normal ones 2.6 of $\sigma'$ within $|a| \le 3$
    Source: paper, table of approximations, "ReLU"
    """
    return Transform(_kernel(paper.leaky_relu_logistic), torch.relu)


@elementwise("relu", on=Fitted)
def relu_fitted(input: Fitted, inplace: bool = False) -> Transform:
    r"""Moments of $\max(0, X)$ by $\Phi(a) \approx S(\pi a/\sqrt 3)$ and $R(a) \approx S(a/0.3729)$.

    Error: 0.26 of $\sigma'$ and 0.62 $\sigma'$ of $\mu'$ within $|a| \le 3$
    Source: paper, "Implementation Details"
    """
    return Transform(_kernel(paper.leaky_relu_fitted), torch.relu)


@elementwise("leaky_relu", on=Logistic)
def leaky_relu_logistic(input: Logistic, negative_slope: float = 0.01, inplace: bool = False) -> Transform:
    r"""Moments of $\max(X, \alpha X)$ for logistic $X$, which follow from those of the ReLU.

    Error: exact for logistic units
    Source: derived from the paper's "ReLU"
    """
    plain = partial(F.leaky_relu, negative_slope=negative_slope)
    return Transform(_kernel(paper.leaky_relu_logistic, negative_slope), plain)


@elementwise("leaky_relu", on=Fitted)
def leaky_relu_fitted(input: Fitted, negative_slope: float = 0.01, inplace: bool = False) -> Transform:
    r"""Moments of $\max(X, \alpha X)$ by $\sigma'^2 \approx \sigma^2(\alpha^2 + (1-\alpha^2)S(a/0.3729))$.

    Error: 0.26 of $\sigma'$ and 0.62 $\sigma'$ of $\mu'$ within $|a| \le 3$
    Source: paper, eq. LReLU-approx and "Implementation Details"
    """
    plain = partial(F.leaky_relu, negative_slope=negative_slope)
    return Transform(_kernel(paper.leaky_relu_fitted, negative_slope), plain)


@elementwise("prelu", on=Logistic)
def prelu_logistic(input: Logistic, weight: Tensor) -> Transform:
    r"""Moments of the leaky ReLU with learned slopes for logistic $X$.

    Error: exact for logistic units
    Source: derived from the paper's "ReLU"
    """
    slopes = channel_slopes(weight, input)
    return Transform(_kernel(paper.leaky_relu_logistic), lambda x: F.prelu(x, weight), (slopes,), of_more=leaky)


@elementwise("prelu", on=Fitted)
def prelu_fitted(input: Fitted, weight: Tensor) -> Transform:
    r"""Moments of the leaky ReLU with learned slopes, by the fitted form.

    Error: 0.26 of $\sigma'$ and 0.62 $\sigma'$ of $\mu'$ within $|a| \le 3$
    Source: paper, eq. LReLU-approx and "Implementation Details"
    """
    slopes = channel_slopes(weight, input)
    return Transform(_kernel(paper.leaky_relu_fitted), lambda x: F.prelu(x, weight), (slopes,), of_more=leaky)


@elementwise("abs", on=Logistic)
def abs_logistic(input: Logistic) -> Transform:
    r"""Moments of $|X|$ for logistic $X$, the leaky ReLU with slope $-1$.

    Error: exact for logistic units
    Source: derived from the paper's "ReLU"
    """
    return Transform(_kernel(paper.leaky_relu_logistic, -1.0), torch.abs)


@elementwise("sigmoid", on=Logistic)
def sigmoid_logistic(input: Logistic) -> Transform:
    r"""Moments of $S(X)$: the AP2b mean and the heuristic variance $4(1+4/\sigma^2)^{-1}(\mu'(1-\mu'))^2$.

    Error: 0.0226 of the mean (absolute), 0.40 of $\sigma'$ for $|\mu| \le 5$
    Source: paper, AP2b and eq. logistic-heuristic-approx
    """
    return Transform(_kernel(_logistic_transform), torch.sigmoid)


elementwise("sigmoid", on=Fitted)(sigmoid_logistic)
