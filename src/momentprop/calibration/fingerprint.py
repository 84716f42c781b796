"""Identifies a model by the classes of its modules and the names, shapes and SHA-256 of its weights."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from momentprop.files import sha256
from momentprop.torch_compat.tensors import writes


@dataclass(frozen=True)
class Fingerprint:
    """Tells whether a model is the calibrated one, and otherwise what differs."""

    modules: dict[str, str]  # the class of the module at each path
    weights: dict[str, list[Any]]  # type, shape and SHA-256 of each floating-point parameter and buffer

    @classmethod
    def of(cls, model: Callable[..., Any]) -> "Fingerprint":
        """The fingerprint of a module; that of a function is empty."""
        if not isinstance(model, nn.Module):
            return cls({}, {})
        modules = {path: type(module).__name__ for path, module in model.named_modules()}
        weights = {name: [str(x.dtype), list(x.shape), sha256(x)] for name, x in tensors(model)}
        return cls(modules, weights)

    def difference(self, model: Callable[..., Any]) -> str | None:
        """How a model differs, or None. Weights in another precision count as equal."""
        other = Fingerprint.of(model)
        for path in {**self.modules, **other.modules}:
            mine, found = self.modules.get(path), other.modules.get(path)
            if mine != found:
                return f"module {path!r} is {_named(found)} and was {_named(mine)}"
        for name in {**self.weights, **other.weights}:
            dtype, shape, digest = self.weights.get(name, [None] * 3)
            now, shape_now, digest_now = other.weights.get(name, [None] * 3)
            if shape != shape_now:
                return f"{name!r} has the shape {shape_now} and had {shape}"
            if dtype == now and digest != digest_now:
                return f"the weights {name!r} have changed"
        return None


def tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The floating-point parameters and buffers in a model's `state_dict`, by name."""
    for name, tensor in model.state_dict(keep_vars=True).items():
        if isinstance(tensor, Tensor) and tensor.is_floating_point():
            yield name, tensor


def state(model: nn.Module) -> tuple[Any, ...]:
    """A cheap key that changes when a module or a weight is replaced, or a weight is written to."""
    every = (*model.parameters(), *model.buffers())
    weights = ((id(x), x.data_ptr(), writes(x)) for x in every)
    return (*map(id, model.modules()), *weights)


def _named(module: str | None) -> str:
    return "missing" if module is None else f"of class {module}"
