from types import ModuleType
from typing import Any

import pytest
import torch

from momentprop import Mean, Normal
from momentprop.torch_compat import UnknownTorchWarning, dynamo


def _value() -> Normal:
    return Normal(torch.arange(4.0).view(2, 2), 0.5)


def _operators(x: Any, w: torch.Tensor) -> Any:
    y = x @ w
    z = y[0]
    z += w[0]
    return torch.cat((y, w))


def test_compiled_operators_and_tuples_act_as_eager_ones() -> None:
    w = torch.tensor([[1.0, 2.0], [3.0, 5.0]])
    found, expected = (run(_value(), w) for run in (torch.compile(_operators, backend="eager"), _operators))
    torch.testing.assert_close(found.loc, expected.loc)
    torch.testing.assert_close(found.variance, expected.variance)


def test_only_unflatten_is_traced_by_another_name() -> None:
    assert dynamo.traceable("relu", torch.relu) is torch.relu
    unflatten = dynamo.traceable("unflatten", torch.Tensor.unflatten)
    torch.testing.assert_close(unflatten(torch.arange(4), 0, (2, 2)), torch.arange(4).unflatten(0, (2, 2)))
    assert torch.compile(lambda x: x.unflatten(0, (2, 2)), backend="eager")(Mean(torch.ones(4))).shape == (2, 2)


class _Builtin:
    _handle_insert_op_in_graph = staticmethod(lambda *args: args)
    _binops = staticmethod(dict)


@pytest.mark.parametrize(("name", "parts"), [("builtin", {}), ("torch_function", {"_flatten_vts": list})])
def test_a_dynamo_without_these_names_is_warned_of_once(name: str, parts: dict[str, Any]) -> None:
    module = ModuleType(name)
    vars(module).update(parts)
    with pytest.warns(UnknownTorchWarning, match=rf"`torch\._dynamo\.variables\.{name}` .* lists of values") as said:
        dynamo._repair(f"torch._dynamo.variables.{name}", module)
    assert len(said) == 1
    assert vars(module).items() >= parts.items()


def test_a_patch_that_fits_in_part_changes_nothing() -> None:
    module: Any = ModuleType("builtin")
    module.BuiltinVariable = _Builtin
    before = dict(vars(_Builtin))
    with pytest.warns(UnknownTorchWarning):  # `UserDefinedObjectVariable` is missing
        dynamo._repair("torch._dynamo.variables.builtin", module)
    assert dict(vars(_Builtin)) == before
