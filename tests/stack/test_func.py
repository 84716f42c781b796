"""Values in `torch.func`: vmap, gradients, Jacobians, ensembles."""

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, grad, jacrev, jvp, stack_module_state, vjp, vmap

from momentprop import Normal
from tests.networks import mlp
from tests.stack.inputs import CLOSE, a_value, an_mlp, assert_equal, loss_of


def test_vmap_takes_and_gives_values() -> None:
    model, x = an_mlp(), a_value(5, 6)
    found = vmap(model)(x)
    assert type(found) is Normal
    assert_equal(found, model(x))


def test_vmap_maps_over_a_dimension_of_both_components() -> None:
    model, x = an_mlp(), a_value(6, 5)
    assert_equal(vmap(model, in_dims=1, out_dims=1)(x), model(x.T).T)


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
    x = a_value(2, 2, 3, 4, 4)
    found = vmap(call)(x)
    for i in range(2):
        assert_equal(found[i], call(x[i]))


def test_grad_with_a_value_as_argument_gives_a_value_of_gradients() -> None:
    model, x = an_mlp(), a_value(5, 6)
    found = grad(lambda x: loss_of(model(x)))(x)
    leaves = [part.clone().requires_grad_() for part in (x.loc, x.variance)]
    wanted = torch.autograd.grad(loss_of(model(Normal(*leaves))), leaves)
    assert type(found) is Normal
    torch.testing.assert_close((found.loc, found.variance), wanted, **CLOSE)


def test_jacobians_in_both_modes_agree_by_component() -> None:
    model, x = an_mlp(), a_value(6)
    jacobian = jacrev(model)(x)  # a value of values: each component of the result by each of the argument
    direction = torch.ones(6, dtype=torch.float64)
    for name in ("loc", "variance"):
        tangent = Normal.of(*(direction * (name == part) for part in ("loc", "variance")))
        _, along = jvp(model, (x,), (tangent,))
        for part in ("loc", "variance"):
            by_reverse = getattr(getattr(jacobian, part), name) @ direction
            torch.testing.assert_close(by_reverse, getattr(along, part), **CLOSE)


def test_jvp_with_a_value_as_argument_and_tangent() -> None:
    model, x = an_mlp(), a_value(6)
    tangent = Normal.of(torch.randn(6).double(), torch.randn(6).double())
    result, along = jvp(model, (x,), (tangent,))
    assert_equal(result, model(x))
    step = 1e-6
    ahead, back = (model(Normal.of(x.loc + s * tangent.loc, x.variance + s * tangent.variance)) for s in (step, -step))
    torch.testing.assert_close(along.loc, (ahead.loc - back.loc) / (2 * step), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(along.variance, (ahead.variance - back.variance) / (2 * step), rtol=1e-6, atol=1e-8)


def test_vjp_takes_a_value_of_cotangents() -> None:
    model, x = an_mlp(), a_value(5, 6)
    result, pull = vjp(model, x)
    (found,) = pull(Normal.of(2 * result.loc, torch.ones_like(result.variance)))
    wanted = grad(lambda x: loss_of(model(x)))(x)
    assert_equal(found, wanted)


def test_per_sample_gradients_of_parameters_equal_a_loop() -> None:
    model, x = an_mlp(), a_value(5, 6)
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(parameters: dict[str, Tensor], x: Normal) -> Tensor:
        return loss_of(functional_call(model, parameters, (x,)))

    found = vmap(grad(loss), in_dims=(None, 0))(parameters, x)
    for i in range(5):
        for name, one in grad(loss)(parameters, x[i]).items():
            torch.testing.assert_close(found[name][i], one, **CLOSE)


def test_stacked_ensembles_equal_their_members() -> None:
    torch.manual_seed(0)
    models, x = [mlp().double().eval() for _ in range(3)], a_value(5, 6)
    parameters, buffers = stack_module_state(models)
    skeleton = copy.deepcopy(models[0]).to("meta")
    found = vmap(lambda p, b: functional_call(skeleton, (p, b), (x,)))(parameters, buffers)
    for i, model in enumerate(models):
        assert_equal(found[i], model(x))
