"""A long kernel is one operation of a compiled graph, and gives what eager gives."""

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.testing import EagerAndRecordGraphs

from momentprop import Normal
from momentprop.codegen import programs
from momentprop.codegen.c_library import compiler
from tests.stack.compiling import CLOSE, compile_whole

pytestmark = pytest.mark.skipif(compiler() is None, reason="kernels need a C compiler")

LONG = [F.gelu, F.silu, F.mish, F.hardswish, lambda x: F.gelu(x, approximate="tanh")]
"""The activations whose kernels are operators."""


def gelu(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    y = F.gelu(Normal.of(mean, variance))
    return y.loc, y.variance


def inputs() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    shape = 3, 4
    return torch.randn(shape, dtype=torch.float64), torch.rand(shape, dtype=torch.float64)


@pytest.fixture(autouse=True)
def _kernels_are_built() -> Iterator[None]:
    before = programs.mode()
    programs.set_mode("wait")
    yield
    programs.set_mode(before)  # type: ignore[arg-type]
    torch.compiler.reset()


def graph_of(function: object, *given: Tensor) -> list[str]:
    """The names of the operations of a compiled function, as dynamo records them."""
    backend = EagerAndRecordGraphs()
    torch.compiler.reset()
    torch.compile(function, fullgraph=True, backend=backend)(*given)  # type: ignore[call-overload]
    (graph,) = backend.graphs
    return [str(node.target) for node in graph.graph.nodes if node.op.startswith("call")]


@pytest.mark.parametrize("function", LONG, ids=["gelu", "silu", "mish", "hardswish", "gelu_tanh"])
def test_a_long_kernel_is_one_operation(function: object) -> None:
    def run(mean: Tensor, variance: Tensor) -> Tensor:
        return function(Normal.of(mean, variance)).variance  # type: ignore[operator, no-any-return]

    names = graph_of(run, *inputs())
    assert names.count("momentprop.run") + names.count("momentprop.run.default") == 1
    assert len(names) < 25


def test_the_graph_has_the_formula_where_kernels_are_not_built() -> None:
    programs.set_mode("eager")
    names = graph_of(gelu, *inputs())
    assert not any("momentprop" in name for name in names)
    assert len(names) > 100


def test_an_export_has_the_formula() -> None:
    class Gelu(nn.Module):
        def forward(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
            return gelu(mean, variance)

    graph = torch.export.export(Gelu(), inputs()).graph
    assert not any("momentprop" in str(node.target) for node in graph.nodes)


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "expanded"])
def test_values_and_gradients_are_those_of_eager(layout: str) -> None:
    change = {"contiguous": lambda x: x, "transposed": lambda x: x.mT, "expanded": lambda x: x[:1].expand(5, 4)}[layout]
    compiled = compile_whole(lambda mean, variance: gelu(change(mean), change(variance)))
    found = []
    for run in (compiled, lambda *given: gelu(*map(change, given))):
        given = [x.requires_grad_() for x in inputs()]
        mean, variance = run(*given)
        found.append([mean, variance, *torch.autograd.grad(mean.sum() + variance.square().sum(), given)])
    torch.testing.assert_close(*found, **CLOSE)


def test_second_derivatives_are_those_of_eager() -> None:
    found = []
    for run in (compile_whole(gelu, "eager"), gelu):
        given = [x.requires_grad_() for x in inputs()]
        first = torch.autograd.grad(sum(part.sum() for part in run(*given)), given, create_graph=True)
        found.append(torch.autograd.grad(sum(part.square().sum() for part in first), given))
    torch.testing.assert_close(*found, **CLOSE)


def test_transforms_inside_of_compiled_code_take_the_formula() -> None:
    def total(mean: Tensor, variance: Tensor) -> Tensor:
        return sum(part.sum() for part in gelu(mean, variance))  # type: ignore[return-value]

    def gradients(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        return torch.func.vmap(torch.func.grad(total, argnums=(0, 1)))(mean, variance)  # type: ignore[no-any-return]

    def forward(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        return torch.func.jvp(gelu, (mean, variance), (mean, variance))  # type: ignore[no-any-return]

    for run in (gradients, forward):
        torch.testing.assert_close(compile_whole(run)(*inputs()), run(*inputs()), **CLOSE)


def test_compiled_rectifiers_do_not_ask_each_number_whether_it_is_infinite() -> None:
    """Inductor's vectors of a CPU would do so one number after the other, in half of the time of the whole."""
    names = graph_of(lambda mean, variance: F.relu(Normal.of(mean, variance)).variance, *inputs())
    assert not {"isinf", "isnan", "nan_to_num"} & set(names)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")
def test_an_encoder_compiles_with_its_gradients() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, activation="gelu", batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).double().eval()
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    found = []
    for run in (compile_whole(model, "inductor"), model):
        y = run(Normal(x, 0.01))
        gradients = torch.autograd.grad((y.loc.square() + y.variance).sum(), list(model.parameters()))
        found.append([y.loc, y.variance, *gradients])
    torch.testing.assert_close(*found, rtol=1e-7, atol=1e-9)
