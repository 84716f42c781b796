"""Nothing outside `momentprop.torch_compat` touches a private part of torch."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributions import Distribution
from torch.distributions.transforms import Transform

_ROOT = Path(__file__).parents[2]
_PACKAGES = [path for path in (_ROOT / "src" / "momentprop", _ROOT / "experiments" / "src") if path.exists()]
_FILES = sorted(file for path in _PACKAGES for file in path.rglob("*.py") if "torch_compat" not in file.parts)

# public names of torch that are undocumented, or on their way out
_FRAGILE = {"BackwardHook", "DisableTorchFunction", "get_ignored_functions", "is_exporting", "jit"}
# what every module, tensor and distribution has
_INHERITED = {
    name
    for kind in (nn.Module(), torch.zeros(()), Distribution, Transform, torch.autograd.Function)
    for name in dir(kind)
    if name.startswith("_") and not name.startswith("__")
}


def _private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _imported(tree: ast.AST) -> set[str]:
    """The names that stand for torch, or for something of it."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {item.asname or "torch" for item in node.names if item.name.split(".")[0] == "torch"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            found |= {item.asname or item.name for item in node.names}
    return found


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _own_attributes(tree: ast.AST) -> set[ast.AST]:
    """What `self` has in classes without a base, where no name is inherited."""
    plain = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and not node.bases]
    inside = {node for kind in plain for node in ast.walk(kind)}
    return {node for node in inside if isinstance(node, ast.Attribute) and _root(node) == "self"}


def touches(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of every use of a private or fragile name of torch."""
    tree = ast.parse(source)
    names, own = _imported(tree), _own_attributes(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            given = [getattr(node, "module", None) or "", *(item.name for item in node.names)]
            parts = [part for path in given for part in path.split(".")]
            if _of_torch(node) and any(_private(part) or part in _FRAGILE for part in parts):
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Attribute):
            of_torch = _root(node) in names and (_private(node.attr) or node.attr in _FRAGILE)
            if of_torch or (node.attr in _INHERITED and node not in own):
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "setattr", "hasattr", "delattr"):
            name = node.args[1].value if isinstance(node.args[1], ast.Constant) else ""
            if name in _INHERITED or (_root(node.args[0]) in names and _private(str(name))):
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.ClassDef) and node.bases:
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and method.name in _INHERITED:
                    yield method.lineno, f"def {method.name}"


def _of_torch(node: ast.Import | ast.ImportFrom) -> bool:
    paths = [item.name for item in node.names] if isinstance(node, ast.Import) else [node.module or ""]
    return any(path.split(".")[0] == "torch" for path in paths)


def test_private_names_of_torch_are_used_in_one_room_only() -> None:
    assert len(_FILES) > 100
    found = [f"{file.relative_to(_ROOT)}:{line}: {text}" for file in _FILES for line, text in touches(file.read_text())]
    assert not found, "move these to `momentprop.torch_compat`:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch._C.f()",
        "import torch\nx = torch.jit.ScriptFunction",
        "import torch._dynamo",
        "import torch.nn as n\nn.modules.batchnorm._NormBase",
        "from torch import _C",
        "from torch.utils import _pytree as pytree",
        "from torch._dynamo.utils import counters",
        "from torch import nn\nnn.modules.dropout._DropoutNd",
        "from torch.autograd import forward_ad\nforward_ad._current_level",
        "from torch.overrides import get_ignored_functions",
        "import torch\ngetattr(torch, '_pack_padded_sequence')",
        "def f(module):\n    return module._forward_hooks",
        "def f(tensor):\n    return tensor._version",
        "def f(tensor):\n    return getattr(tensor, '_version', 0)",
        "class A(Module):\n    def _apply(self, fn):\n        pass",
        "class A(Module):\n    def f(self):\n        return self._modules",
    ],
)
def test_every_way_to_a_private_name_is_found(source: str) -> None:
    assert list(touches(source))


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch.relu(x)",
        "self._mine = other._yours",
        "import torch\ntorch.Tensor.__add__",
        "class A:\n    def _apply(self):\n        return self._modules",
    ],
)
def test_public_names_and_names_of_others_are_left_alone(source: str) -> None:
    assert not list(touches(source))
