"""Posteriors of laplace-torch."""

from typing import Any

import torch
from torch import Tensor, nn

from momentprop.posteriors.flat import joints, normals
from momentprop.weights import with_weights


def from_laplace(posterior: Any) -> nn.Module:
    """Return the model of a fitted laplace-torch posterior, with random weights.

    ```python
    la = laplace.Laplace(model, "classification", subset_of_weights="all", hessian_structure="diag")
    la.fit(loader)
    y = momentprop.propagate(momentprop.posteriors.from_laplace(la), x)
    ```

    A diagonal posterior gives independent weights. A full or Kronecker-factored one, over all weights or the last
    layer, gives weights with their whole covariance, whose memory grows with the square of their number: `propagate`
    follows it to the outputs, and `covariance=False` takes only the variances.
    """
    inner = getattr(posterior, "model", None)
    mean = getattr(posterior, "mean", None)
    if inner is None or not isinstance(mean, Tensor):
        raise TypeError(
            f"a {type(posterior).__name__} is not a fitted posterior of laplace-torch: it has no `model` and no tensor "
            "`mean`; call its `fit` first"
        )
    last = getattr(inner, "last_layer", None)
    model = inner if last is None else inner.model  # the last-layer posteriors wrap the model
    parameters = list(getattr(posterior, "params", inner.parameters()) if last is None else last.parameters())
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    shapes = {names[id(parameter)]: parameter.shape for parameter in parameters}
    if sum(shape.numel() for shape in shapes.values()) != len(mean):
        raise TypeError(
            f"this {type(posterior).__name__} covers a part of the parameters only: fit one over all of them, or over "
            "the last layer"
        )
    variance = _of(posterior, "posterior_variance")
    if variance is not None:
        return with_weights(model, normals(shapes, mean.detach(), variance.detach()))
    covariance = _covariance(posterior).detach()
    factors = torch.linalg.cholesky((covariance + covariance.mT) / 2).mT.contiguous()
    return with_weights(model, joints(shapes, mean.detach(), 0.0, factors))


def _covariance(posterior: Any) -> Tensor:
    covariance = _of(posterior, "posterior_covariance")
    if covariance is not None:
        return covariance
    precision = getattr(posterior, "posterior_precision", None)
    if not hasattr(precision, "to_matrix"):
        raise TypeError(
            f"a {type(posterior).__name__} has neither variances nor a covariance of weights: give one with a "
            "diagonal, full or Kronecker-factored structure"
        )
    return precision.to_matrix(exponent=-1)  # type: ignore[no-any-return, union-attr]


def _of(posterior: Any, name: str) -> Tensor | None:
    found = getattr(posterior, name, None)
    return found if isinstance(found, Tensor) else None
