"""A walk over all of `torch.nn`: what `tests/layers.py` says of each module is so."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from momentprop import Categorical, Normal
from momentprop.dispatch import MissingRule
from tests import layers
from tests.layers import CASES, Case

pytestmark = [
    pytest.mark.filterwarnings("ignore:.NLLLoss2d. has been deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning"),
    pytest.mark.filterwarnings("ignore:Initializing zero-element tensors is a no-op:UserWarning"),
]

WORKING = [
    case for case in CASES if case.status == "works" and not (case.name == "DataParallel" and torch.cuda.is_available())
]


def _ids(cases: list[Case]) -> dict[str, Any]:
    modes = (f"{case.id}, training" if case.training else case.id for case in cases)
    return {"argvalues": cases, "ids": [f"{i}-{mode}" for i, mode in enumerate(modes)]}


def _parts(result: Any) -> tuple[Tensor, ...]:
    if isinstance(result, Normal):
        return result.loc, result.variance
    return (result.logits,) if isinstance(result, Categorical) else (result,)


def test_every_module_of_torch_is_classified_once() -> None:
    statuses = {(case.name, case.status) for case in CASES}
    assert {case.name for case in CASES} == layers.all_layers()
    assert len(statuses) == len(layers.all_layers())


@pytest.mark.parametrize("case", **_ids([case for case in WORKING if not case.training]))
def test_without_variance_a_layer_is_the_plain_one(case: Case) -> None:
    plain = case.run(case.layer(), case.means())
    ours, *spread = _parts(case.run(case.layer(), case.values(0.0)))
    torch.testing.assert_close(ours, plain, rtol=1e-8, atol=1e-8)
    assert not any(variance.any() for variance in spread)


@pytest.mark.parametrize("case", **_ids(WORKING))
def test_a_layer_gives_finite_moments_and_gradients(case: Case) -> None:
    layer, arguments = case.layer(), case.values()
    leaves = []
    for i, argument in enumerate(arguments):
        if isinstance(argument, Normal):
            leaves += [argument.loc.requires_grad_(), argument.variance.requires_grad_()]
            arguments[i] = Normal(*leaves[-2:])
    parts = _parts(case.run(layer, arguments))
    assert all(part.isfinite().all() for part in parts)
    if len(parts) == 2:
        assert (parts[1] >= 0).all()
        assert parts[1].sum() > 0
    generator = torch.Generator().manual_seed(6)
    weighted = [(part * torch.randn(part.shape, generator=generator, dtype=part.dtype)).sum() for part in parts]
    parameters = [p for p in layer.parameters() if p.requires_grad] if case.reaches_parameters else []
    grads = torch.autograd.grad(torch.stack(weighted).sum(), [*leaves, *parameters])
    assert all(grad.isfinite().all() for grad in grads)
    assert all(grad.any() for grad in grads[: len(leaves)])


@pytest.mark.parametrize("case", **_ids([case for case in WORKING if layers.is_measured(case)]))
def test_a_layer_agrees_with_draws_of_its_input(case: Case) -> None:
    error, ratio = layers.against_monte_carlo(case, 150)
    assert error < case.mean_apart
    assert not abs(ratio - 1) > case.apart  # a loss has no ratio


@pytest.mark.parametrize("case", **_ids([case for case in CASES if case.status == "MissingRule"]))
def test_a_layer_without_a_rule_says_so_and_names_the_module(case: Case) -> None:
    network = nn.Sequential(nn.Identity(), case.layer())
    with pytest.raises(MissingRule, match=rf"module '1(\.\w+)?' \({case.name}\) of Sequential"):
        network(*case.values())


@pytest.mark.full
@pytest.mark.parametrize("case", **_ids([case for case in WORKING if case.compiles]))
def test_a_layer_compiles_to_the_same_values(case: Case) -> None:
    torch.compiler.reset()
    layer, arguments = case.layer(), case.values()
    eager = _parts(case.run(case.layer(), arguments))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of dynamo
        compiled = _parts(torch.compile(case.run, fullgraph=True, backend="aot_eager")(layer, arguments))
    torch.testing.assert_close(compiled, eager)
