"""`repeated`: many passes of one shape, recorded once as a CUDA graph and replayed."""

import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from momentprop.codegen import programs
from momentprop.torch_compat import pytrees as pytree
from momentprop.torch_compat.functorch import is_forward_mode, is_transforming

_WARM_UP = 3  # calls in which libraries choose their algorithms
_MOST = 8  # recordings that are kept


class _Recording(NamedTuple):
    graph: torch.cuda.CUDAGraph
    inputs: list[Any]
    outputs: list[Any]
    tree: Any  # the structure of the outputs


class Repeated:
    """A model for many passes: see `repeated`."""

    def __init__(self, model: Callable[..., Any]) -> None:
        self.model = model
        self._recordings: OrderedDict[Hashable, _Recording | None] = OrderedDict()
        self._members: list[tuple[Any, str, Any]] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model, or replay the pass that was recorded for arguments like these."""
        leaves, tree = pytree.tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if not tensors or not all(tensor.is_cuda for tensor in tensors) or self._needs_graph_of_gradients(tensors):
            return self.model(*args, **kwargs)
        if not self._is_as_recorded():
            self._recordings.clear()
            self._members = _members_of(self.model)
        key = (tree, torch.is_inference_mode_enabled(), *map(_kind, leaves))
        try:
            known = key in self._recordings
        except TypeError:  # an argument that is neither a tensor nor hashable
            return self.model(*args, **kwargs)
        if not known:
            self._recordings[key] = self._recorded(leaves, tree)
            if len(self._recordings) > _MOST:
                self._recordings.popitem(last=False)
        recording = self._recordings[key]
        return self.model(*args, **kwargs) if recording is None else _replayed(recording, leaves)

    def _needs_graph_of_gradients(self, tensors: list[Tensor]) -> bool:
        if torch.compiler.is_compiling() or is_transforming() or is_forward_mode():
            return True
        return torch.is_grad_enabled() and (
            not isinstance(self.model, nn.Module)
            or any(tensor.requires_grad for tensor in (*tensors, *self.model.parameters()))
        )

    def _is_as_recorded(self) -> bool:
        """Return whether every module and tensor of the model is the recorded one, in the same memory."""
        return bool(self._members) and all(
            _state(getattr(owner, name, None)) == was for owner, name, was in self._members
        )

    def _recorded(self, leaves: list[Any], tree: Any) -> _Recording | None:
        """Record a pass, or say why that is impossible."""
        inputs = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(inputs, tree)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP):
                self.model(*args, **kwargs)
                programs.wait()  # what is recorded now is replayed in every later call
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                result = self.model(*args, **kwargs)
        except RuntimeError as error:
            warnings.warn(
                f"the model cannot be recorded as a CUDA graph, and runs without one, at its usual speed: {error}",
                RuntimeWarning,
                stacklevel=3,
            )
            return None
        return _Recording(graph, inputs, *pytree.tree_flatten(result))


def repeated(model: Callable[..., Any]) -> Repeated:
    """Return a function for many passes of a model over arguments of the same shapes.

    At small batches a GPU finishes the operations of a pass faster than Python can launch them. So the first pass is
    recorded as a CUDA graph, and later ones replay it, which launches everything together. Arguments of another shape,
    or a model in another mode or with other parameters, lead to a new recording; parameters that an optimizer changes
    in place do not. The model itself runs if gradients are recorded, on a CPU, and if it looks at its data: call it
    under `torch.no_grad()`.

    The model is a module, or a function of tensors and values. All other tensors that a function reads must keep
    their memory.

    >>> import torch, momentprop
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
    >>> fast = momentprop.repeated(model)
    >>> with torch.no_grad():
    ...     y = fast(momentprop.Normal(torch.zeros(1, 2), 1.0))
    >>> y.shape
    torch.Size([1, 3])
    """
    return Repeated(model)


def _replayed(recording: _Recording, leaves: list[Any]) -> Any:
    for own, given in zip(recording.inputs, leaves, strict=True):
        if isinstance(own, Tensor):
            own.copy_(given)
    recording.graph.replay()
    outputs = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in recording.outputs]
    return pytree.tree_unflatten(outputs, recording.tree)


def _kind(leaf: Any) -> Hashable:
    if isinstance(leaf, Tensor):
        return leaf.shape, leaf.dtype, leaf.device, leaf.stride()
    return leaf  # type: ignore[no-any-return]


def _members_of(model: Any) -> list[tuple[Any, str, Any]]:
    """Return the modules, parameters and buffers of a model by their owners and names, with the state of each."""
    if not isinstance(model, nn.Module):
        return [(model, "__class__", _state(type(model)))]
    found: list[tuple[Any, str, Any]] = [(model, "training", _state(model.training))]
    for module in model.modules():
        parts = (module.named_children(), module.named_parameters(recurse=False), module.named_buffers(recurse=False))
        found += [(module, name, _state(part)) for each in parts for name, part in each]
    return found


def _state(part: Any) -> Hashable:
    """Return what a recording depends on: a tensor's memory, or a module and its mode."""
    if isinstance(part, Tensor):
        return part.data_ptr(), part.shape, part.dtype
    return (id(part), part.training) if isinstance(part, nn.Module) else part
