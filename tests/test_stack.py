"""Values in the rest of torch: transforms, copies, checkpoints, hooks, parametrizations, and the gaps torch leaves."""

import copy
import io
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev, jvp, stack_module_state, vjp, vmap
from torch.utils.checkpoint import checkpoint

from momentprop import Categorical, Logistic, Mean, MissingRule, Normal, Sample
from tests.networks import ResidualBlock, mlp

CLOSE = {"rtol": 1e-9, "atol": 1e-11}


def _x(*shape: int) -> Normal:
    generator = torch.Generator().manual_seed(0)
    draw = lambda: torch.rand(shape, generator=generator, dtype=torch.float64)  # noqa: E731
    return Normal(2 * draw() - 1, 0.1 + draw())


def _mlp() -> nn.Module:
    torch.manual_seed(0)
    return mlp().double().eval()


def _assert_equal(found: Any, wanted: Any) -> None:
    torch.testing.assert_close((found.loc, found.variance), (wanted.loc, wanted.variance), **CLOSE)


def _loss(y: Normal) -> Tensor:
    return (y.loc.square() + y.variance).sum()


# torch.func


def test_vmap_takes_and_gives_values() -> None:
    model, x = _mlp(), _x(5, 6)
    found = vmap(model)(x)
    assert type(found) is Normal
    _assert_equal(found, model(x))


def test_vmap_maps_over_a_dimension_of_both_components() -> None:
    model, x = _mlp(), _x(6, 5)
    _assert_equal(vmap(model, in_dims=1, out_dims=1)(x), model(x.T).T)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: F.max_pool2d(x, 2),
        lambda x: F.batch_norm(x, torch.zeros(3).double(), torch.ones(3).double()),
        lambda x: F.softmax(x.flatten(1), -1),
        lambda x: F.layer_norm(x, x.shape[-1:]),
        lambda x: F.conv2d(x, torch.ones(2, 3, 3, 3).double()),
    ],
    ids=["max_pool2d", "batch_norm", "softmax", "layer_norm", "conv2d"],
)
def test_vmap_over_a_rule_equals_a_loop(call: Callable[[Normal], Normal]) -> None:
    x = _x(2, 2, 3, 4, 4)
    found = vmap(call)(x)
    for i in range(2):
        _assert_equal(found[i], call(x[i]))


def test_grad_with_a_value_as_argument_gives_a_value_of_gradients() -> None:
    model, x = _mlp(), _x(5, 6)
    found = grad(lambda x: _loss(model(x)))(x)
    leaves = [part.clone().requires_grad_() for part in (x.loc, x.variance)]
    wanted = torch.autograd.grad(_loss(model(Normal(*leaves))), leaves)
    assert type(found) is Normal
    torch.testing.assert_close((found.loc, found.variance), wanted, **CLOSE)


def test_jacobians_in_both_modes_agree_by_component() -> None:
    model, x = _mlp(), _x(6)
    jacobian = jacrev(model)(x)  # a value of values: each component of the result by each of the argument
    direction = torch.ones(6, dtype=torch.float64)
    for name in ("loc", "variance"):
        tangent = Normal.of(*(direction * (name == part) for part in ("loc", "variance")))
        _, along = jvp(model, (x,), (tangent,))
        for part in ("loc", "variance"):
            by_reverse = getattr(getattr(jacobian, part), name) @ direction
            torch.testing.assert_close(by_reverse, getattr(along, part), **CLOSE)


def test_jvp_with_a_value_as_argument_and_tangent() -> None:
    model, x = _mlp(), _x(6)
    tangent = Normal.of(torch.randn(6).double(), torch.randn(6).double())
    result, along = jvp(model, (x,), (tangent,))
    _assert_equal(result, model(x))
    step = 1e-6
    ahead, back = (model(Normal.of(x.loc + s * tangent.loc, x.variance + s * tangent.variance)) for s in (step, -step))
    torch.testing.assert_close(along.loc, (ahead.loc - back.loc) / (2 * step), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(along.variance, (ahead.variance - back.variance) / (2 * step), rtol=1e-6, atol=1e-8)


def test_vjp_takes_a_value_of_cotangents() -> None:
    model, x = _mlp(), _x(5, 6)
    result, pull = vjp(model, x)
    (found,) = pull(Normal.of(2 * result.loc, torch.ones_like(result.variance)))
    wanted = grad(lambda x: _loss(model(x)))(x)
    _assert_equal(found, wanted)


def test_per_sample_gradients_of_parameters_equal_a_loop() -> None:
    model, x = _mlp(), _x(5, 6)
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(parameters: dict[str, Tensor], x: Normal) -> Tensor:
        return _loss(functional_call(model, parameters, (x,)))

    found = vmap(grad(loss), in_dims=(None, 0))(parameters, x)
    for i in range(5):
        for name, one in grad(loss)(parameters, x[i]).items():
            torch.testing.assert_close(found[name][i], one, **CLOSE)


def test_stacked_ensembles_equal_their_members() -> None:
    torch.manual_seed(0)
    models, x = [mlp().double().eval() for _ in range(3)], _x(5, 6)
    parameters, buffers = stack_module_state(models)
    skeleton = copy.deepcopy(models[0]).to("meta")
    found = vmap(lambda p, b: functional_call(skeleton, (p, b), (x,)))(parameters, buffers)
    for i, model in enumerate(models):
        _assert_equal(found[i], model(x))


# copies


@pytest.mark.parametrize(
    "value",
    [
        _x(2, 3),
        Logistic(torch.ones(2), 0.5),
        Mean(torch.ones(2)),
        Sample(torch.ones(2)),
        Categorical(torch.zeros(2, 3)),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("how", ["deepcopy", "pickle", "torch.save"])
def test_copies_hold_the_same_components_in_their_own_memory(value: Any, how: str) -> None:
    if how == "deepcopy":
        twin = copy.deepcopy(value)
    elif how == "pickle":
        twin = pickle.loads(pickle.dumps(value))
    else:
        file = io.BytesIO()
        torch.save({"value": value}, file)
        file.seek(0)
        twin = torch.load(file, weights_only=True)["value"]
    assert type(twin) is type(value)
    for name in value.components:
        mine, other = getattr(value, name), getattr(twin, name)
        assert torch.equal(mine, other)
        assert mine.data_ptr() != other.data_ptr()


def test_a_model_that_holds_a_value_is_copied_with_it() -> None:
    model = _mlp()
    model.prior = _x(2)
    assert torch.equal(copy.deepcopy(model).prior.variance, model.prior.variance)


# checkpoints


def _gradients(y: Normal, model: nn.Module) -> list[Tensor]:
    return list(torch.autograd.grad(_loss(y), list(model.parameters())))


def test_checkpointing_recomputes_exactly() -> None:
    model, x = _mlp().train(), _x(5, 6)
    x = Normal(x.loc.requires_grad_(), x.variance)
    found = checkpoint(model, x, use_reentrant=False)
    _assert_equal(found, model(x))
    torch.testing.assert_close(_gradients(found, model), _gradients(model(x), model), rtol=0, atol=0)


def test_reentrant_checkpointing_is_refused() -> None:
    model, x = _Around(lambda self, x: checkpoint(self.body, x, use_reentrant=True)), _x(5, 6)
    with (
        pytest.warns(UserWarning, match="None of the inputs have requires_grad"),
        pytest.raises(RuntimeError, match=r"reentrant checkpointing at module 'body.0' \(Linear\) of _Around"),
    ):
        model(Normal(x.loc.requires_grad_(), x.variance))


# hooks


class _Around(nn.Module):
    """A network with the `body` of an MLP and a given forward pass."""

    def __init__(self, forward: Callable[[Any, Any], Any] | None = None, body: nn.Module | None = None) -> None:
        super().__init__()
        self.body = body if body is not None else _mlp()
        self.run = forward or (lambda self, x: self.body(x))

    def forward(self, x: Any) -> Any:
        return self.run(self, x)


def test_forward_hooks_see_values_and_may_replace_them() -> None:
    model, x, seen = _mlp(), _x(5, 6), []
    model[1].register_forward_hook(lambda module, args, out: seen.append((args[0], out)))
    model[5].register_forward_hook(lambda module, args, out: 2 * out)
    y = model(x)
    (given, result) = seen[0]
    assert type(given) is type(result) is Normal
    _assert_equal(result, torch.relu(given))
    _assert_equal(y, 2 * model[5].forward(model[:5](x)))


def test_forward_pre_hooks_may_turn_tensors_into_values() -> None:
    model, x = _mlp(), _x(5, 6)
    wanted = model(x)
    model.register_forward_pre_hook(lambda module, args: (Normal(args[0], x.variance),))
    _assert_equal(model(x.loc), wanted)


def test_hooks_with_keywords_see_values() -> None:
    class Scaled(nn.Module):
        def forward(self, x: Any, *, scale: Any) -> Any:
            return x * scale

    model, seen = Scaled(), []
    model.register_forward_hook(lambda module, args, kwargs, out: seen.append(kwargs["scale"]), with_kwargs=True)
    model(_x(2), scale=_x(2))
    assert type(seen[0]) is Normal


# reparametrized layers


@pytest.mark.parametrize(
    "wrap",
    [
        nn.utils.parametrizations.weight_norm,
        nn.utils.parametrizations.spectral_norm,
        nn.utils.parametrizations.orthogonal,
        lambda layer: nn.utils.parametrize.register_parametrization(layer, "weight", nn.Softplus()),
    ],
    ids=["weight_norm", "spectral_norm", "orthogonal", "own"],
)
def test_parametrized_layers_propagate_with_the_weight_they_compute(wrap: Callable[[nn.Module], nn.Module]) -> None:
    torch.manual_seed(0)
    layer, x = wrap(nn.Linear(6, 4).double()).eval(), _x(5, 6)
    y = layer(x)
    _assert_equal(y, F.linear(x, layer.weight, layer.bias))
    assert all(grad.abs().sum() > 0 for grad in _gradients(y, layer))


# where torch loses something


class _Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return torch.relu(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class _WithSetup(torch.autograd.Function):
    @staticmethod
    def forward(x: Any, slope: float = 0.1) -> Any:
        return F.leaky_relu(x, slope)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass


@pytest.mark.parametrize("function", [_Straight, _WithSetup])
def test_a_custom_autograd_function_that_would_drop_gradients_is_refused(function: Any) -> None:
    model = _Around(lambda self, x: function.apply(self.body(x)))
    with pytest.raises(RuntimeError, match=f"autograd function '{function.__name__}' at module _Around would lose"):
        model(_x(5, 6))


def test_a_custom_autograd_function_runs_where_no_gradients_are_wanted() -> None:
    x = _x(5)
    _assert_equal(_Straight.apply(x), torch.relu(x))
    with torch.no_grad():
        _assert_equal(_Around(lambda self, x: _Straight.apply(self.body(x)))(_x(5, 6)), torch.relu(_mlp()(_x(5, 6))))


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_ordinary_inference_of_values_that_require_gradients_is_allowed(context: Any) -> None:
    x = _x(5, 6)
    x = Normal(x.loc.requires_grad_(), x.variance.requires_grad_())
    with context():
        assert not _mlp()(x).requires_grad


def test_backward_hooks_on_values_warn_once_for_each_module() -> None:
    model, x = _Around(), _x(5, 6)
    model.body[0].register_full_backward_hook(lambda *_: None)
    model.body[2].register_full_backward_pre_hook(lambda *_: None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model(x)
        model(x)
    ours = [str(warning.message) for warning in caught if "see no gradients" in str(warning.message)]
    assert len(ours) == 2
    assert "module 'body.0' (Linear) of _Around" in ours[0]
    assert "module 'body.2' (Linear) of _Around" in ours[1]


def test_backward_hooks_on_tensors_do_not_warn() -> None:
    model, fired = _mlp(), []
    model[0].register_full_backward_hook(lambda *_: fired.append(True))
    model(_x(5, 6).loc.requires_grad_()).sum().backward()
    assert fired


def test_hooks_on_the_components_replace_backward_hooks() -> None:
    model, x, seen = _mlp(), _x(5, 6), []
    model[1].register_forward_hook(lambda module, args, y: [y.loc.register_hook(seen.append), None][1])
    _loss(model(x)).backward()
    assert seen[0].shape == (5, 16)


def test_legacy_backward_hooks_raise_at_the_module() -> None:
    model = _mlp()
    model[0].register_backward_hook(lambda *_: None)
    with pytest.raises(IndexError) as error:
        model(_x(5, 6))
    assert "module '0' (Linear) of Sequential" in error.value.__notes__[0]


def _scripted(how: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        if how == "function":
            return torch.jit.script(_shifted)
        return torch.jit.script(_mlp()) if how == "script" else torch.jit.trace(_mlp(), torch.ones(5, 6).double())


def _shifted(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) + 1


@pytest.mark.parametrize(("how", "path"), [("script", "'body.0' "), ("trace", "'body.0' "), ("function", "_Around")])
def test_scripted_code_is_refused_in_one_sentence(how: str, path: str) -> None:
    scripted = _scripted(how)
    body = nn.Sequential(scripted if how != "function" else nn.Identity())
    model = _Around((lambda self, x: scripted(x)) if how == "function" else None, body)
    with pytest.raises(MissingRule, match=f"no Normal rule can enter the scripted code at module {path}"):
        model(_x(5, 6))


@pytest.mark.parametrize("kind", [Mean, Sample])
@pytest.mark.parametrize("how", ["script", "trace", "function"])
def test_means_and_samples_pass_scripted_code(how: str, kind: Any) -> None:
    scripted, x = _scripted(how), _x(5, 6).loc
    found = scripted(kind(x))
    assert type(found) is kind
    torch.testing.assert_close(found.loc, scripted(x), rtol=0, atol=0)


def test_scripted_functions_still_take_tensors() -> None:
    torch.testing.assert_close(_scripted("function")(torch.ones(3)), torch.full((3,), 2.0))


# in-place operations and skip connections under the transforms above


def test_a_residual_block_keeps_its_input_and_its_statistics_under_checkpointing() -> None:
    torch.manual_seed(0)
    block, x = ResidualBlock(3).double().eval(), _x(2, 3, 5, 5)
    given = x.loc.clone()
    _assert_equal(checkpoint(block, x, use_reentrant=False), block(x))
    assert torch.equal(x.loc, given)
