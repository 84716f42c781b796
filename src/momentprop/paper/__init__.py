r"""Every approximation of the paper, as functions of a mean and a variance, with the errata corrected.

"Feed-forward Uncertainty Propagation in Belief and Neural Networks" (Shekhovtsov, Flach, Busta). Here $a = \mu/\sigma$,
$S$ is the logistic function, $\sigma_S^2 = \pi^2/3$ its variance as a distribution, and $\Phi$ and $\varphi$ are the
standard normal distribution function and density. The rules of `Logistic` and `Fitted` use these functions; the rules
of `Normal` are more accurate and do not. The docstring says so where the paper prints a wrong formula.
"""

from momentprop.paper.logistic import (
    ap1,
    ap2a,
    ap2b,
    logistic_variance_heuristic,
    logistic_variance_large,
    logistic_variance_pea,
    mackay,
    normal_cdf_variance_bound,
    pea,
    probit,
)
from momentprop.paper.maximum import max_fitted, max_normal
from momentprop.paper.rectifier import (
    dilogarithm,
    leaky_relu_fitted,
    leaky_relu_logistic,
    leaky_relu_normal,
    leaky_relu_printed,
    rectified_variance,
    rectified_variance_commented_out,
    rectified_variance_fitted,
)
from momentprop.paper.softmax import softmax_centred, softmax_logistic, softmax_normal, softmax_simplified
from momentprop.paper.threshold import heaviside_logistic, heaviside_normal

__all__ = [
    "ap1",
    "ap2a",
    "ap2b",
    "dilogarithm",
    "heaviside_logistic",
    "heaviside_normal",
    "leaky_relu_fitted",
    "leaky_relu_logistic",
    "leaky_relu_normal",
    "leaky_relu_printed",
    "logistic_variance_heuristic",
    "logistic_variance_large",
    "logistic_variance_pea",
    "mackay",
    "max_fitted",
    "max_normal",
    "normal_cdf_variance_bound",
    "pea",
    "probit",
    "rectified_variance",
    "rectified_variance_commented_out",
    "rectified_variance_fitted",
    "softmax_centred",
    "softmax_logistic",
    "softmax_normal",
    "softmax_simplified",
]
