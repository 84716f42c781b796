"""Identifies a model: the classes and the constants of its modules, and names, shapes and SHA-256 of its tensors."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from momentprop.calibration.constants import constants
from momentprop.files import sha256
from momentprop.torch_compat.tensors import writes

Weights = dict[str, tuple[str, list[int], str]]
"""Type, shape and SHA-256 of tensors, by name."""

_NOTHING = (None, None, None)

Constants = dict[str, dict[str, str]]
"""The attributes of the module at each path, as text."""


@dataclass(frozen=True)
class Fingerprint:
    """Tells whether a model is the calibrated one, and otherwise what differs.

    The last two are None in a file of an older version, which cannot tell whether constants have changed.
    """

    modules: dict[str, str]  # the class of the module at each path
    weights: Weights  # the floating-point parameters and buffers in the model's `state_dict`
    constants: Constants | None = None
    held: Weights | None = None  # all other tensors

    @classmethod
    def of(cls, model: Callable[..., Any]) -> "Fingerprint":
        """The fingerprint of a module; that of a function is empty."""
        if not isinstance(model, nn.Module):
            return cls({}, {}, {}, {})
        modules = {path: type(module).__name__ for path, module in model.named_modules()}
        texts, held = attributes(model)
        return cls(modules, _hashed(tensors(model)), texts, _hashed(held.items()))

    def difference(self, model: Callable[..., Any]) -> str | None:
        """How a model differs, or None; tensors in another precision count as equal, and new attributes are ignored."""
        other = Fingerprint.of(model)
        for path in {**self.modules, **other.modules}:
            mine, found = self.modules.get(path), other.modules.get(path)
            if mine != found:
                return f"module {path!r} is {_of_class(found)} and was {_of_class(mine)}"
        held = {name: found for name, found in (other.held or {}).items() if name in (self.held or {})}
        return (
            _changed(self.weights, other.weights)
            or _changed(self.held or {}, held)
            or _changed_constant(self.constants or {}, other.constants or {})
        )

    def glance(self, model: nn.Module) -> tuple[Any, ...]:
        """A key that is cheap compared with a pass of the model, and changes with everything that the fingerprint sees.

        Modules and tensors count by their identity, tensors also by torch's count of writes and by a random projection
        of their elements, which shows writes through `.data`.
        """
        texts, held = attributes(model)
        mine = [texts.get(path, {}).get(name) for path, here in (self.constants or {}).items() for name in here]
        every = [tensor for _, tensor in tensors(model)] + [held[name] for name in self.held or () if name in held]
        weights = tuple((id(x), x.data_ptr(), writes(x)) for x in every)
        return (*map(id, model.modules()), mine, weights, _projections(every))

    @property
    def tells_constants(self) -> bool:
        """Whether the fingerprint holds the constants of the model."""
        return self.constants is not None and self.held is not None


def of_what_lasts(model: Callable[..., Any], passed: Callable[..., Any]) -> Fingerprint:
    """The fingerprint of a model without its state: without what a pass changed in `passed`, a copy of the model."""
    now = Fingerprint.of(model)
    if not isinstance(model, nn.Module) or not isinstance(passed, nn.Module):
        return now
    (_, held), (texts, later) = attributes(model), attributes(passed)
    lasting = {
        path: {name: found for name, found in here.items() if texts.get(path, {}).get(name) == found}
        for path, here in (now.constants or {}).items()
    }
    same = {name for name, tensor in held.items() if later.get(name) is tensor}
    buffers = _hashed((name, later[name]) for name, _ in model.named_buffers() if name in later)
    kept = {name: x for name, x in (now.held or {}).items() if name in same or buffers.get(name) == x}
    return Fingerprint(now.modules, now.weights, lasting, kept)


def tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The floating-point parameters and buffers in a model's `state_dict`, by name."""
    for name, tensor in model.state_dict(keep_vars=True).items():
        if isinstance(tensor, Tensor) and tensor.is_floating_point():
            yield name, tensor


def attributes(model: nn.Module) -> tuple[Constants, dict[str, Tensor]]:
    """The constants of every module as text, and the tensors that `tensors` leaves out.

    These are other buffers, such as integers and those that are not saved, and tensors among the constants.
    """
    texts: Constants = {}
    known = {id(tensor) for _, tensor in tensors(model)}
    named = (*model.named_parameters(), *model.named_buffers())
    held = {name: tensor for name, tensor in named if id(tensor) not in known}
    known |= {id(tensor) for tensor in held.values()}
    for path, module in model.named_modules():
        here = texts[path] = {}
        for name, text, inside in constants(module):
            here[name] = text
            for index, tensor in enumerate(inside):
                if id(tensor) not in known and tensor.grad_fn is None:  # otherwise it is computed from others
                    held[f"{path}.{name}[{index}]".lstrip(".")] = tensor
    return texts, held


def _projections(every: Sequence[Tensor]) -> list[float]:
    found: dict[torch.device, list[Tensor]] = {}
    with contextlib.ExitStack() as stack:
        for kind in {x.device.type for x in every}:
            stack.enter_context(torch.autocast(kind, enabled=False))
        for x in every:
            if x.numel():
                found.setdefault(x.device, []).append(_projection(x.detach()))
    return [number for numbers in found.values() for number in torch.stack(numbers).tolist()]  # one transfer


def _projection(x: Tensor) -> Tensor:
    x = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
    exact = torch.float32 if x.is_floating_point() and x.itemsize <= 4 else torch.float64
    rows = x.to(exact).reshape(len(x) if x.ndim else 1, -1)
    along = rows @ _direction(rows.shape[1], exact, x.device)
    return along.double() @ _direction(len(rows), torch.float64, x.device)


_DIRECTIONS: dict[tuple[int, torch.dtype, torch.device], Tensor] = {}


def _direction(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A random vector, the same in all calls."""
    key = (size, dtype, device)
    if key not in _DIRECTIONS:
        if len(_DIRECTIONS) >= 256:
            _DIRECTIONS.clear()
        with torch.inference_mode(False):
            drawn = torch.rand(size, generator=torch.Generator().manual_seed(size), dtype=torch.float64, device="cpu")
            _DIRECTIONS[key] = (drawn + 0.5).to(device, dtype)
    return _DIRECTIONS[key]


def _hashed(given: Iterable[tuple[str, Tensor]]) -> Weights:
    return {name: (str(x.dtype), list(x.shape), sha256(x)) for name, x in given}


def _changed(before: Weights, now: Weights) -> str | None:
    """How tensors have changed, or None."""
    for name in {**before, **now}:
        dtype, shape, digest = before.get(name, _NOTHING)
        dtype_now, shape_now, digest_now = now.get(name, _NOTHING)
        if shape != shape_now:
            return f"{name!r} has the shape {shape_now} and had {shape}"
        if dtype == dtype_now and digest != digest_now:
            return f"the weights {name!r} have changed"
    return None


def _changed_constant(before: Constants, now: Constants) -> str | None:
    """Which constant has changed, or None."""
    for path, here in before.items():
        for name, was in here.items():
            found = now.get(path, {}).get(name, "missing")
            if found != was:
                return f"`{name}` of {f'module {path!r}' if path else 'the model'} is {found} and was {was}"
    return None


def _of_class(module: str | None) -> str:
    return "missing" if module is None else f"of class {module}"
