"""Backward hooks and scripted code, where torch loses values: warned of, or refused."""

import warnings
from typing import Any

import pytest
import torch
from torch import nn

from momentprop import Mean, MissingRule, Sample
from tests.stack.inputs import Around, a_value, an_mlp, loss_of


def test_backward_hooks_on_values_warn_once_for_each_module() -> None:
    model, x = Around(), a_value(5, 6)
    model.body[0].register_full_backward_hook(lambda *_: None)
    model.body[2].register_full_backward_pre_hook(lambda *_: None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model(x)
        model(x)
    ours = [str(warning.message) for warning in caught if "see no gradients" in str(warning.message)]
    assert len(ours) == 2
    assert "module 'body.0' (Linear) of Around" in ours[0]
    assert "module 'body.2' (Linear) of Around" in ours[1]


def test_backward_hooks_on_tensors_do_not_warn() -> None:
    model, fired = an_mlp(), []
    model[0].register_full_backward_hook(lambda *_: fired.append(True))
    model(a_value(5, 6).loc.requires_grad_()).sum().backward()
    assert fired


def test_hooks_on_the_components_replace_backward_hooks() -> None:
    model, x, seen = an_mlp(), a_value(5, 6), []
    model[1].register_forward_hook(lambda module, args, y: [y.loc.register_hook(seen.append), None][1])
    loss_of(model(x)).backward()
    assert seen[0].shape == (5, 16)


def test_legacy_backward_hooks_raise_at_the_module() -> None:
    model = an_mlp()
    model[0].register_backward_hook(lambda *_: None)
    with pytest.raises(IndexError) as error:
        model(a_value(5, 6))
    assert "module '0' (Linear) of Sequential" in error.value.__notes__[0]


def _scripted(how: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        if how == "function":
            return torch.jit.script(_shifted)
        return torch.jit.script(an_mlp()) if how == "script" else torch.jit.trace(an_mlp(), torch.ones(5, 6).double())


def _shifted(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) + 1


@pytest.mark.parametrize(("how", "path"), [("script", "'body.0' "), ("trace", "'body.0' "), ("function", "Around")])
def test_scripted_code_is_refused_in_one_sentence(how: str, path: str) -> None:
    scripted = _scripted(how)
    body = nn.Sequential(scripted if how != "function" else nn.Identity())
    model = Around((lambda self, x: scripted(x)) if how == "function" else None, body)
    with pytest.raises(MissingRule, match=f"no Normal rule can enter the scripted code at module {path}"):
        model(a_value(5, 6))


@pytest.mark.parametrize("kind", [Mean, Sample])
@pytest.mark.parametrize("how", ["script", "trace", "function"])
def test_means_and_samples_pass_scripted_code(how: str, kind: Any) -> None:
    scripted, x = _scripted(how), a_value(5, 6).loc
    found = scripted(kind(x))
    assert type(found) is kind
    torch.testing.assert_close(found.loc, scripted(x), rtol=0, atol=0)


def test_scripted_functions_still_take_tensors() -> None:
    torch.testing.assert_close(_scripted("function")(torch.ones(3)), torch.full((3,), 2.0))
