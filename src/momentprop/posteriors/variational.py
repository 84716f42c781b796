"""Gaussian layers of bayesian-torch and blitz, which draw their weights in each forward pass."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from momentprop.torch_compat.replica import Replica
from momentprop.values import Normal

LIBRARIES = ("bayesian_torch", "blitz")

_CONVOLUTIONS: dict[tuple[bool, int], Callable[..., Any]] = {
    (False, 3): F.conv1d, (False, 4): F.conv2d, (False, 5): F.conv3d,
    (True, 3): F.conv_transpose1d, (True, 4): F.conv_transpose2d, (True, 5): F.conv_transpose3d,
}  # fmt: skip


def from_variational(model: nn.Module) -> nn.Module:
    """Return a model whose bayesian-torch or blitz layers are plain layers with random weights.

    ```python
    network = nn.Sequential(blitz.modules.BayesianLinear(4, 8), nn.ReLU(), blitz.modules.BayesianLinear(8, 1))
    y = momentprop.propagate(momentprop.posteriors.from_variational(network), x)
    ```

    The model itself stays as it is. It handles linear layers, convolutions and embeddings, with reparametrization and
    with Flipout, whose outputs have the same distribution for each item. A layer that also returns its divergence from
    the prior returns zero there.
    """
    replica = Replica(model)
    made: dict[int, nn.Module] = {}
    for module in list(replica.modules):
        if _library(module) and _has_posterior(module):
            made[id(module)] = _Layer(module)
    if not made:
        raise ValueError(f"a {type(model).__name__} has no layer of bayesian-torch or blitz with Gaussian weights")
    for module in replica.modules:
        children = module.named_children()
        for name, child in [(name, child) for name, child in children if id(child) in made]:
            setattr(module, name, made[id(child)])
    return made.get(id(replica.module), replica.module)


class _Layer(nn.Module):
    """One layer with random weights, which takes and returns what the layer it replaces does."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        kernel = "kernel" if hasattr(layer, "mu_kernel") else "weight"
        weight, bias = _normal(layer, kernel), _normal(layer, "bias")
        assert weight is not None
        self.weight, self.bias = weight, bias
        self.apply_to = _map_of(layer, weight)
        divergence = _library(layer) == "bayesian_torch" and not getattr(layer, "dnn_to_bnn_flag", False)
        self.returns_divergence = divergence

    def forward(self, x: Any, return_kl: bool = True) -> Any:
        """Apply the layer."""
        out = self.apply_to(x, self.weight, self.bias)
        return (out, torch.zeros(())) if self.returns_divergence and return_kl else out


def _library(module: nn.Module) -> str | None:
    name = type(module).__module__.partition(".")[0]
    return name if name in LIBRARIES else None


def _has_posterior(layer: nn.Module) -> bool:
    """Return whether a module has Gaussian weights of its own, and refuse those whose map is not known."""
    kind, own = type(layer).__name__, dict(layer.named_parameters(recurse=False))
    if not any("rho" in name for name in own) or "rho" in own:  # a sampler inside a layer of blitz has no other name
        return False
    if kind.startswith("Quantized") or not {"rho_weight", "rho_kernel", "weight_rho"} & own.keys():
        raise TypeError(
            f"a {kind} of {_library(layer)} cannot be converted; only linear layers, convolutions and embeddings "
            "can: use method='sample', which runs it as it is"
        )
    return True


def _normal(layer: nn.Module, name: str) -> Normal | None:
    r"""Return the value of a weight: its deviation is $\log(1 + e^\rho)$ in both libraries."""
    for mu, rho in ((f"mu_{name}", f"rho_{name}"), (f"{name}_mu", f"{name}_rho")):
        loc, at = getattr(layer, mu, None), getattr(layer, rho, None)
        if isinstance(loc, Tensor) and isinstance(at, Tensor):
            if name == "bias" and not _has_bias(layer):
                return None
            deviation = torch.zeros_like(at) if getattr(layer, "freeze", False) else F.softplus(at)
            return Normal(loc, deviation.square())
    return None


def _has_bias(layer: nn.Module) -> bool:
    return getattr(layer, "bias", True) is not False  # blitz keeps the parameters of a bias that it does not use


def _map_of(layer: nn.Module, weight: Normal) -> Callable[[Any, Any, Any], Any]:
    """Return the function of input, weight and bias that a layer applies."""
    if hasattr(layer, "num_embeddings"):
        names = ("padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")
        embedded = [getattr(layer, name) for name in names]
        return lambda x, w, _: F.embedding(x, w, *embedded)
    if weight.ndim == 2:
        return F.linear
    transposed = "Transpose" in type(layer).__name__
    function = _CONVOLUTIONS[transposed, weight.ndim]
    named = ("stride", "padding", "dilation", "groups", *(("output_padding",) if transposed else ()))
    options = {name: getattr(layer, name) for name in named}
    return lambda x, w, b: function(x, w, b, **options)
