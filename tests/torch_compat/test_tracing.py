import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from momentprop.torch_compat.tracing import traced
from tests.torch_compat.gone import loaded_without


def test_recorded_derivatives_hold_for_other_arguments() -> None:
    layers = nn.Conv2d(2, 4, 3, stride=2, padding=1, dilation=2, groups=2), nn.AvgPool2d(2, stride=1), nn.Flatten()
    torch.manual_seed(0)
    model = nn.Sequential(*layers).double().requires_grad_(False)

    def gradient(x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return torch.autograd.grad(model(x).square().sum(), x)[0] + torch.ones(1).cumsum(0)

    example, other = torch.randn(2, 3, 2, 11, 12, dtype=torch.float64)
    recorded = traced(gradient, (example,))
    torch.testing.assert_close(recorded(other), gradient(other))
    names = {str(node.target) for node in recorded.graph.nodes}
    assert not [name for name in names if "backward" in name or "cumsum" in name]


def test_other_averages_keep_the_gradient_of_torch() -> None:
    def gradient(x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return torch.autograd.grad(F.avg_pool2d(x, 2, padding=1).square().sum(), x)[0]

    example, other = torch.randn(2, 1, 2, 6, 6)
    torch.testing.assert_close(traced(gradient, (example,))(other), gradient(other))


def test_without_it_a_covariance_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    module = loaded_without("torch.fx.experimental.proxy_tensor.make_fx", "tracing", monkeypatch)
    with pytest.raises(RuntimeError, match="records no backward passes: leave out `covariance=True`"):
        module.traced(torch.sin, (torch.zeros(1),))
