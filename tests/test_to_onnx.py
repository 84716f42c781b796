"""ONNX programs: their names, their numbers in onnxruntime, and what is refused."""

import functools
import itertools
import logging
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from momentprop import Joint, Logistic, Normal, calibrate, calibrated, propagate, to_onnx
from momentprop.to_onnx import _jointly
from momentprop.torch_compat.tracing import _unfold_backward, traced
from tests.networks import mlp

CLOSE = {"rtol": 1e-4, "atol": 1e-6}


@pytest.fixture(autouse=True)
def _nothing_is_logged() -> Iterator[None]:
    """The exporters would report every package that is not installed."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript")]
    for logger in loggers:
        logger.addHandler(handler)
    levels = [logger.level for logger in loggers]
    yield
    for logger in loggers:
        logger.removeHandler(handler)
    assert [record.getMessage() for record in records if record.levelno >= logging.WARNING] == []
    assert [logger.level for logger in loggers] == levels


def _value(*shape: int, seed: int = 0) -> Normal:
    generator = torch.Generator().manual_seed(seed)
    return Normal(torch.randn(shape, generator=generator), 0.2 * torch.rand(shape, generator=generator))


def _mlp() -> nn.Module:
    torch.manual_seed(0)
    return mlp().eval()


def _convolutions() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(16, 3)).eval()


def _outputs(program, *given: Tensor) -> dict[str, Tensor]:
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(program.model_proto.SerializeToString(), providers=["CPUExecutionProvider"])
    assert [entry.name for entry in session.get_inputs()] == ["input", "input_variance"][: len(given)]
    names = [entry.name for entry in session.get_outputs()]
    found = session.run(None, dict(zip(("input", "input_variance"), (x.numpy() for x in given), strict=False)))
    return dict(zip(names, map(torch.from_numpy, found), strict=True))


def test_a_program_has_named_outputs_for_any_batch(tmp_path):
    model, z = _mlp(), _value(5, 6, seed=1)
    program = to_onnx(model, _value(3, 6), tmp_path / "model.onnx")
    wanted = propagate(model, z, covariance=False)
    torch.testing.assert_close(
        _outputs(program, z.loc, z.variance), {"loc": wanted.loc, "variance": wanted.variance}, **CLOSE
    )
    assert (tmp_path / "model.onnx").exists()


def _pooled() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d((2, 1), stride=(1, 2)), nn.Flatten(), nn.Linear(8, 2)
    return nn.Sequential(*layers).eval()


@pytest.mark.parametrize(
    ("make", "shape", "example", "items"),
    [
        (_mlp, (6,), 2, 3),
        (_convolutions, (1, 8, 8), 1, 1),
        (_pooled, (1, 5, 5), 1, 1),
        pytest.param(_convolutions, (1, 8, 8), 2, 3, marks=pytest.mark.full),
        pytest.param(_pooled, (1, 5, 5), 2, 3, marks=pytest.mark.full),
    ],
)
def test_a_program_gives_the_covariance(make, shape, example, items):
    """An example of several inputs makes a program for any number of them."""
    model, z = make(), _value(items, *shape, seed=1)
    wanted = propagate(model, z, covariance=True)
    found = _outputs(to_onnx(model, _value(example, *shape), covariance=True), z.loc, z.variance)
    expected = {"loc": wanted.loc, "variance": wanted.variance, "covariance": wanted.covariance}
    torch.testing.assert_close(found, expected, **CLOSE)


def test_several_outputs_are_named_by_their_places():
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(4, 3), nn.Linear(3, 2)

        def forward(self, x):
            hidden = torch.relu(self.body(x))
            return {"logits": self.head(hidden), "hidden": (hidden,)}

    torch.manual_seed(0)
    model, z = Heads().eval(), _value(2, 4)
    found = _outputs(to_onnx(model, z), z.loc, z.variance)
    assert list(found) == ["logits.loc", "logits.variance", "hidden.0.loc", "hidden.0.variance"]
    torch.testing.assert_close(found["hidden.0.variance"], model(z)["hidden"][0].variance, **CLOSE)


def test_a_calibrated_model_takes_plain_inputs():
    model, x = _mlp(), _value(8, 6).loc
    runs = calibrated(model, calibrate(model, x, input_variance=0.1, samples=50))
    found = _outputs(to_onnx(runs, x), x)
    torch.testing.assert_close(found["variance"], runs(x).variance, **CLOSE)


def test_a_compiled_model_is_written_as_the_model():
    model, z = _mlp(), _value(3, 6)
    found = _outputs(to_onnx(torch.compile(model, backend="aot_eager"), z), z.loc, z.variance)
    torch.testing.assert_close(found["variance"], model(z).variance, **CLOSE)


def test_what_has_no_such_program_is_refused(monkeypatch):
    with pytest.raises(TypeError, match="must be a Normal or a tensor, not a Logistic"):
        to_onnx(_mlp(), Logistic(torch.zeros(2, 6), 1.0))
    with pytest.raises(TypeError, match="not a Joint: let the model make correlated noise from independent noise"):
        to_onnx(_mlp(), Joint.from_covariance(torch.zeros(2, 6), torch.eye(6)), covariance=True)
    with pytest.raises(TypeError, match=r"needs the noise of the input: give `Normal\(x, variance\)`"):
        to_onnx(_mlp(), torch.zeros(2, 6), covariance=True)
    with pytest.raises(TypeError, match="no random output for a plain tensor"):
        to_onnx(_mlp(), torch.zeros(2, 6))
    pooled = nn.Sequential(nn.Conv2d(1, 2, 3), nn.AvgPool2d(2, padding=1), nn.Flatten(), nn.Linear(8, 2)).eval()
    with pytest.raises(NotImplementedError, match="ONNX cannot express the covariance of average pooling with padding"):
        to_onnx(pooled, _value(1, 1, 4, 4), covariance=True)
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ImportError, match="pip install onnx onnxscript"):
        to_onnx(_mlp(), _value(2, 6))


def test_a_program_is_recorded_from_formulas_alone():
    """Built kernels write where torch does not see it."""
    from momentprop.codegen.programs import mode, set_mode

    before, model, z = mode(), _mlp(), _value(1, 6)
    set_mode("wait")
    try:
        _ = propagate(model, z).variance
        found = traced(functools.partial(_jointly, model), (z.loc, z.variance))
    finally:
        set_mode(before)
    assert not any("empty" in str(node.target) for node in found.graph.nodes)
    torch.testing.assert_close(found(z.loc, z.variance)[1], propagate(model, z).variance, **CLOSE)


def test_windows_are_added_at_their_places():
    for size, window, step, dim in itertools.product((7, 8), (1, 2, 3), (1, 2, 4), (0, 1, 2)):
        shape = [3, 3, 3]
        shape[dim] = size
        x = torch.randn(shape, requires_grad=True)
        windows = x.unfold(dim, window, step)
        slopes = torch.randn_like(windows)
        (wanted,) = torch.autograd.grad(windows, x, slopes)
        torch.testing.assert_close(_unfold_backward(slopes, shape, dim, window, step), wanted)
