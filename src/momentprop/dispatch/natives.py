"""Torch's other names for an operation's parameters.

Some native functions share the name of a function of `torch.nn.functional`, but not its parameters: `torch.embedding`
takes the weight first, and the switch of `torch.dropout` is `train`. Native functions also accept numpy's names, as in
`torch.amax(x, axis=1)`. Rules and the table know one set of names; this module translates calls into it.
"""

from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch

from momentprop.dispatch.operand import MissingRule
from momentprop.dispatch.place import where as place

_NUMPY = {"axis": "dim", "keepdims": "keepdim", "x": "input", "a": "input", "x1": "input", "x2": "other"}

_RENAMED = {  # the parameters of any function of this name
    "alpha_dropout": {"train": "training"},
    "dropout": {"train": "training"},
    "embedding": {"indices": "input"},
    "feature_alpha_dropout": {"train": "training"},
    "feature_dropout": {"train": "training"},
    "resize_as": {"tensor": "the_template"},
    "split": {"tensor": "input"},
    "transpose": {"axis0": "dim0", "axis1": "dim1"},  # of `swapaxes`
}

_ORDER = {  # the native function's parameters, where the order differs from `torch.nn.functional`
    "batch_norm": "input weight bias running_mean running_var training momentum eps cudnn_enabled",
    "binary_cross_entropy_with_logits": "input target weight pos_weight reduction",
    "cosine_embedding_loss": "input1 input2 target margin reduction",
    "ctc_loss": "log_probs targets input_lengths target_lengths blank reduction zero_infinity",
    "embedding": "weight input padding_idx scale_grad_by_freq sparse",
    "group_norm": "input num_groups weight bias eps cudnn_enabled",
    "hinge_embedding_loss": "input target margin reduction",
    "instance_norm": "input weight bias running_mean running_var use_input_stats momentum eps cudnn_enabled",
    "kl_div": "input target reduction",
    "layer_norm": "input normalized_shape weight bias eps cudnn_enable",
    "margin_ranking_loss": "input1 input2 target margin reduction",
    "poisson_nll_loss": "input target log_input full eps reduction",
    "triplet_margin_loss": "anchor positive negative margin p eps swap reduction",
}

_NATIVE = {op: tuple(names.split()) for op, names in _ORDER.items()}
_IGNORED = ("cudnn_enable", "cudnn_enabled")
_REDUCTIONS = ("none", "mean", "sum")  # the meaning of native functions' numbers
_MORE = ("adaptive_max_pool1d", "embedding_bag")  # native functions that return indices too, which would be random

WORDS = frozenset((*_RENAMED, *_NATIVE, *_MORE))
"""The operations whose calls can need translation even without a keyword."""


def in_our_words(
    function: Callable[..., Any], operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return the arguments of a torch function under the names and in the order that rules know."""
    op = operation.name
    renamed = _RENAMED.get(op, {})
    native = not isinstance(function, FunctionType)
    if native and op in _NATIVE:
        names = _NATIVE[op]
        first = 1 if names[:1] == ("input",) and args else 0  # an in-place function writes to its first argument
        kwargs = {**dict(zip(names[first:], args[first:], strict=False)), **_named(kwargs, renamed)}
        args = [*args[:first], *args[max(first, len(names)) :]]
        return args, {name: _word(name, given) for name, given in kwargs.items() if name not in _IGNORED}
    if native and op in _MORE and getattr(torch, op) is function:
        raise MissingRule(f"`torch.{op}` at {place()} also returns indices: write `torch.nn.functional.{op}`")
    for alias in kwargs:
        if native and alias in _NUMPY and alias not in operation.positions:
            renamed = {**renamed, alias: _NUMPY[alias]}
    return args, _named(kwargs, renamed)


def _named(kwargs: Mapping[str, Any], renamed: Mapping[str, str]) -> Mapping[str, Any]:
    if not renamed:
        return kwargs
    return {renamed.get(name, name): argument for name, argument in kwargs.items()}


def _word(name: str, given: Any) -> Any:
    """Return the name for a native function's number."""
    return _REDUCTIONS[given] if name == "reduction" and isinstance(given, int) else given
