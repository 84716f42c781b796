"""Runs one item's recorded operations for many items at once; an export leaves their number open."""

import operator
from typing import Any

import torch
from torch import Tensor, fx, nn

_ATEN = torch.ops.aten


class Lifted(nn.Module):
    """A program recorded for one item by `traced`, as a module for any number of items.

    >>> from momentprop.torch_compat.tracing import traced
    >>> program = traced(lambda x: (x.sum(1),), (torch.ones(1, 3),))
    >>> Lifted(program)(torch.ones(2, 3))
    (tensor([3., 3.]),)
    """

    def __init__(self, program: fx.GraphModule) -> None:
        super().__init__()
        self.program = program

    def forward(self, *inputs: Tensor) -> Any:
        """Run the program on inputs with items along the first dimension."""
        found = _OverItems(self.program).run(*(x.unsqueeze(1) for x in inputs))
        return fx.node.map_aggregate(found, lambda x: x.squeeze(1) if isinstance(x, Tensor) else x)


class _OverItems(fx.Interpreter):
    """Runs every operation that depends on the inputs under `vmap`, with the items in the first dimension.

    For a few operations, the rules of `vmap` fix the number of items; these are written out here.
    """

    def run(self, *args: Any, **kwargs: Any) -> Any:
        self.many: set[fx.Node] = set()
        return super().run(*args, **kwargs)

    def run_node(self, n: fx.Node) -> Any:
        """Run one operation."""
        if n.op == "placeholder" or any(each in self.many for each in n.all_input_nodes):
            self.many.add(n)
        if n.op != "call_function" or n not in self.many or n.target is operator.getitem:
            return super().run_node(n)
        own = _OWN.get(n.target)
        if own is not None and (n.target is not _CONVOLUTION or not self.many & set(n.all_input_nodes[1:])):
            return own(*fx.map_arg(n.args, self._repeated), **fx.map_arg(n.kwargs, self._repeated))
        nodes = n.all_input_nodes

        def of_one(*tensors: Any) -> Any:
            given = dict(zip(nodes, tensors, strict=True))
            args: Any = fx.map_arg(n.args, given.__getitem__)
            kwargs: Any = fx.map_arg(n.kwargs, given.__getitem__)
            return n.target(*args, **kwargs)  # type: ignore[operator]

        dims = tuple(0 if each in self.many else None for each in nodes)
        return torch.vmap(of_one, dims)(*(self.env[each] for each in nodes))

    def _repeated(self, node: fx.Node) -> Any:
        """Return a node's result for every item, or `_Shared` for a tensor that all items share."""
        found = self.env[node]
        return found if node in self.many else _Shared(found)


class _Shared:
    """A tensor that all items share."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def over(self, items: Any) -> Tensor:
        """Return it once for every item."""
        return self.tensor.unsqueeze(0).expand(items, *self.tensor.shape)


def _each(*given: Any) -> list[Any]:
    """Return tensors with the items in the first dimension."""
    items = next(x.shape[0] for x in given if isinstance(x, Tensor))
    return [x.over(items) if isinstance(x, _Shared) else x for x in given]


def _along(dim: int) -> int:
    return dim + 1 if dim >= 0 else dim


def _convolution(x: Tensor, weight: _Shared, bias: _Shared | None, *how: Any) -> Any:
    found = _CONVOLUTION(x.flatten(0, 1), weight.tensor, None if bias is None else bias.tensor, *how)
    return found.unflatten(0, x.shape[:2])


def _pooled(operation: Any) -> Any:
    def pooled(x: Tensor, *how: Any) -> Any:
        return operation(x.flatten(0, 1), *how).unflatten(0, x.shape[:2])

    return pooled


def _cat(parts: list[Any], dim: int = 0) -> Any:
    return torch.cat(_each(*parts), _along(dim))


def _gather(x: Any, dim: int, index: Any, **how: Any) -> Any:
    x, index = _each(x, index)
    return _ATEN.gather(x, _along(dim), index, **how)


def _added(x: Any, dim: int, index: Any, source: Any) -> Any:
    x, index, source = _each(x, index, source)
    return _ATEN.scatter_add(x, _along(dim), index, source)


def _scattered(operation: Any) -> Any:
    def scattered(x: Any, source: Any, dim: int, *where: Any) -> Any:
        return operation(*_each(x, source), _along(dim), *where)

    return scattered


def _fill(x: Any, value: Any) -> Any:
    x, value = _each(x, value)
    return value.reshape(-1, *[1] * (x.ndim - 1)).expand_as(x).clone()


_CONVOLUTION = _ATEN.convolution.default
_OWN: dict[Any, Any] = {
    _CONVOLUTION: _convolution,
    _ATEN.cat.default: _cat,
    _ATEN.gather.default: _gather,
    _ATEN.fill.Tensor: _fill,
    _ATEN.avg_pool2d.default: _pooled(_ATEN.avg_pool2d),
    _ATEN._adaptive_avg_pool2d.default: _pooled(_ATEN._adaptive_avg_pool2d),
    _ATEN.scatter_add.default: _added,
    _ATEN.select_scatter.default: _scattered(_ATEN.select_scatter),
    _ATEN.slice_scatter.default: _scattered(_ATEN.slice_scatter),
}
"""Operations whose rules under `vmap` fix the number of items."""
