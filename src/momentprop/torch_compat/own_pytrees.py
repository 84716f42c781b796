"""The few pytree functions that momentprop needs, for a torch without `torch.utils._pytree`."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

Flatten = Callable[[Any], tuple[Iterable[Any], Any]]
Unflatten = Callable[[Iterable[Any], Any], Any]
Stop = Callable[[Any], bool] | None


class GetAttrKey(NamedTuple):
    """The name of a part of a value."""

    name: str


class Structure(NamedTuple):
    """A tree without its leaves; `kind` is None at a leaf."""

    kind: type[Any] | None = None
    context: Any = None
    parts: tuple["Structure", ...] = ()


_NODES: dict[type[Any], tuple[Flatten, Unflatten]] = {
    list: (lambda tree: (tree, None), lambda parts, _: list(parts)),
    tuple: (lambda tree: (tree, None), lambda parts, _: tuple(parts)),
    dict: (lambda tree: (tree.values(), list(tree)), lambda parts, keys: dict(zip(keys, parts, strict=True))),
    OrderedDict: (
        lambda tree: (tree.values(), list(tree)),
        lambda parts, keys: OrderedDict(zip(keys, parts, strict=True)),
    ),
}


def register_pytree_node(kind: type[Any], flatten: Flatten, unflatten: Unflatten, **_: Any) -> None:
    """Register a type as a node of trees."""
    _NODES[kind] = flatten, unflatten


def tree_flatten(tree: Any, is_leaf: Stop = None) -> tuple[list[Any], Structure]:
    """Return the leaves of a tree and its structure."""
    node = None if is_leaf is not None and is_leaf(tree) else _node(type(tree))
    if node is None:
        return [tree], Structure()
    parts, context = node[0](tree)
    flat = [tree_flatten(part, is_leaf) for part in parts]
    structure = Structure(type(tree), context, tuple(inner for _, inner in flat))
    return [leaf for leaves, _ in flat for leaf in leaves], structure


def tree_unflatten(leaves: Iterable[Any], structure: Structure) -> Any:
    """Return the tree with this structure and these leaves."""
    return _built(iter(leaves), structure)


def tree_leaves(tree: Any, is_leaf: Stop = None) -> list[Any]:
    """Return the leaves of a tree."""
    return tree_flatten(tree, is_leaf)[0]


def tree_map(function: Callable[[Any], Any], tree: Any, is_leaf: Stop = None) -> Any:
    """Return the tree with the function applied to every leaf."""
    leaves, structure = tree_flatten(tree, is_leaf)
    return tree_unflatten(map(function, leaves), structure)


def _node(kind: type[Any]) -> tuple[Flatten, Unflatten] | None:
    if issubclass(kind, tuple) and hasattr(kind, "_make"):
        return lambda tree: (tree, None), lambda parts, _: kind._make(parts)
    return _NODES.get(kind)


def _built(leaves: Iterator[Any], structure: Structure) -> Any:
    if structure.kind is None:
        return next(leaves)
    node = _node(structure.kind)
    assert node is not None
    return node[1]([_built(leaves, part) for part in structure.parts], structure.context)
