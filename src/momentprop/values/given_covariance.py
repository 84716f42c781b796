"""Checks for the parts of a `Joint`: its own noise, factors, and covariance matrices."""

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from momentprop.values.base import Value, as_tensor, may_look_at
from momentprop.values.given_distributions import base_of, is_correlated


def items_along(loc: Tensor, batch_dim: Any) -> int | None:
    """Return the dimension of the items: by default the first one, and none for a vector or a number."""
    if batch_dim == "auto":
        return 0 if loc.ndim > 1 else None
    if batch_dim is None:
        return None
    if not -loc.ndim <= batch_dim < loc.ndim:
        raise ValueError(
            f"batch_dim is {batch_dim}, but loc has the shape {tuple(loc.shape)}: give one of its dimensions, or None"
        )
    return int(batch_dim % loc.ndim)


def as_own(loc: Tensor, given: Any, validate_args: bool | None) -> Tensor:
    """Return the variance of each unit's own noise in the shape of `loc`."""
    own: Any = given if isinstance(given, Tensor | Value) else torch.full_like(loc, given)
    _require_alike(loc, own, "own")
    try:
        own = own.expand_as(loc).clone() if own.shape != loc.shape else own
    except RuntimeError:
        raise ValueError(
            f"own of shape {tuple(own.shape)} does not broadcast to loc of shape {tuple(loc.shape)}"
        ) from None
    if may_look_at(loc, validate_args):
        _require_finite(loc, "loc")
        _require_finite(own, "own")
        if bool((own < 0).any()):
            raise ValueError("own is a variance and must be non-negative, but has negative elements")
    return own  # type: ignore[no-any-return]


def as_factors(loc: Tensor, given: Tensor | None, validate_args: bool | None) -> Tensor:
    """Return the factors, of the shape (K, *loc.shape)."""
    if given is None:
        return loc.new_zeros(0, *loc.shape)
    factors = as_tensor(given, "factors")
    _require_alike(loc, factors, "factors")
    if factors.shape[1:] != loc.shape or factors.ndim != loc.ndim + 1:
        shape = ", ".join(["K", *map(str, loc.shape)])
        raise ValueError(f"factors must have the shape ({shape}), but these have {tuple(factors.shape)}")
    if may_look_at(factors, validate_args):
        _require_finite(factors, "factors")
    return factors


def as_matrices(loc: Tensor, given: Tensor, batch_dim: int | None) -> Tensor:
    """Return covariance matrices in the shape (B, n, n), one for each item."""
    covariance = as_tensor(given, "covariance")
    _require_alike(loc, covariance, "covariance")
    items = 1 if batch_dim is None else loc.shape[batch_dim]
    units = torch.Size([size for dim, size in enumerate(loc.shape) if dim != batch_dim]).numel()
    if covariance.shape not in ((units, units), (items, units, units)):
        wanted = f"({units}, {units})" + ("" if batch_dim is None else f" or ({items}, {units}, {units})")
        raise ValueError(
            f"the covariance of {units} units per item must have the shape {wanted}, but this one has "
            f"{tuple(covariance.shape)}"
        )
    return covariance.expand(items, units, units)


def require_covariance(matrices: Tensor) -> None:
    """Refuse matrices that are not symmetric, or have a negative eigenvalue beyond rounding."""
    _require_finite(matrices, "covariance")
    if not matrices.numel():
        return
    wide = matrices.to(torch.promote_types(matrices.dtype, torch.float32))
    size = wide.abs().amax((-2, -1))
    slack = 100 * torch.finfo(matrices.dtype).eps * matrices.shape[-1] * size
    if bool(((wide - wide.mT).abs().amax((-2, -1)) > slack).any()):
        raise ValueError(
            "a covariance must be symmetric, but this one is not: write `(c + c.mT) / 2` if this is rounding"
        )
    lowest = torch.linalg.eigvalsh(wide)[..., 0]
    if bool((lowest < -slack).any()):
        raise ValueError(
            f"a covariance must have no negative eigenvalue, but this one has {float(lowest.min()):.3g}: add a small "
            "multiple of `torch.eye(n)` if this is rounding"
        )


def _require_alike(loc: Tensor, given: Any, name: str) -> None:
    if isinstance(given, Value):
        raise TypeError(f"{name} must be a tensor or a number, but is a {type(given).__name__}")
    if given.dtype != loc.dtype:
        raise TypeError(f"loc is {loc.dtype} but {name} is {given.dtype}: write `{name}.to(loc.dtype)`")
    if given.device != loc.device:
        raise ValueError(f"loc is on {loc.device} but {name} is on {given.device}: write `{name}.to(loc.device)`")


def _require_finite(tensor: Tensor, name: str) -> None:
    if not bool(torch.isfinite(tensor).all()):
        raise ValueError(f"{name} must be finite, but has NaN or infinite elements")


def require_known(distribution: Distribution) -> None:
    """Refuse a distribution whose covariance is not known, or whose items lie along several dimensions."""
    base, correlated = base_of(distribution), is_correlated(distribution)
    if correlated and len(distribution.batch_shape) > 1:
        raise ValueError(
            f"a Joint has its items along one dimension, but the batch shape is {tuple(distribution.batch_shape)}: "
            "give a distribution with one batch dimension"
        )
    if base.event_shape and not (correlated and base is distribution):
        raise TypeError(
            f"momentprop cannot take the covariance from a {type(base).__name__}: write "
            "`momentprop.Joint.from_covariance(mean, covariance)`"
        )
