r"""Every approximation of the paper, as functions of a mean and a variance, with the errata corrected.

"Feed-forward Uncertainty Propagation in Belief and Neural Networks" (Shekhovtsov, Flach, Busta). Here $a = \mu/\sigma$,
$S$ is the logistic function, $\sigma_S^2 = \pi^2/3$ its variance as a distribution, and $\Phi$ and $\varphi$ are the
standard normal distribution function and density. The rules of `Logistic` and `Fitted` use these functions; the rules
of `Normal` are more accurate and do not. The docstring says so where the paper prints a wrong formula.
"""

from momentprop.paper.logistic import ap1 as ap1
from momentprop.paper.logistic import ap2a as ap2a
from momentprop.paper.logistic import ap2b as ap2b
from momentprop.paper.logistic import logistic_variance_heuristic as logistic_variance_heuristic
from momentprop.paper.logistic import logistic_variance_large as logistic_variance_large
from momentprop.paper.logistic import logistic_variance_pea as logistic_variance_pea
from momentprop.paper.logistic import mackay as mackay
from momentprop.paper.logistic import normal_cdf_variance_bound as normal_cdf_variance_bound
from momentprop.paper.logistic import pea as pea
from momentprop.paper.logistic import probit as probit
from momentprop.paper.maximum import max_fitted as max_fitted
from momentprop.paper.maximum import max_normal as max_normal
from momentprop.paper.rectifier import dilogarithm as dilogarithm
from momentprop.paper.rectifier import leaky_relu_fitted as leaky_relu_fitted
from momentprop.paper.rectifier import leaky_relu_logistic as leaky_relu_logistic
from momentprop.paper.rectifier import leaky_relu_normal as leaky_relu_normal
from momentprop.paper.rectifier import leaky_relu_printed as leaky_relu_printed
from momentprop.paper.rectifier import rectified_variance as rectified_variance
from momentprop.paper.rectifier import rectified_variance_commented_out as rectified_variance_commented_out
from momentprop.paper.rectifier import rectified_variance_fitted as rectified_variance_fitted
from momentprop.paper.softmax import softmax_centred as softmax_centred
from momentprop.paper.softmax import softmax_logistic as softmax_logistic
from momentprop.paper.softmax import softmax_normal as softmax_normal
from momentprop.paper.softmax import softmax_simplified as softmax_simplified
from momentprop.paper.threshold import heaviside_logistic as heaviside_logistic
from momentprop.paper.threshold import heaviside_normal as heaviside_normal
