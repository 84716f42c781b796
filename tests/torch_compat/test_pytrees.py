from collections import OrderedDict, namedtuple
from typing import Any

import pytest
import torch
from torch.utils import _pytree as torchs

from momentprop import Normal
from momentprop.torch_compat import own_pytrees, pytrees
from tests.torch_compat.gone import loaded_without

Pair = namedtuple("Pair", "first second")

_TREES: list[Any] = [
    3,
    None,
    [],
    [1, (2, [3]), {"b": 4, "a": [5, 6]}],
    Pair(1, (2,)),
    OrderedDict([("z", 1), ("a", {2: 3})]),
    ((), {}, [None]),
    {1, 2},
]


@pytest.mark.parametrize("tree", _TREES)
def test_our_own_pytrees_are_as_torchs(tree: Any) -> None:
    leaves, structure = own_pytrees.tree_flatten(tree)
    assert leaves == torchs.tree_leaves(tree) == own_pytrees.tree_leaves(tree)
    assert own_pytrees.tree_unflatten(leaves, structure) == tree
    assert own_pytrees.tree_map(str, tree) == torchs.tree_map(str, tree)
    assert type(own_pytrees.tree_map(str, tree)) is type(torchs.tree_map(str, tree))


@pytest.mark.parametrize("trees", [torchs, own_pytrees])
def test_a_tree_is_cut_where_one_says(trees: Any) -> None:
    tree = [(1, 2), {"a": (3,)}]
    assert trees.tree_leaves(tree, is_leaf=lambda x: isinstance(x, tuple)) == [(1, 2), (3,)]
    assert trees.tree_map(len, tree, is_leaf=lambda x: isinstance(x, tuple)) == [2, {"a": 1}]


def test_torch_sees_the_components_of_a_value() -> None:
    x = Normal(torch.zeros(1), 2.0)
    assert [float(leaf) for leaf in pytrees.tree_leaves([x])] == [0.0, 2.0]
    assert pytrees.tree_leaves is torchs.tree_leaves
    assert [torchs.keystr(path) for path, _ in torchs.tree_flatten_with_path(x)[0]] == [".loc", ".variance"]


class Both:
    def __init__(self, left: Any, right: Any) -> None:
        self.left, self.right = left, right


def test_without_torchs_pytrees_our_own_take_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_pytrees, "_NODES", dict(own_pytrees._NODES))
    module = loaded_without("torch.utils._pytree", "pytrees", monkeypatch)
    assert module.tree_map is own_pytrees.tree_map
    module.register(Both, ("left", "right"), Both)
    leaves, structure = module.tree_flatten({"x": Both(1, [2, 3])})
    assert leaves == [1, 2, 3]
    made = module.tree_unflatten([4, 5, 6], structure)["x"]
    assert (made.left, made.right) == (4, [5, 6])
