"""The moments of many draws, with their standard errors."""

from torch import Tensor

from momentprop.values.uncertain import Uncertain


class Estimate(Uncertain):
    r"""Mean and variance of a number of draws, each with its standard error.

    `propagate(..., method="sample")` returns it. It is a result only: no operation has a rule for it.
    """

    loc: Tensor
    variance: Tensor
    loc_error: Tensor
    variance_error: Tensor

    def __init__(self, loc: Tensor, variance: Tensor, loc_error: Tensor, variance_error: Tensor) -> None:
        self.loc, self.variance = loc, variance
        self.loc_error, self.variance_error = loc_error, variance_error


class JointEstimate(Estimate):
    """An `Estimate` with the `covariance` of the draws over the units of an item: (B, n, n), or (n, n) for one item."""

    loc: Tensor
    variance: Tensor
    loc_error: Tensor
    variance_error: Tensor
    covariance: Tensor

    def __init__(
        self, loc: Tensor, variance: Tensor, loc_error: Tensor, variance_error: Tensor, covariance: Tensor
    ) -> None:
        super().__init__(loc, variance, loc_error, variance_error)
        self.covariance = covariance
