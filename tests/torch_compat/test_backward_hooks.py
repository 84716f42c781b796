import pytest
import torch
from torch import nn

from momentprop import Normal
from momentprop.torch_compat import UnknownTorchWarning, backward_hooks


def _hooked() -> tuple[nn.Module, list[bool]]:
    layer, fired = nn.Linear(2, 2), []
    layer.register_full_backward_hook(lambda *_: fired.append(True))
    return layer, fired


@pytest.mark.filterwarnings("ignore:For backward hooks to be called:UserWarning")  # of torch, for some outputs
def test_a_value_that_backward_hooks_skip_is_warned_of() -> None:
    layer, fired = _hooked()
    with pytest.warns(UserWarning, match="the backward hooks of module Linear see no gradients of a Normal"):
        layer(Normal(torch.ones(1, 2), 1.0)).loc.sum().backward()
    assert not fired


def test_backward_hooks_see_tensors_as_before() -> None:
    layer, fired = _hooked()
    layer(torch.ones(1, 2, requires_grad=True)).sum().backward()
    assert fired


@pytest.mark.parametrize("name", ["BackwardHook", "BackwardHook.setup_output_hook"])
def test_torch_without_these_hooks_is_warned_of_and_left_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hook = torch.utils.hooks.BackwardHook
    before = hook.setup_input_hook
    monkeypatch.delattr(f"torch.utils.hooks.{name}")
    with pytest.warns(
        UnknownTorchWarning, match=r"`torch\.utils\.hooks\.BackwardHook` .* nothing warns of that"
    ) as said:
        backward_hooks.install(lambda *_: iter(()), str)
    assert len(said) == 1
    assert hook.setup_input_hook is before
