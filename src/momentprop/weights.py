"""Random weights: a model with values instead of some of its parameters."""

import difflib
import fnmatch
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from momentprop.torch_compat.replica import Replica
from momentprop.values import Independent, Joint, Normal, Sample, Value
from momentprop.values.conversion import as_type, is_value
from momentprop.values.sources import Segment

Weights = Mapping[str, Any] | Tensor | float
"""What `weights=` may be: variances or values by parameter name, or one variance for all."""


def with_weights(model: nn.Module, weights: Weights) -> nn.Module:
    """Return the model with random weights: the same modules, with values instead of some parameters.

    >>> import torch, momentprop
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.ReLU()).requires_grad_(False)
    >>> _ = model[0].weight.fill_(1.0), model[0].bias.fill_(0.5)
    >>> random = momentprop.with_weights(model, {"0.weight": 0.1})
    >>> momentprop.propagate(random, torch.tensor([[3.0, 4.0]]))
    Joint(loc=tensor([[7.5000]]),
          covariance=<on request>)
    >>> momentprop.propagate(random, torch.tensor([[3.0, 4.0]]), covariance=False)
    Normal(loc=tensor([[7.5000]]),
           variance=tensor([[2.5000]]))

    The result goes wherever a model goes: `propagate`, `check`, `calibrate`. `propagate(model, x, weights=...)` makes
    it for one call. The model itself stays as it is, and shares its tensors with the result. Move the model to its
    device first: values do not move with modules.

    Args:
        model: any module.
        weights: variances by the names of parameters, as in `model.named_parameters()`. A variance is a number or a
            tensor that broadcasts to the parameter. A name can be a pattern, such as `"*.weight"`; later entries win
            over earlier ones. Instead of a variance you can give a `Normal` or a `Joint` with the shape of the
            parameter, whose mean then replaces the parameter. One number is the variance of all parameters.

    A parameter that occurs in several places is one random weight, with the same noise in all of them.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"random weights need an `nn.Module`, but the model is a {type(model).__name__}: give a module")
    replica = Replica(model)
    chosen = _chosen(dict(replica.module.named_parameters(remove_duplicate=False)), weights)
    values = {id(parameter): value for parameter, value in chosen}
    _require_reached(replica, values)
    for _, module in replica.pairs:
        state = vars(module)
        for name, parameter in list(state["_parameters"].items()):
            if id(parameter) in values:
                del state["_parameters"][name]
                state[name] = values[id(parameter)]
        _replace_in_lists(state, lambda x: values.get(id(x), x))
        state["_apply"] = _refuse_to_move
    return replica.module


def _refuse_to_move(*_: Any, **__: Any) -> Any:
    raise RuntimeError(
        "a model with random weights shares its tensors with the one that it was made from, and cannot be moved or "
        "converted: move or convert that one, and call `with_weights` again"
    )


def has_values(modules: Iterable[nn.Module]) -> bool:
    """Return whether modules have values as parameters."""
    for module in modules:
        for kind in set(map(type, vars(module).values())) - _NO_VALUES:
            if issubclass(kind, Value):
                return True
    return False


_NO_VALUES = {type(None), bool, int, float, str, tuple, list, dict, set, OrderedDict}  # types of most attributes


def converted(replica: Replica, kind: type[Value]) -> None:
    """Give the modules of a replica their random weights as values of a type: one draw of each, for `Sample`.

    A weight that occurs in several places remains one.
    """
    made: dict[int, tuple[Any, Any]] = {}
    drawn: dict[Segment, Tensor] = {}

    def of_kind(x: Any) -> Any:
        if not is_value(x):
            return x
        if id(x) not in made:
            made[id(x)] = x, _as_kind(x, kind, drawn)
        return made[id(x)][1]

    for _, module in replica.pairs:
        state = vars(module)
        for name, x in list(state.items()):
            if is_value(x):
                state[name] = of_kind(x)
        _replace_in_lists(state, of_kind)
    replica.values = list(made.values())


def with_means(model: Any) -> Any:
    """Return a model with plain tensors, the means, instead of its random weights."""
    replica = Replica(model)

    def mean(x: Any) -> Any:
        return x.loc if is_value(x) else x

    for _, module in replica.pairs:
        state = vars(module)
        state.update({name: mean(x) for name, x in state.items() if is_value(x)})
        _replace_in_lists(state, mean)
    return replica.model


def _as_kind(x: Any, kind: type[Value], drawn: dict[Segment, Tensor]) -> Any:
    x = x if torch.is_grad_enabled() else x.detach()
    if isinstance(x, Joint) and issubclass(kind, Sample):
        return kind.of(_draw(x, drawn))
    if isinstance(x, Joint) and issubclass(kind, Independent):
        found = as_type(x, kind)
        found.given = x
        return found
    return x.each(lambda part: part) if type(x) is kind else as_type(x, kind)


def _draw(x: Joint, drawn: dict[Segment, Tensor]) -> Tensor:
    """Return a draw of a weight, from draws of the sources that it shares with others."""
    total, start = x.loc + x.own.clamp(min=0.0).sqrt() * torch.randn_like(x.loc), 0
    for segment in x.sources:
        factors, start = x.factors[start : start + segment.number], start + segment.number
        if segment not in drawn:
            drawn[segment] = torch.randn(segment.number, dtype=x.dtype, device=x.device)
        total = total + torch.tensordot(drawn[segment], factors, 1)
    return total


def _replace_in_lists(state: dict[str, Any], function: Callable[[Any], Any]) -> None:
    """Replace elements of lists among attributes, such as the flat weights of a recurrent layer."""
    for name, x in state.items():
        if type(x) is list:
            new = [function(each) for each in x]
            if any(a is not b for a, b in zip(new, x, strict=True)):
                state[name] = new


def _chosen(parameters: Mapping[str, Tensor], weights: Weights) -> Iterator[tuple[Tensor, Value]]:
    """Yield the parameters that become random, and their values."""
    given: Mapping[str, Any] = weights if isinstance(weights, Mapping) else {"*": weights}
    by_name: dict[str, Any] = {}
    for name, noise in given.items():
        matching = [name] if name in parameters else fnmatch.filter(parameters, name)
        if not matching:
            raise ValueError(_unknown(name, parameters))
        by_name.update(dict.fromkeys(matching, noise))
    for name, noise in by_name.items():
        yield parameters[name], _value(name, parameters[name], noise)


def _value(name: str, parameter: Tensor, noise: Any) -> Value:
    if isinstance(noise, Distribution):
        noise = Normal.from_distribution(noise)
    if isinstance(noise, Normal | Joint):
        if noise.shape != parameter.shape:
            raise ValueError(
                f"the value for {name!r} must have the shape {tuple(parameter.shape)}, but has {tuple(noise.shape)}"
            )
        if isinstance(noise, Joint) and noise.batch_dim is not None:
            raise ValueError(
                f"the Joint for {name!r} has items along dimension {noise.batch_dim}, but a weight is a single item: "
                "make it with `batch_dim=None`"
            )
        return noise
    if not isinstance(noise, Tensor | float | int) or isinstance(noise, bool):
        raise TypeError(f"the noise for {name!r} must be a variance or a Normal, but is a {type(noise).__name__}")
    try:
        with torch.inference_mode(False):  # the value may meet autograd later
            return Normal(parameter, noise)
    except (ValueError, TypeError) as error:
        raise type(error)(f"the variance of the weight {name!r}: {error}") from None


def _unknown(name: str, parameters: Mapping[str, Tensor]) -> str:
    if not parameters:
        return f"{name!r} names no weight: the model has no parameters, or all of them are random already"
    near = difflib.get_close_matches(name, parameters, n=1)
    more = ", ..." if len(parameters) > 5 else ""
    hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(map(repr, list(parameters)[:5]))}{more}"
    return f"the model has no parameter {name!r}: {hint}"


def _require_reached(replica: Replica, values: Mapping[int, Any]) -> None:
    """Refuse random weights for a module whose code refers to the module itself, such as a compiled or scripted one."""
    for module in replica.shared:
        if any(id(parameter) in values for parameter in module.parameters(recurse=False)):
            raise TypeError(
                f"a {type(module).__name__} of compiled, scripted or distributed code cannot have random weights: give "
                "the module that it was made from"
            )
