"""A model prepared for a method: its arguments, what is random in it, and its passes."""

import contextlib
import dataclasses
import functools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from momentprop import fallbacks
from momentprop.dispatch.context import Watcher
from momentprop.folding import Folding
from momentprop.mode import Propagation, warn_of_draw
from momentprop.randomness import Foreign
from momentprop.recording import Recording
from momentprop.torch_compat import pytrees as pytree
from momentprop.torch_compat.modules import RunningNorm, are_of_torch, every_module
from momentprop.torch_compat.replica import Replica
from momentprop.undoing import leaves_no_trace, undo_at_the_end, undo_now
from momentprop.values import Normal, Sample, Value
from momentprop.values.conversion import as_type, as_values, copied, is_floating, is_value
from momentprop.values.folded import Fold, Folded, NotFolded
from momentprop.values.given_noise import has_noise, nothing_to_make_random
from momentprop.values.structures import CLOSED, leaves_of, mapped
from momentprop.weights import converted, has_values

Pass = Callable[[], tuple[Any, dict[str, Any]]]
"""Runs a model once, and gives its output and what was recorded."""


class FoldedPass(NamedTuple):
    """The result of a pass with draws in one batch: its output, what was recorded, and the bytes of all it made."""

    output: Any
    recorded: dict[str, Any]
    bytes: int


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
    then: Callable[[Any], Any] | None = None  # applied to the output inside each pass

    @contextlib.contextmanager
    def by(
        self, kind: type[Value], recording: Recording | None = None, watcher: Watcher | None = None
    ) -> Iterator[Pass]:
        """Prepare the model for values of a type, and yield a function that runs it.

        Every pass runs on a replica of the model and on copies of its arguments, so these stay as they were, and no
        pass sees what another wrote.
        """
        inputs = _Inputs(self.args, self.kwargs, self.input_variance)
        propagation = Propagation(kind, fallbacks.named(self.fallback), watcher)
        record = recording or Recording(self.model, kind, False)
        watching = watcher or Watcher()
        light = not record.paths and type(watching).on is Watcher.on and not watching.needs_graph

        @leaves_no_trace
        def run() -> tuple[Any, dict[str, Any]]:
            replica = self._replica(kind, light)
            if watching.needs_graph and not torch.is_grad_enabled():
                replica.detach_parameters()  # nobody will ask for their gradients
            record.start()
            watching.start(inputs.leaves)
            given, named = inputs.of_type(kind, watching.enter)
            propagation.start()
            foreign = None if not torch.compiler.is_compiling() and self.is_of_torch else Foreign()
            if light:
                with propagation:
                    output = self._passed(replica, given, named)
            else:
                graph = torch.enable_grad() if watching.needs_graph else contextlib.nullcontext()
                with record.on(replica), watching.on(replica), propagation, graph:
                    output = self._passed(replica, given, named)
            watching.finish()
            if kind is Sample:
                inputs.require_unwritten()
            else:
                for source in foreign.have_drawn if foreign is not None else ():
                    warn_of_draw(source, "an unknown place", kind)
                replica.carry_back(lambda x: _is_plain(x, propagation.seen))
            return as_values(output, kind, propagation.seen), record.values

        if self.seed is None and kind is not Sample:
            yield run
            return
        with _seeded(self.seed):
            yield run

    def _passed(self, replica: Replica, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the output of a replica."""
        output = replica.model(*args, **kwargs)
        return output if self.then is None else self.then(output)

    def folded(self, recording: Recording, count: int, most: int) -> FoldedPass:
        """Run the model once for a number of draws in one batch; `by` has prepared it.

        The draws of the output and of what is recorded are stacked along a new first dimension. The pass is abandoned
        if the model may mix draws, or makes more than `most` bytes.
        """
        if self.has_random_weights:
            raise NotFolded("a random weight, which is one for all items")
        fold = Fold(count, most)
        inputs = _Inputs(self.args, self.kwargs, self.input_variance)
        recording.start()
        given, named = inputs.folded(fold)
        if self.is_of_torch and not self.dropout and not recording.paths:
            output = _run_folded(self.model, fold, given, named)  # which assigns nothing to itself
        else:
            replica = self._replica(Sample)
            if replica.shared:
                raise NotFolded("a module that is compiled")
            with recording.on(replica):
                output = _run_folded(replica.model, fold, given, named, self.then)
        inputs.require_unwritten()
        draws = functools.partial(_stacked, fold)
        recorded = mapped(draws, recording.values) if recording.values else {}
        return FoldedPass(mapped(draws, output), recorded, fold.bytes)

    def _replica(self, kind: type[Value], light: bool = False) -> Replica:
        """Return the replica for one pass: with dropout that acts and, for a draw, its own buffers.

        If neither is needed, a `light` one shares what it can.
        """
        light = light and kind is not Sample and not self.dropout and not self.has_random_weights
        replica = Replica(self.model, light)
        if kind is Sample:
            replica.own_buffers(but=_keeps_statistics)
        if self.has_random_weights:
            converted(replica, kind)
        if self.dropout:
            _let_noise_act(replica)
        return replica

    def apart(self) -> "Run":
        """Return the run with copies of the model's buffers and of the arguments, which passes may write to."""
        replica = Replica(self.model)
        replica.own_buffers(but=_keeps_statistics)
        args, kwargs = pytree.tree_map(copied, (tuple(self.args), dict(self.kwargs)), is_leaf=is_tensor)
        return dataclasses.replace(self, model=replica.model, args=args, kwargs=kwargs)

    def settled(self) -> "Run":
        """Return the run with a value instead of the argument that `input_variance` makes random."""
        inputs = _Inputs(self.args, self.kwargs, self.input_variance)
        args, kwargs = inputs.arranged(inputs.leaves)
        return dataclasses.replace(self, args=args, kwargs=kwargs, input_variance=None)

    def items(self, batch_dim: int) -> int | None:
        """Return the number of items: the size of the first tensor among the arguments along a dimension."""
        first = self.first_tensor
        if first is None or not -first.ndim <= batch_dim < first.ndim:
            return None
        return int(first.shape[batch_dim])

    def piece(self, batch_dim: int, start: int, stop: int) -> "Run":
        """Return the run on some of the items: tensors with that many items along a dimension are cut there."""
        items = self.items(batch_dim)
        made: dict[int, Any] = {}  # one that is passed twice remains one

        def cut(x: Any) -> Any:
            if not is_tensor(x) or not -x.ndim <= batch_dim < x.ndim or x.shape[batch_dim] != items:
                return x
            if id(x) not in made:
                made[id(x)] = x.narrow(batch_dim % x.ndim, start, stop - start)
            return made[id(x)]

        args, kwargs = pytree.tree_map(cut, (tuple(self.args), dict(self.kwargs)), is_leaf=is_tensor)
        return dataclasses.replace(self, args=args, kwargs=kwargs)

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
    def nbytes(self) -> int:
        """The bytes of all tensors among the arguments; a value counts as one."""
        simple = not self.kwargs and all(map(is_tensor, self.args))
        leaves = self.args if simple else pytree.tree_leaves((self.args, self.kwargs), is_leaf=is_tensor)
        return sum(leaf.shape.numel() * leaf.dtype.itemsize for leaf in leaves if is_tensor(leaf))

    @functools.cached_property
    def modules(self) -> list[nn.Module]:
        """The modules of the model, which torch is slow to find."""
        return every_module(self.model) if isinstance(self.model, nn.Module) else []

    @property
    def has_random_weights(self) -> bool:
        """Whether some parameters are values."""
        return not torch.compiler.is_compiling() and self._has_values

    @functools.cached_property
    def _has_values(self) -> bool:
        return has_values(self.modules)

    @functools.cached_property
    def is_of_torch(self) -> bool:
        """Whether all code of the model is torch's or ours, so it draws no random numbers from elsewhere."""
        return self.then is None and self.has_modules and are_of_torch(self.modules)

    @property
    def may_vectorize(self) -> bool:
        """Whether several draws may run together: not if a module in training keeps running statistics."""
        return not _keep_running_statistics(self.modules)


def is_tensor(x: Any) -> bool:
    """Return whether an argument is a tensor or a value."""
    return isinstance(x, Tensor | Value)


def _run_folded(
    model: Callable[..., Any],
    fold: Fold,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    then: Callable[[Any], Any] | None = None,
) -> Any:
    """Run a model with draws in one batch, and make sure that no operation mixed them."""
    with Folding(fold):
        output = model(*args, **kwargs)
        output = output if then is None else then(output)
    if fold.refused or not fold.bytes:
        raise NotFolded("the model")
    return output


def _stacked(fold: Fold, x: Any) -> Any:
    """Return the draws along a new first dimension; for anything but a floating-point tensor, the first draw."""
    if isinstance(x, Folded):
        draws = x.unfolded()
    elif isinstance(x, Sample) or is_floating(x):
        draws = fold.stacked(x.loc if isinstance(x, Sample) else x)
    else:
        return x
    return Sample.of(draws) if draws.is_floating_point() else draws[0]


def of_each_draw(function: Callable[[Any], Any], output: Any) -> Any:
    """Apply a function that moves elements to each draw of an output, whose draws are stacked."""
    count = next(len(leaf.loc) for leaf in leaves_of(output) if isinstance(leaf, Sample))
    fold = Fold(count, sys.maxsize)
    result = function(mapped(lambda x: fold.drawn(x.loc) if isinstance(x, Sample) else x, output))
    return mapped(functools.partial(_stacked, fold), result)


def _is_leaf(x: Any) -> bool:
    return type(x) is Tensor or is_value(x)


def may_vectorize(model: Callable[..., Any]) -> bool:
    """Return whether several draws of a model may run together."""
    return not isinstance(model, nn.Module) or not _keep_running_statistics(model.modules())


def _keep_running_statistics(modules: Iterable[nn.Module]) -> bool:
    for module in modules:  # noqa: SIM110 (a loop enters no frames)
        if module.training and getattr(module, "running_mean", None) is not None:
            return True
    return False


class _Inputs:
    """The arguments of a model, and the variance of one of them."""

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any], variance: Tensor | float | None) -> None:
        leaves: list[Any]
        self.made: Normal | None = None  # the argument that the variance makes random
        if not kwargs and all(map(_is_leaf, args)):  # the usual case: nothing to take apart
            leaves, self.structure = list(args), None
        else:
            leaves, self.structure = pytree.tree_flatten((tuple(args), dict(kwargs)), is_leaf=is_value)
        if variance is not None:
            if any(is_value(leaf) for leaf in leaves):
                raise TypeError(has_noise(leaves, "input_variance or input_std"))
            first = next((i for i, leaf in enumerate(leaves) if is_floating(leaf)), None)
            if first is None:
                raise TypeError(nothing_to_make_random(leaves, "input_variance or input_std"))
            leaves[first] = self.made = Normal(leaves[first], variance)
            if isinstance(variance, float | int):
                self.made.number = float(variance)  # type: ignore[misc]
        self.leaves = leaves
        self.empty = [leaf for leaf in leaves if not is_tensor(leaf) and not leaves_of(leaf)]

    def arranged(self, leaves: list[Any]) -> Any:
        """Return these leaves as arguments and keywords."""
        return (tuple(leaves), {}) if self.structure is None else pytree.tree_unflatten(leaves, self.structure)

    def folded(self, fold: Fold) -> Any:
        """Return copies of the arguments, with draws in one batch instead of the values."""
        copies: dict[int, Any] = {}
        for leaf in self.leaves:
            if id(leaf) not in copies:
                copies[id(leaf)] = fold.drawn(leaf.sample(fold.count)) if is_value(leaf) else _copied(leaf)
        return self.arranged([copies[id(leaf)] for leaf in self.leaves])

    def require_unwritten(self) -> None:
        """Refuse draws of a model that filled an empty object: the next draw would find it filled."""
        for leaf in self.empty:
            if leaves_of(leaf):
                raise RuntimeError(
                    f"the model wrote into the {type(leaf).__name__} it was given, so that each draw would see what "
                    f"the others wrote: let the model make a {type(leaf).__name__} of its own"
                )

    def of_type(self, kind: type[Value], enter: Callable[[Sequence[Any], Sequence[Any]], None]) -> Any:
        """Return copies of the arguments, with values of this type; one that is passed twice remains one."""
        copies: dict[int, Any] = {}
        for leaf in self.leaves:
            if id(leaf) not in copies:
                if not is_value(leaf):
                    copy = _copied(leaf)
                elif leaf is self.made:  # nobody else has it
                    copy = as_type(leaf, kind).each(torch.clone)
                else:
                    copy = as_type(leaf, kind).copied()
                copies[id(leaf)] = copy
        enter(list({id(leaf): leaf for leaf in self.leaves}.values()), list(copies.values()))
        return self.arranged([copies[id(leaf)] for leaf in self.leaves])


def _copied(x: Any) -> Any:
    """Return a copy of an argument that is not a value: a tensor, or an object that a model may write to."""
    if isinstance(x, Tensor):
        return x.clone()
    if x is None or isinstance(x, CLOSED) or torch.compiler.is_compiling():
        return x
    return mapped(copied, x)


def _keeps_statistics(module: nn.Module) -> bool:
    return module.training and isinstance(module, RunningNorm)


def _is_plain(x: Any, seen: Callable[[Any], Any]) -> bool:
    """Return whether something contains neither a value nor a tensor that has become one in the pass."""
    return not any(is_value(seen(leaf)) for leaf in leaves_of(x))


def _let_noise_act(replica: Replica) -> None:
    """Put all modules into training mode, except those that would then use the statistics of the batch."""
    resting = [module for module in replica.modules if not module.training and not isinstance(module, RunningNorm)]
    shared = [module for module in replica.shared if module in resting]
    if shared:
        undo_at_the_end(functools.partial(_set_training, shared, False))
    _set_training(resting, True)


def _set_training(modules: Sequence[nn.Module], training: bool) -> None:
    for module in modules:
        module.training = training


_DRAWING = threading.RLock()
"""Held by calls that draw: all threads share torch's generators, so a seed works for one call at a time."""


@contextlib.contextmanager
def _seeded(seed: int | None) -> Iterator[None]:
    """Keep other draws out, start torch's generators at a seed if there is one, and put them back afterwards."""
    with _DRAWING:
        if seed is None:
            yield
            return
        restore = _generators_as_they_are()
        undo_at_the_end(restore)
        try:
            torch.manual_seed(seed)
            yield
        finally:
            undo_now(restore)  # while other draws are still kept out


def _generators_as_they_are() -> Callable[[], None]:
    """Return a function that puts torch's generators back to their present state."""
    state = torch.get_rng_state()
    on_gpus = [torch.cuda.get_rng_state(gpu) for gpu in range(torch.cuda.device_count())]

    def restore() -> None:
        torch.set_rng_state(state)
        for gpu, there in enumerate(on_gpus):
            torch.cuda.set_rng_state(there, gpu)

    return restore
