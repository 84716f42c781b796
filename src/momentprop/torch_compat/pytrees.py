"""Nested lists, tuples, dictionaries and values as pytrees, by torch's private `_pytree`.

The registry must be torch's, because `torch.func`, `torch.export` and `torch.compile` look there for a value's tensors.
If it is gone, momentprop uses `own_pytrees` itself.
"""

from collections.abc import Callable, Sequence
from typing import Any

from momentprop.torch_compat import own_pytrees
from momentprop.torch_compat.guard import known

_trees = known(
    "torch.utils._pytree",
    otherwise=own_pytrees,
    parts=("GetAttrKey", "register_pytree_node", "tree_flatten", "tree_leaves", "tree_map", "tree_unflatten"),
    loses="`torch.func`, `torch.export` and `torch.compile` do not see the tensors of a value",
)
tree_flatten = _trees.tree_flatten
tree_leaves = _trees.tree_leaves
tree_map = _trees.tree_map
tree_unflatten = _trees.tree_unflatten


def register(kind: type[Any], components: Sequence[str], build: Callable[..., Any]) -> None:
    """Register a type of value as a pytree of its components; `build` makes a value from them.

    What a value knows besides its tensors, `aside`, is the node's context.
    """

    def built(parts: Any, aside: Any) -> Any:
        value = build(*parts)
        if aside is not None:
            value.aside = aside
        return value

    _trees.register_pytree_node(
        kind,
        lambda value: ([getattr(value, name) for name in components], getattr(value, "aside", None)),
        built,
        flatten_with_keys_fn=lambda value: (
            [(_trees.GetAttrKey(name), getattr(value, name)) for name in components],
            getattr(value, "aside", None),
        ),
        serialized_type_name=f"momentprop.{kind.__qualname__}",
    )
