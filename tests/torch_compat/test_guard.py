"""Every name of torch that the room reads may go: one warning, and the module loads."""

import ast
import os
import subprocess
import sys
import warnings
from pathlib import Path
from types import ModuleType

import pytest
import torch

import momentprop
from momentprop import torch_compat
from momentprop.torch_compat import guard
from tests.torch_compat.gone import ROOM, fresh, loaded_without

_MODULES = sorted(file.stem for file in ROOM.glob("*.py") if file.stem != "__init__")


def _read_names() -> list[tuple[str, str]]:
    """Each module of the room with every path that it asks `known` for, and with the parts of it."""
    found = []
    for module in _MODULES:
        for node in ast.walk(ast.parse((ROOM / f"{module}.py").read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "known":
                path = ast.literal_eval(node.args[0])
                parts = next((ast.literal_eval(word.value) for word in node.keywords if word.arg == "parts"), ())
                found += [(module, path)] if not parts else [(module, f"{path}.{part}") for part in parts]
    return found


@pytest.mark.parametrize(("module", "path"), _read_names())
def test_a_name_that_is_gone_is_warned_of_once(module: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded_without(path, module, monkeypatch)


@pytest.mark.parametrize("module", _MODULES)
def test_nothing_is_said_of_this_torch(module: str) -> None:
    assert fresh(module)[1] == []


@pytest.mark.parametrize("module", _MODULES)
def test_the_room_lists_each_of_its_modules(module: str) -> None:
    assert torch_compat.__doc__ is not None
    assert f"`{module}`" in torch_compat.__doc__


@pytest.mark.parametrize("module", _MODULES)
def test_the_room_imports_nothing_from_above(module: str) -> None:
    for node in ast.walk(ast.parse((ROOM / f"{module}.py").read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("momentprop"):
            assert (node.module or "").startswith("momentprop.torch_compat")


@pytest.mark.parametrize("error", [AttributeError, ImportError, KeyError, TypeError])
def test_a_patch_that_does_not_fit_is_warned_of(error: type[Exception]) -> None:
    def patch() -> None:
        raise error

    with pytest.warns(
        guard.UnknownTorchWarning, match=r"does not know `torch\.x` of this torch \(2\..*\): all is lost"
    ):
        guard.patched("torch.x", patch, loses="all is lost")


def test_an_error_of_another_kind_is_not_hidden() -> None:
    def patch() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        guard.patched("torch.x", patch, loses="all is lost")


def test_a_second_installation_changes_nothing() -> None:
    hook = torch.utils.hooks.BackwardHook
    before = hook.setup_input_hook, torch.jit.ScriptFunction.__call__, list(sys.meta_path)
    torch_compat.install(momentprop.dispatch.Operand, momentprop.dispatch.values_in, momentprop.dispatch.where)
    assert before == (hook.setup_input_hook, torch.jit.ScriptFunction.__call__, list(sys.meta_path))


_DELETED = (
    "torch.jit.ScriptFunction",
    "torch._C.ScriptMethod",
    "torch._C._len_torch_function_stack",
    "torch._C._get_function_stack_at",
    "torch._C.DisableTorchFunction",
    "torch._C._functorch.is_functorch_wrapped_tensor",
    "torch._C._functorch.peek_interpreter_stack",
    "torch._C._functorch.get_interpreter_stack",
    "torch.nn.modules.batchnorm._BatchNorm",
    "torch.nn.modules.batchnorm._NormBase",
    "torch.nn.modules.dropout._DropoutNd",
    "torch.utils.checkpoint.CheckpointFunction",
    "torch.utils.hooks.BackwardHook",
    "torch.utils._pytree.tree_map",
)

_IMPORT = """
import functools, sys, warnings
import torch
import torch.utils.checkpoint
for path in sys.argv[1:]:
    *owner, name = path.split(".")[1:]
    delattr(functools.reduce(getattr, owner, torch), name)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import momentprop
said = [str(one.message) for one in caught if issubclass(one.category, momentprop.torch_compat.UnknownTorchWarning)]
print(len(said), *said, sep="\\n")
model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2), torch.nn.ReLU(), torch.nn.Dropout()).eval()
y = momentprop.propagate(model, {"input": torch.ones(4, 3)}["input"], input_variance=1.0, dropout=True)
assert y.variance.shape == (4, 2) and bool((y.variance > 0).all()), y
assert momentprop.propagate(model, torch.ones(4, 3), method="sample", input_variance=1.0, samples=9).loc.shape == (4, 2)
print("torch._dynamo" in sys.modules)
"""


def _import_without(*paths: str) -> list[str]:
    source = str(Path(momentprop.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": source, "PYTHONWARNINGS": "default"}
    run = subprocess.run(
        [sys.executable, "-c", _IMPORT, *paths], capture_output=True, text=True, env=environment, check=False
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


def test_import_does_without_scripted_functions() -> None:
    count, said, _ = _import_without("torch.jit.ScriptFunction")
    assert count == "1"
    assert "does not know `torch.jit.ScriptFunction` of this torch" in said


def test_import_does_without_all_of_them_at_once() -> None:
    count, *said, _ = _import_without(*_DELETED)
    assert int(count) == len(_DELETED)
    for path in _DELETED:
        assert any(f"`{path}`" in line for line in said), path


def test_import_neither_warns_nor_loads_dynamo() -> None:
    assert _import_without() == ["0", "False"]


def test_a_fake_module_is_told_from_torch() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch_compat.dynamo._repair("torch._dynamo.variables.torch_function", ModuleType("other"))
    assert len(caught) == 1
