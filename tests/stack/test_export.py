"""`torch.export` and ONNX of a model that propagates: equal numbers, any batch, values or tensors at the door."""

import io
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim

from momentprop import AsTensors, Categorical, Logistic, Normal, functional
from tests.networks import ConvNet, TransformerBlock, mlp, trained_looking

CLOSE = {"rtol": 1e-5, "atol": 1e-6}
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (mlp, (6,)),
    "convolutions": (ConvNet, (3, 8, 8)),
    "transformer": (TransformerBlock, (5, 8)),
}


def _network(name: str) -> nn.Module:
    torch.manual_seed(0)
    return trained_looking(NETWORKS[name][0]()).eval()


def _input(name: str, batch: int) -> Normal:
    shape = (batch, *NETWORKS[name][1])
    generator = torch.Generator().manual_seed(batch)
    return Normal(torch.randn(shape, generator=generator), 0.2 * torch.rand(shape, generator=generator))


def _assert_equal(found: Any, wanted: Any) -> None:
    torch.testing.assert_close((found.loc, found.variance), (wanted.loc, wanted.variance), **CLOSE)


@pytest.fixture(autouse=True)
def _torch_logs_less() -> Iterator[None]:
    """The exporters report every package that is not installed."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    "name",
    ["mlp", pytest.param("convolutions", marks=pytest.mark.full), pytest.param("transformer", marks=pytest.mark.full)],
)
def test_exported_with_values_in_and_out_for_any_batch(name: str, strict: bool) -> None:
    model, batch = _network(name), {0: Dim("batch")}
    program = torch.export.export(model, (_input(name, 3),), dynamic_shapes=([batch, batch],), strict=strict)
    for size in (3, 7):
        x = _input(name, size)
        found = program.module()(x)
        assert type(found) is Normal
        _assert_equal(found, model(x))


@pytest.mark.parametrize("strict", [False, True])
def test_exported_with_tensors_in_and_out_for_any_batch(strict: bool) -> None:
    model, batch = AsTensors(_network("mlp")), {0: Dim("batch")}
    x = _input("mlp", 3)
    shapes = {"loc": batch, "variance": batch}
    program = torch.export.export(model, (x.loc, x.variance), dynamic_shapes=shapes, strict=strict)
    for size in (3, 7):
        x = _input("mlp", size)
        torch.testing.assert_close(program.module()(x.loc, x.variance), model(x.loc, x.variance), **CLOSE)


@pytest.mark.filterwarnings("ignore:The given buffer is not writable:UserWarning")  # before torch 2.13
def test_an_exported_program_is_saved_and_loaded() -> None:
    model, file = _network("mlp"), io.BytesIO()
    batch = {0: Dim("batch")}
    torch.export.save(
        torch.export.export(model, (_input("mlp", 3),), dynamic_shapes=([batch, batch],), strict=False), file
    )
    file.seek(0)
    x = _input("mlp", 5)
    found = torch.export.load(file).module()(x)
    assert type(found) is Normal
    _assert_equal(found, model(x))


def test_an_exported_program_can_be_trained() -> None:
    model, x = _network("mlp"), _input("mlp", 3)
    program = torch.export.export(model, (x,), strict=False).module()

    def gradients(run: nn.Module) -> dict[str, Tensor]:
        y = run(x)
        found = torch.autograd.grad((y.loc.square() + y.variance).sum(), list(run.parameters()))
        return dict(zip((name for name, _ in run.named_parameters()), found, strict=True))

    torch.testing.assert_close(gradients(program), gradients(model), rtol=1e-4, atol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("op", [nn.Softsign(), nn.Tanhshrink()], ids=["softsign", "tanhshrink"])
def test_rules_by_quadrature_export(op: nn.Module, strict: bool) -> None:
    x = Normal(torch.linspace(-3, 3, 12), torch.linspace(0, 2, 12))
    _assert_equal(torch.export.export(op, (x,), strict=strict).module()(x), op(x))


def test_values_among_the_results_become_tuples_of_their_components() -> None:
    class Several(nn.Module):
        def forward(self, x: Any, scale: float = 1.0) -> dict[str, Any]:
            return {"y": x * scale, "class": [functional.class_posterior(x)], "n": 3}

    x = Logistic(torch.zeros(2, 3), 1.0)
    found = AsTensors(Several(), Logistic)(x.loc, x.variance, scale=2.0)
    assert found["n"] == 3
    torch.testing.assert_close(found["y"], (torch.zeros(2, 3), torch.full((2, 3), 4.0)))
    (logits,) = found["class"][0]
    torch.testing.assert_close(logits, functional.class_posterior(x).logits)
    assert Categorical.components == ("logits",)


def _runs_in_onnx(model: nn.Module, example: tuple[Tensor, ...], others: tuple[Tensor, ...]) -> list[Tensor]:
    """The results of a model in onnxruntime for other inputs than it was exported with."""
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    batch = {0: "batch"}
    shapes = {"loc": batch, "variance": batch}
    with warnings.catch_warnings(action="ignore"):  # of the exporter, about torch's own functions that it calls
        program = torch.onnx.export(model, example, dynamo=True, dynamic_shapes=shapes, verbose=False)
    session = runtime.InferenceSession(program.model_proto.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]
    return [
        torch.from_numpy(part) for part in session.run(None, dict(zip(names, (t.numpy() for t in others), strict=True)))
    ]


@pytest.mark.parametrize(
    "name",
    ["mlp", pytest.param("convolutions", marks=pytest.mark.full), pytest.param("transformer", marks=pytest.mark.full)],
)
def test_onnx_gives_the_same_numbers_for_any_batch(name: str) -> None:
    model, x, z = AsTensors(_network(name)), _input(name, 3), _input(name, 5)
    found = _runs_in_onnx(model, (x.loc, x.variance), (z.loc, z.variance))
    torch.testing.assert_close(found, list(model(z.loc, z.variance)), **CLOSE)


ONNX_OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "relu": torch.relu,
    "heaviside": lambda x: torch.heaviside(x, torch.tensor(0.5)),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "softplus": F.softplus,
    "gelu": F.gelu,
    "elu": F.elu,
    "maximum": lambda x: torch.maximum(x, x.flip(0) / 2),
    "softmax": lambda x: torch.softmax(x, -1),
}


@pytest.mark.full
@pytest.mark.parametrize("name", ONNX_OPERATIONS)
def test_onnx_gives_the_same_moments_of_an_operation(name: str) -> None:
    class Operation(nn.Module):
        def forward(self, x: Any) -> Any:
            return ONNX_OPERATIONS[name](x)

    loc = torch.tensor([-5.0, -2.0, 0.0, 1.0, 4.0, 9.0]).expand(3, 6)
    variance = torch.tensor([0.1, 2.0, 1.0, 0.3, 0.01, 1.0]).expand(3, 6)
    model = AsTensors(Operation().eval())
    found = _runs_in_onnx(model, (loc, variance), (loc, variance))
    torch.testing.assert_close(found, list(model(loc, variance)), rtol=1e-4, atol=1e-7)
