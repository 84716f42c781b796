"""A long kernel is one operation of a compiled graph, and gives what eager gives."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.testing import EagerAndRecordGraphs

from momentprop import Normal
from momentprop.codegen import programs
from momentprop.codegen.c_library import compiler
from momentprop.kernels import operators
from tests.stack.compiling import compile_whole

pytestmark = pytest.mark.skipif(compiler() is None, reason="kernels need a C compiler")

Pair = tuple[Tensor, Tensor]

LONG: dict[str, Callable[[Any], Any]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "mish": F.mish,
    "hardswish": F.hardswish,
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "rms_norm": lambda x: F.rms_norm(x, x.shape[-1:]),
    "normalize": partial(F.normalize, dim=0),
}
"""Functions whose kernels are operators."""
ATTENTION = 4
"""The kernels of an attention whose queries, keys and values are random."""


def moments(function: Callable[[Any], Any], mean: Tensor, variance: Tensor) -> Pair:
    y = function(Normal.of(mean, variance))
    return y.loc, y.variance


def attention(x: Any) -> Any:
    weight = torch.eye(4, dtype=torch.float64) + 0.1
    return F.scaled_dot_product_attention(*(F.linear(x, k * weight) for k in (1, 2, 3)))


gelu = partial(moments, F.gelu)


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


def graph_of(function: Callable[[Any], Any]) -> list[str]:
    """The names of the operations of a compiled function of a value, as dynamo records them."""
    backend = EagerAndRecordGraphs()
    torch.compiler.reset()
    torch.compile(moments, fullgraph=True, backend=backend)(function, *inputs())
    (graph,) = backend.graphs
    return [str(node.target) for node in graph.graph.nodes if node.op.startswith("call")]


def operators_among(names: list[str]) -> int:
    return sum("momentprop.run" in name for name in names)


@pytest.mark.parametrize("name", LONG)
def test_a_long_kernel_is_one_operation(name: str) -> None:
    names = graph_of(LONG[name])
    assert operators_among(names) == 1
    assert len(names) < 40


def test_an_attention_is_a_few_operations() -> None:
    names = graph_of(attention)
    assert operators_among(names) >= ATTENTION
    assert len(names) < 200


def test_a_kernel_that_cannot_be_built_is_in_the_graph_by_its_steps() -> None:
    assert operators_among(graph_of(lambda x: F.local_response_norm(x, 2))) == 0


def test_the_graph_has_the_formula_where_kernels_are_not_built() -> None:
    programs.set_mode("eager")
    names = graph_of(F.gelu)
    assert operators_among(names) == 0
    assert len(names) > 100


def test_an_export_has_the_formula() -> None:
    class Gelu(nn.Module):
        def forward(self, mean: Tensor, variance: Tensor) -> Pair:
            return gelu(mean, variance)

    graph = torch.export.export(Gelu(), inputs()).graph
    assert not any("momentprop" in str(node.target) for node in graph.nodes)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.mT,
    "expanded": lambda x: x[:1].expand(5, 4),
}


def assert_as_eager(function: Callable[..., Pair], backend: str = "aot_eager", tolerance: float = 1e-9) -> None:
    """Both moments, and gradients of both and of the variance alone, are those of eager."""
    found = []
    for run in (compile_whole(function, backend), function):
        given = [x.requires_grad_() for x in inputs()]
        mean, variance = run(*given)
        both = torch.autograd.grad(mean.square().sum() + variance.square().sum(), given, retain_graph=True)
        found.append([mean, variance, *both, *torch.autograd.grad(variance.square().sum(), given)])
    torch.testing.assert_close(*found, rtol=tolerance, atol=1e-11)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["gelu", "layer_norm", "normalize"])
def test_values_and_gradients_are_those_of_eager(name: str, layout: str) -> None:
    change = LAYOUTS[layout]
    assert_as_eager(lambda mean, variance: moments(LONG[name], change(mean), change(variance)))


@pytest.mark.parametrize("name", ["gelu", "layer_norm"])
def test_formulas_serve_a_compiled_graph_until_kernels_are_built(name: str) -> None:
    function = partial(moments, LONG[name])
    compiled = compile_whole(function)
    given = [x.requires_grad_() for x in inputs()]
    compiled(*given)
    programs.set_mode("eager")
    found = [torch.autograd.grad(torch.cat(run(*given)).square().sum(), given) for run in (compiled, function)]
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-11)


def test_attention_has_the_values_and_gradients_of_eager() -> None:
    assert_as_eager(partial(moments, attention))


@pytest.mark.parametrize("name", ["gelu", "layer_norm"])
def test_second_derivatives_are_those_of_eager(name: str) -> None:
    function = partial(moments, LONG[name])
    found = []
    for run in (compile_whole(function, "eager"), function):
        given = [x.requires_grad_() for x in inputs()]
        first = torch.autograd.grad(torch.cat(run(*given)).sum(), given, create_graph=True)
        found.append(torch.autograd.grad(torch.cat(first).square().sum(), given))
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-11)


@pytest.mark.full
def test_transforms_inside_of_compiled_code_take_the_formula() -> None:
    def total(mean: Tensor, variance: Tensor) -> Tensor:
        return torch.cat(gelu(mean, variance)).sum()

    def gradients(mean: Tensor, variance: Tensor) -> Any:
        return torch.func.vmap(torch.func.grad(total, argnums=(0, 1)))(mean, variance)

    def forward(mean: Tensor, variance: Tensor) -> Any:
        return torch.func.jvp(gelu, (mean, variance), (mean, variance))

    for run in (gradients, forward):
        torch.testing.assert_close(compile_whole(run)(*inputs()), run(*inputs()), rtol=1e-9, atol=1e-11)


def test_compiled_rectifiers_do_not_ask_each_number_whether_it_is_infinite() -> None:
    """Inductor's vectors of a CPU would do so one number after the other, in half of the time of the whole."""
    assert not {"isinf", "isnan", "nan_to_num"} & set(graph_of(torch.relu))


def test_gradients_that_are_lost_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(operators._RUNS, "lost", lambda x: [x.detach()])
    with pytest.raises(RuntimeError, match="does not differentiate inside of operators: use another version"):
        operators._pulled("lost", inputs()[:1], inputs()[:1])


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
