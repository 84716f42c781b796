"""Scripted code, which knows only tensors: refuses values in one sentence, takes means and samples."""

import warnings
from typing import Any

import pytest
import torch
from torch import nn

from momentprop import Mean, MissingRule, Sample
from tests.stack.inputs import Around, a_value, an_mlp


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
    with pytest.raises(MissingRule, match=f"Normal values cannot enter the scripted code at module {path}"):
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
