"""Records the operations of a function, its backward passes included, as a module of torch's own operations.

`torch.export` does not record derivatives taken inside a model. `make_fx` does, for arguments of fixed shapes.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from momentprop.torch_compat.guard import known, warn


def _refuse(*_: Any, **__: Any) -> Any:
    raise RuntimeError("this version of torch records no backward passes: leave out `covariance=True`")


_ATEN = torch.ops.aten
_make_fx = known(
    "torch.fx.experimental.proxy_tensor.make_fx",
    otherwise=_refuse,
    loses="ONNX programs have no covariance",
)


def traced(function: Callable[..., Any], args: Sequence[Tensor]) -> fx.GraphModule:
    """Return a function as a module for arguments like these; parts that do not depend on them are computed once.

    >>> slope = traced(lambda x: torch.func.grad(torch.sin)(x), (torch.zeros(()),))
    >>> slope(torch.tensor(0.0))
    tensor(1.)
    """
    with torch.no_grad():
        recorded = _make_fx(function, decomposition_table=_TRANSPOSES)(*args)
        module: fx.GraphModule = _make_fx(torch.func.functionalize(recorded))(*args)  # without in-place operations
        module.graph = _without_repeats(module.graph)
        _fold(module)
    return module


def _without_repeats(graph: fx.Graph) -> fx.Graph:
    """Keep only one of the operations that every backward pass repeats, such as formulas."""
    try:
        from torch._functorch.compile_utils import fx_graph_cse
    except ImportError:
        warn("torch._functorch.compile_utils.fx_graph_cse", "ONNX programs with a covariance are larger")
        return graph
    return fx_graph_cse(graph)


def _fold(module: fx.GraphModule) -> None:
    """Compute parts that depend on no argument, such as fixed random signs, and keep them as constants."""
    known: dict[fx.Node, Any] = {}

    def value_of(node: fx.Node) -> Any:
        return known[node]

    for node in module.graph.nodes:
        if node.op == "get_attr":
            known[node] = getattr(module, node.target)
        elif node.op == "call_function" and all(each in known for each in node.all_input_nodes):
            known[node] = node.target(*fx.map_arg(node.args, value_of), **fx.map_arg(node.kwargs, value_of))
    for number, (node, value) in enumerate(known.items()):
        if node.op == "call_function" and isinstance(value, Tensor) and node.users:
            module.register_buffer(f"folded{number}", value)
            with module.graph.inserting_before(node):
                node.replace_all_uses_with(module.graph.get_attr(f"folded{number}"))
    for node in reversed(known):
        if not node.users:
            module.graph.erase_node(node)  # even one that draws, which torch considers impure
    module.graph.eliminate_dead_code()
    module.delete_all_unused_submodules()
    module.recompile()


def _convolution_backward(
    grad: Tensor,
    input: Tensor,
    weight: Tensor,
    bias_sizes: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> Any:
    """The gradient by the input as a transposed convolution, which other runtimes support; other gradients stay."""
    if transposed or list(output_mask) != [True, False, False]:
        return NotImplemented
    sizes = zip(input.shape[2:], grad.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
    missing = [n - ((m - 1) * s - 2 * p + d * (k - 1) + 1) for n, m, k, s, p, d in sizes]
    found = _ATEN.convolution(grad, weight, None, stride, padding, dilation, True, missing, groups)
    return found, None, None


def _avg_pool2d_backward(
    grad: Tensor,
    input: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Any:
    """The gradient of averages as a transposed convolution with equal weights; averages without the padding stay."""
    if any(padding) or ceil_mode or divisor_override is not None or input.ndim != 4:
        return NotImplemented
    weight = torch.full(
        (1, 1, *kernel_size), 1 / (kernel_size[0] * kernel_size[1]), dtype=grad.dtype, device=grad.device
    )
    planes = grad.reshape(-1, 1, *grad.shape[2:])
    like = input.reshape(-1, 1, *input.shape[2:])
    how = (stride or kernel_size, (0, 0), (1, 1), False, (0, 0), 1, (True, False, False))
    return _convolution_backward(planes, like, weight, None, *how)[0].reshape(input.shape)


def _batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """A normalization in evaluation mode as a scale and a shift of each channel."""
    if training or running_mean is None or running_var is None:
        return NotImplemented
    scale = _scale(input, weight, running_var, eps)
    shape = scale.shape
    found = (input - running_mean.reshape(shape)) * scale
    nothing = input.new_empty(0)
    return found if bias is None else found + bias.reshape(shape), nothing, nothing


def _scale(input: Tensor, weight: Tensor | None, variance: Tensor, eps: float) -> Tensor:
    scale = torch.rsqrt(variance + eps)
    return (scale if weight is None else weight * scale).reshape(-1, *[1] * (input.ndim - 2))


def _batch_norm_backward(
    grad: Tensor,
    input: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_invstd: Tensor | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> Any:
    """The gradient by the input of a normalization in evaluation mode, which is a scale of each channel."""
    if train or running_var is None or list(output_mask) != [True, False, False]:
        return NotImplemented
    return grad * _scale(input, weight, running_var, eps), None, None


def _unfold_backward(grad: Tensor, sizes: Sequence[int], dim: int, size: int, step: int) -> Tensor:
    """The sum of windows at their places: elements `step` apart in them are joined, shifted and added."""
    total = grad.new_zeros(list(sizes))
    dim = dim % len(sizes)
    for start in range(0, size, step):
        part = grad[..., start : start + step]
        part = F.pad(part, [0, step - part.shape[-1]]).movedim(-1, dim + 1).flatten(dim, dim + 1)
        part = part.narrow(dim, 0, min(part.shape[dim], sizes[dim] - start))
        around = [0, 0] * (len(sizes) - 1 - dim) + [start, sizes[dim] - start - part.shape[dim]]
        total = total + F.pad(part, around)
    return total


_TRANSPOSES: dict[Any, Callable[..., Any]] = {
    _ATEN.convolution_backward.default: _convolution_backward,
    _ATEN.avg_pool2d_backward.default: _avg_pool2d_backward,
    _ATEN.native_batch_norm.default: _batch_norm,
    _ATEN.native_batch_norm_backward.default: _batch_norm_backward,
    _ATEN.unfold_backward.default: _unfold_backward,
}
"""Torch's backward passes as operations of other runtimes."""
