"""Passes that are recorded on a GPU and replayed are those of the model; elsewhere the model itself runs."""

import pytest
import torch
from torch import nn

import momentprop
from momentprop import Normal

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def _model(device: str = "cpu") -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).to(device)


def _input(device: str = "cpu", seed: int = 0, count: int = 2) -> Normal:
    generator = torch.Generator().manual_seed(seed)
    return Normal(torch.randn(count, 4, generator=generator).to(device), torch.full((count, 4), 0.1, device=device))


def test_on_a_cpu_the_model_itself_runs() -> None:
    model, x = _model(), _input()
    y = momentprop.repeated(model)(x)
    assert torch.equal(y.loc, model(x).loc)
    assert y.loc.requires_grad


@on_gpu
def test_a_replay_is_the_pass_of_the_model() -> None:
    model = _model("cuda")
    calls = []
    model.register_forward_hook(lambda *_: calls.append(None))
    fast = momentprop.repeated(model)
    with torch.no_grad():
        first = fast(_input("cuda"))
        recorded = len(calls)
        results = [fast(_input("cuda", seed)) for seed in range(3)]
        assert len(calls) == recorded
        torch.testing.assert_close(first.parts, results[0].parts)
        for seed, result in enumerate(results):
            torch.testing.assert_close(result.parts, model(_input("cuda", seed)).parts)


@on_gpu
@pytest.mark.parametrize("change", ["in place", "anew", "module", "shape", "mode"])
def test_a_change_is_seen(change: str) -> None:
    model = _model("cuda")
    fast, count = momentprop.repeated(model), 2
    with torch.no_grad():
        fast(_input("cuda"))
        if change == "in place":
            model[0].weight.mul_(2.0)
        elif change == "anew":
            model[0].weight = nn.Parameter(2 * model[0].weight)
        elif change == "module":
            model[2] = nn.Linear(8, 3).cuda()
        elif change == "shape":
            count = 5
        else:
            model.append(nn.Dropout(0.5)).eval()
        x = _input("cuda", 1, count)
        torch.testing.assert_close(fast(x).parts, model(x).parts)


@on_gpu
def test_gradients_are_recorded_by_the_model_itself() -> None:
    model = _model("cuda")
    momentprop.repeated(model)(_input("cuda")).variance.sum().backward()
    assert model[0].weight.grad is not None


@on_gpu
def test_a_model_that_looks_at_its_data_runs_as_it_is() -> None:
    fast = momentprop.repeated(lambda x: x * float(x.loc.sum()))
    x = _input("cuda")
    with torch.no_grad(), pytest.warns(RuntimeWarning, match="cannot be recorded"):
        found = fast(x)
    torch.testing.assert_close(found.loc, x.loc * x.loc.sum())
