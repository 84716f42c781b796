r"""Choices among several inputs: class posteriors, the noisy argmax, and maxout."""

from typing import Any, get_args

from torch import nn

from momentprop import functional
from momentprop.functional.posterior import PosteriorMethod
from momentprop.functional.stochastic_units import Gradient, as_gradient
from momentprop.kernels.maximum import Method

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def _as_method(name: str | None) -> PosteriorMethod | None:
    choices = get_args(PosteriorMethod)
    if name is not None and name not in choices:
        raise ValueError(f"unknown method {name!r} for a posterior; choose one of {', '.join(choices)}")
    return name  # type: ignore[return-value]


class Softmax(nn.Module):
    r"""The class posterior $q(y) = E\,\mathrm{softmax}(X)_y$, a `Categorical` with classes along the last dimension.

    The layer can absorb the linear layer or 1×1 convolution before it, whose outputs are correlated because they share
    inputs. Together, the two get the exact variances of differences (see `functional.linear_posterior`).

    >>> import torch, momentprop
    >>> head = momentprop.nn.Softmax(linear=torch.nn.Linear(3, 10))
    >>> posterior = head(momentprop.Normal(torch.zeros(2, 3), 1.0))
    >>> posterior.loc.shape, torch.nn.functional.nll_loss(posterior, torch.tensor([1, 7])).shape
    (torch.Size([2, 10]), torch.Size([]))

    The table gives the divergence $KL(p\,\|\,q)$ from the truth (400,000 draws) in nats, with the linear layer before
    the softmax or absorbed by it. There are 30 inputs. The weights of all classes share a common part, twice as large
    as each class's own part, which alone gives its logit a variance of 0.3 or 3. The numbers are means of eight
    instances; `benchmarks/absorbed_softmax.py` prints the table.

    | classes, variance | 2, 0.3 | 2, 3 | 10, 0.3 | 10, 3 | 100, 0.3 | 100, 3 |
    |---|---|---|---|---|---|---|
    | softmax of the means | 0.0008 | 0.02 | 0.002 | 0.08 | 0.001 | 0.07 |
    | `race`, before | 0.006 | 0.02 | 0.02 | 0.1 | 0.006 | 0.1 |
    | `race`, absorbed | 2e-07 | 9e-07 | 2e-06 | 0.0002 | 7e-06 | 0.0005 |
    | `fast`, before | 0.006 | 0.02 | 0.01 | 0.09 | 0.004 | 0.1 |
    | `fast`, absorbed | 2e-07 | 9e-07 | 6e-05 | 0.002 | 2e-05 | 0.008 |
    | `logistic`, before | 0.004 | 0.02 | 0.03 | 0.2 | 0.07 | 0.4 |
    | `logistic`, absorbed | 5e-05 | 0.0004 | 0.0009 | 0.02 | 0.005 | 0.1 |
    | `simplified`, before | 0.002 | 0.009 | 0.01 | 0.08 | 0.04 | 0.3 |
    | `simplified`, absorbed | 0.0002 | 0.003 | 0.0004 | 0.01 | 0.001 | 0.05 |
    | `normal`, before | 0.007 | 0.02 | 0.5 | 0.2 | 10 | 10 |
    | `normal`, absorbed | 0.0003 | 2e-05 | 0.7 | 0.7 | 20 | 20 |

    Args:
        method: how to compute the expectation (see `functional.class_posterior`); by default the type of the value
            chooses.
        dim: the dimension of the classes, if no layer is absorbed.
        linear: an `nn.Linear`, or a convolution with kernels of size 1, to absorb. It stays a submodule and trains as
            before.
    """

    linear: nn.Module | None

    def __init__(self, method: PosteriorMethod | None = None, dim: int = -1, linear: nn.Module | None = None) -> None:
        super().__init__()
        self.method, self.dim = _as_method(method), dim
        if linear is not None:
            _require_linear(linear)
        self.linear = linear

    def forward(self, input: Any) -> Any:
        """The class posterior."""
        if self.linear is None:
            return functional.class_posterior(input, self.dim, self.method)
        weight: Any = self.linear.weight
        bias: Any = self.linear.bias
        if isinstance(self.linear, _CONVOLUTIONS):
            input = input.movedim(-weight.ndim + 1, -1)
        return functional.linear_posterior(input, weight.flatten(1), bias, self.method)

    def extra_repr(self) -> str:
        """The settings that `print` shows."""
        return f"method={self.method}, dim={self.dim}" if self.linear is None else f"method={self.method}"


def _require_linear(layer: nn.Module) -> None:
    if isinstance(layer, nn.Linear):
        return
    if not isinstance(layer, _CONVOLUTIONS):
        raise TypeError(f"`linear` must be an `nn.Linear` or a 1x1 convolution, but is a {type(layer).__name__}")
    plain = all(size == 1 for size in (*layer.kernel_size, *layer.stride, layer.groups))
    if not plain or (layer.padding not in ("valid", "same") and any(layer.padding)):
        raise ValueError(
            f"`linear` must be a convolution of kernel size 1, stride 1, one group and no padding, but is {layer}"
        )


class GumbelArgmax(nn.Module):
    r"""$\arg\max_k (X_k + \Gamma_k)$ with independent Gumbel noises, as a one-hot vector.

    The softmax is the expectation of this argmax. Unlike after `Softmax`, other layers can follow: the moments are
    those of the class indicators.

    >>> import torch, momentprop
    >>> layer = momentprop.nn.GumbelArgmax()
    >>> layer(momentprop.Mean(torch.tensor([1.0, 0.0]))).loc
    tensor([0.7311, 0.2689])
    >>> layer(torch.tensor([100.0, 0.0]))
    tensor([1., 0.])

    Args:
        dim: the dimension of the classes.
        method: how to compute the expectation (see `functional.class_posterior`); by default the type of the value
            chooses.
        gradient: the gradient of draws, as for `StochasticBinary`.
    """

    def __init__(
        self, dim: int = -1, method: PosteriorMethod | None = None, gradient: Gradient = "straight_through"
    ) -> None:
        super().__init__()
        self.dim, self.method, self.gradient = dim, _as_method(method), as_gradient(gradient)

    def forward(self, input: Any) -> Any:
        """Draw a class, or take its moments."""
        return functional.gumbel_argmax(input, self.dim, self.method, self.gradient, self.training)

    def extra_repr(self) -> str:
        """The settings that `print` shows."""
        return f"dim={self.dim}, method={self.method}, gradient={self.gradient}"


class Maxout(nn.Module):
    r"""The largest of every `pieces` neighbouring channels.

    >>> import torch, momentprop
    >>> momentprop.nn.Maxout(2)(momentprop.Normal(torch.zeros(1, 4), 1.0))
    Normal(loc=tensor([[0.5642, 0.5642]]),
           variance=tensor([[0.6817, 0.6817]]))

    Args:
        pieces: the number of channels per unit.
        dim: the dimension of the channels.
        method: how to compare more than two (see `functional.maximum_of`).
    """

    def __init__(self, pieces: int, dim: int = 1, method: Method | None = None) -> None:
        super().__init__()
        if pieces < 1:
            raise ValueError(f"a maxout unit needs at least 1 piece, but pieces is {pieces}")
        self.pieces, self.dim, self.method = pieces, dim, method

    def forward(self, input: Any) -> Any:
        """The largest of each group."""
        return functional.maxout(input, self.pieces, self.dim, self.method)

    def extra_repr(self) -> str:
        """The settings that `print` shows."""
        return f"pieces={self.pieces}, dim={self.dim}"
