"""Where corrections are: at every operation that mixes units."""

import torch
import torch.nn.functional as F
from torch import nn

from momentprop import Normal, calibrate, propagate
from momentprop.calibration.operations import Place
from momentprop.dispatch.context import Watcher
from momentprop.running import Run
from tests.calibration.models import NEW, X
from tests.networks import TransformerBlock


class Spellings(nn.Module):
    """Mixing operations in many spellings, and one layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.twice = nn.Conv2d(4, 4, 3, padding=1)
        self.weight = nn.Parameter(torch.randn(4, 5))

    def forward(self, x):
        x = self.conv(x).relu()
        y = self.twice(self.twice(x).relu())
        y += x
        y = F.relu(y - F.avg_pool2d(F.pad(x, (1, 1, 1, 1)), 3, 1), inplace=True)
        y = y + torch.tanh(y)  # a function of one value
        return y.mean((2, 3)) @ self.weight + x.sum(dim=(-1, -2), keepdim=True).mean()


def test_every_mixing_operation_has_a_place():
    model = Spellings().eval()
    calibration = calibrate(model, torch.randn(8, 2, 5, 5), input_variance=0.1, samples=20)
    found = [(place.path, place.op, place.call, place.dims, place.channels) for place in calibration.places]
    assert found == [
        ("conv", "conv2d", 1, (-3,), 4),
        ("twice", "conv2d", 1, (-3,), 4),
        ("twice", "conv2d", 2, (-3,), 4),
        ("", "add", 1, (-3,), 4),
        ("", "avg_pool2d", 1, (-3,), 4),
        ("", "sub", 1, (-3,), 4),
        ("", "add", 2, (), 1),
        ("", "mean", 1, (-1,), 4),
        ("", "matmul", 1, (-1,), 5),
        ("", "sum", 1, (-3,), 4),
        ("", "mean", 2, (), 1),
        ("", "add", 3, (-1,), 5),
    ]
    assert [place.corrected for place in calibration.places].count(False) == 1
    assert not calibration.places[6].corrected  # `y + tanh(y)` is evaluated as one function, which has no channels


def test_attention_is_corrected_by_head_and_scores_are_left_alone():
    model = TransformerBlock().eval()
    calibration = calibrate(model, torch.randn(6, 5, 8), input_variance=0.1, samples=20)
    found = {(place.path, place.op, place.call): place for place in calibration.places}
    assert found["layer.self_attn", "scaled_dot_product_attention", 1].dims == (-3, -1)
    assert found["layer.self_attn", "linear", 1].channels == 24
    assert not found["", "matmul", 1].corrected
    assert found["", "matmul", 2].corrected
    assert found["", "matmul", 2].dims == (-3, -1)
    assert found["", "matmul", 2].channels == 8
    assert found["layer.norm1", "layer_norm", 1].dims == (-1,)
    longer = propagate(model, torch.randn(2, 9, 8), input_variance=0.1, calibration=calibration, covariance=False)
    assert longer.variance.shape == (2, 9, 8)


def test_a_watcher_sees_operations_but_not_what_rules_do_inside():
    class Names(Watcher):
        def __init__(self):
            self.names = []

        def after(self, call, result):
            self.names.append(call.op)
            return result

    def model(x):
        return torch.softmax(x.var(-1, keepdim=True) + F.normalize(x), -1).mean()

    names = Names()
    with Run(model, (X,), input_variance=0.1).by(Normal, watcher=names) as once:
        once()
    assert names.names == ["var", "normalize", "add", "softmax", "mean"]


def test_a_function_without_modules_can_be_calibrated():
    weight = torch.randn(6, 6)

    def model(x):
        return torch.relu(x @ weight) @ weight

    calibration = calibrate(model, X, input_variance=0.1, samples=50)
    assert [str(place) for place in calibration.places] == ["'matmul'", "'matmul' (call 2)"]
    assert propagate(model, NEW, input_variance=0.1, calibration=calibration, covariance=False).shape == (12, 6)


def test_a_place_knows_its_channels_in_results_of_any_size():
    place = Place("attention", "matmul", 2, (-3, -1), 6)
    assert place.shape(torch.zeros(4, 2, 7, 3)) == [2, 1, 3]
    assert place.shape(torch.zeros(4, 2, 7, 4)) is None
    assert place.shape(torch.zeros(3)) is None
    x = torch.arange(4 * 2 * 7 * 3).reshape(4, 2, 7, 3)
    units = place.arranged(x, 4)
    assert units.shape == (4, 6, 7)
    assert torch.equal(units[1, 4], x[1, 1, :, 1])
