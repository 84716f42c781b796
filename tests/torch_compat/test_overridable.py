import pytest
import torch
import torch.nn.functional as F

from momentprop.torch_compat import UnknownTorchWarning
from momentprop.torch_compat.overridable import make_overridable


def test_a_function_is_taken_off_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {F.relu, F.gelu}
    monkeypatch.setattr(torch.overrides, "get_ignored_functions", lambda: kept)
    make_overridable(F.relu)
    assert kept == {F.gelu}


@pytest.mark.parametrize("function", [F.hardswish, F.hardsigmoid])
def test_the_functions_that_torch_forgot_are_not_ignored(function) -> None:
    assert function not in torch.overrides.get_ignored_functions()


@pytest.mark.parametrize("function", [F.hardswish, F.hardsigmoid])
def test_they_compile_with_values(function) -> None:
    from momentprop import Normal

    x = Normal(torch.ones(2), 1.0)
    found = torch.compile(function, backend="eager", fullgraph=True)(x)
    torch.testing.assert_close(found.variance, function(x).variance)


@pytest.mark.parametrize(
    "listing",
    [None, lambda: {F.relu}, lambda: frozenset({F.relu})],
    ids=["gone", "made anew", "read-only"],
)
def test_a_list_of_another_kind_is_warned_of_once(listing, monkeypatch: pytest.MonkeyPatch) -> None:
    if listing is None:
        monkeypatch.delattr(torch.overrides, "get_ignored_functions")
    else:
        monkeypatch.setattr(torch.overrides, "get_ignored_functions", listing)
    with pytest.warns(UnknownTorchWarning, match="`relu` of a value is not compiled") as said:
        make_overridable(F.relu)
    assert len(said) == 1
