"""A model made ready for a method: its arguments, what is random in it, and the passes that are run."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from momentprop import fallbacks
from momentprop.dispatch.context import Watcher
from momentprop.mode import Propagation
from momentprop.recording import Recording
from momentprop.torch_compat import pytrees as pytree
from momentprop.torch_compat.modules import RunningNorm
from momentprop.values import Normal, Value
from momentprop.values.conversion import as_type, as_values, is_floating, is_value

Pass = Callable[[], tuple[Any, dict[str, Any]]]
"""Runs a model once, and gives its output and what was recorded."""


@dataclass(frozen=True)
class Run:
    """A call of a model, and what is random in it, as `propagate` describes them."""

    model: Callable[..., Any]
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    input_variance: Tensor | float | None = None
    dropout: bool = False
    fallback: Any = None
    seed: int | None = None

    @contextlib.contextmanager
    def by(
        self, kind: type[Value], recording: Recording | None = None, watcher: Watcher | None = None
    ) -> Iterator[Pass]:
        """Make the model ready to be run with values of a type; inside, a function runs it."""
        inputs = _Inputs(self.args, self.kwargs, self.input_variance)
        propagation = Propagation(kind, fallbacks.named(self.fallback), watcher)
        record = recording or Recording(self.model, kind, False)

        def run() -> tuple[Any, dict[str, Any]]:
            record.start()
            if watcher is not None:
                watcher.start(inputs.leaves)
            propagation.start()
            with propagation:
                given, named = inputs.of_type(kind)
                output = self.model(*given, **named)
            if watcher is not None:
                watcher.finish()
            return as_values(output, kind, propagation.seen), record.values

        training = _training_all_but_norms(self.model) if self.dropout else contextlib.nullcontext()
        with _seeded(self.seed), training, record:
            yield run

    def under(self, method: Callable[..., Any], record: bool = False) -> Any:
        """Run the model under a method that has the interface of `propagate`."""
        return method(self.model, *self.args, **self.kwargs, **self.noise, seed=self.seed, record=record)

    def plain(self) -> Any:
        """Run the model itself."""
        return self.model(*self.args, **self.kwargs)

    @property
    def noise(self) -> dict[str, Any]:
        """What is random, and the fallback, as `propagate` takes them."""
        return {"input_variance": self.input_variance, "dropout": self.dropout, "fallback": self.fallback}

    @property
    def first_tensor(self) -> Any:
        """The first tensor or value among the arguments."""
        leaves = pytree.tree_leaves((self.args, self.kwargs), is_leaf=is_tensor)
        return next((leaf for leaf in leaves if is_tensor(leaf)), None)

    @property
    def batch_size(self) -> int:
        """The number of inputs: the rows of the first tensor among the arguments."""
        first = self.first_tensor
        return int(first.shape[0]) if first is not None and first.ndim else 1

    @property
    def has_modules(self) -> bool:
        """Whether the model has modules to look into."""
        return isinstance(self.model, nn.Module)

    @property
    def may_vectorize(self) -> bool:
        """Whether draws may be made at once: not where a module in training keeps running statistics."""
        return may_vectorize(self.model)


def is_tensor(x: Any) -> bool:
    """Return whether an argument is a tensor or a value."""
    return isinstance(x, Tensor | Value)


def may_vectorize(model: Callable[..., Any]) -> bool:
    """Return whether draws of a model may be made at once."""
    modules = model.modules() if isinstance(model, nn.Module) else ()
    return not any(module.training and getattr(module, "running_mean", None) is not None for module in modules)


class _Inputs:
    """The arguments of a model, and the variance of one of them."""

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any], variance: Tensor | float | None) -> None:
        leaves, self.structure = pytree.tree_flatten((tuple(args), dict(kwargs)), is_leaf=is_value)
        if variance is not None:
            if any(is_value(leaf) for leaf in leaves):
                raise TypeError("input_variance was given beside an argument that is a value and has its own variance")
            first = next((i for i, leaf in enumerate(leaves) if is_floating(leaf)), None)
            if first is None:
                raise TypeError("input_variance was given, but no argument is a floating-point tensor")
            leaves[first] = Normal(leaves[first], variance)
        self.leaves = leaves

    def of_type(self, kind: type[Value]) -> Any:
        """Return the arguments with each value as one of this type; a value that is given twice remains one."""
        converted = {id(leaf): as_type(leaf, kind) for leaf in self.leaves if is_value(leaf)}
        return pytree.tree_unflatten([converted.get(id(leaf), leaf) for leaf in self.leaves], self.structure)


@contextlib.contextmanager
def _training_all_but_norms(model: Callable[..., Any]) -> Iterator[None]:
    """Tell all modules that they are training, but for those that would then take the statistics of the batch."""
    modules = model.modules() if isinstance(model, nn.Module) else ()
    resting = [m for m in modules if not m.training and not isinstance(m, RunningNorm)]
    try:
        for module in resting:
            module.training = True
        yield
    finally:
        for module in resting:
            module.training = False


@contextlib.contextmanager
def _seeded(seed: int | None) -> Iterator[None]:
    """Start torch's generators at a seed, and put them back afterwards."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield
