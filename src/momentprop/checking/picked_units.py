"""Picks the units of a module's output to measure, and names them."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from momentprop.values import Value
from momentprop.values.structures import leaves_of


def name_of_output(model: Any) -> str:
    """A name for the output of the model, different from those of its modules."""
    children = dict(model.named_children()) if isinstance(model, nn.Module) else {}
    return "output" if "output" not in children else "(output)"


def leaves(tree: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The values of an output with their names: `name`, or `name.key` and `name[index]` inside a structure."""
    if isinstance(tree, Value):
        yield name, tree
    elif isinstance(tree, Mapping):
        for key, item in tree.items():
            yield from leaves(item, f"{name}.{key}")
    elif isinstance(tree, list | tuple):
        for index, item in enumerate(tree):
            yield from leaves(item, f"{name}[{index}]")
    elif not isinstance(tree, Tensor):
        values = [value for value in leaves_of(tree) if isinstance(value, Value)]
        yield from ((f"{name}[{index}]", value) for index, value in enumerate(values))


def name_of_the_end(outputs: Mapping[str, Any]) -> str:
    """The name of the final output: the logits, or the first one."""
    if not outputs:
        raise ValueError("the output of the model has no floating-point tensor to check: return one")
    end = next((name for name in outputs if name.endswith(".logits")), next(iter(outputs)))
    if outputs[end].numel() == 0:
        raise ValueError(f"{end!r} of the model has no elements to check: its shape is {tuple(outputs[end].shape)}")
    return end


class UnitPicker:
    """Picks at most `limit` units of every output at random; always the same ones for outputs of one size."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.shapes: dict[str, tuple[int, ...]] = {}  # of the whole outputs
        self.paths: dict[str, str] = {}  # of their modules
        self._indices: dict[tuple[int, torch.device], Tensor] = {}

    def __call__(self, path: str, tree: Any) -> dict[str, Any]:
        """The picked units of each value of an output, as flat values."""
        found = dict(leaves(tree, path))
        self.shapes.update((name, tuple(value.shape)) for name, value in found.items())
        self.paths.update(dict.fromkeys(found, path))
        return {name: self._flat(value) for name, value in found.items()}

    def _flat(self, value: Any) -> Any:
        if self.limit is None or value.numel() <= self.limit:
            return value.each(lambda part: part.clone().flatten())
        index = self._index(value.numel(), value.device)
        return value.each(lambda part: part.flatten()[index])

    def _index(self, count: int, device: torch.device) -> Tensor:
        if (count, device) not in self._indices:
            shuffled = torch.randperm(count, generator=torch.Generator().manual_seed(count))
            self._indices[count, device] = shuffled[: self.limit].sort().values.to(device)
        return self._indices[count, device]
