import pytest
import torch
from torch import nn

from momentprop import Normal
from momentprop.torch_compat import UnknownTorchWarning
from momentprop.torch_compat.values_as_parameters import install


def test_a_value_takes_the_place_of_a_parameter_for_one_call() -> None:
    layer = nn.Linear(2, 1)
    before = dict(layer.named_parameters())
    found = torch.func.functional_call(layer, {"weight": Normal(torch.ones(1, 2), 0.1)}, (torch.ones(1, 2),))
    torch.testing.assert_close(found.variance, torch.tensor([[0.2]]))
    assert all(layer.get_parameter(name) is weight for name, weight in before.items())


def test_what_is_no_tensor_is_still_refused() -> None:
    with pytest.raises(TypeError, match="is not an instance of"):
        torch.func.functional_call(nn.Linear(2, 1), {"weight": "ones"}, (torch.ones(1, 2),))  # type: ignore[dict-item]


def test_names_of_other_types_stay_as_they_are() -> None:
    assert torch.typename(torch.ones(1)) == "torch.FloatTensor"
    assert torch.typename(nn.Linear(1, 1)).endswith("Linear")
    assert "with_weights" in torch.typename(Normal(torch.ones(1), 0.1))


def test_a_torch_without_these_functions_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.nn.utils._named_member_accessor, "swap_tensor")
    monkeypatch.delattr(torch, "typename")
    with pytest.warns(UnknownTorchWarning) as said:
        install(Normal)
    texts = [str(each.message) for each in said]
    assert "takes no values" in texts[0]
    assert "typename" in texts[1]
