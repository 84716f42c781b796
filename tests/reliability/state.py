"""Draws that shared randomness, and state that a call left behind."""

import random
import threading
import time
import warnings
from random import Random
from typing import Any

import numpy as np
import torch
from torch import nn

from momentprop import check, propagate
from tests.fuzz.interrupts import trial
from tests.reliability.rows import row


@row(1, "draws share Python's randomness", "mean 1.0, variance 0 (right: 1.5, 0.25)")
def pythons_randomness() -> str:
    """A coin doubles the input in half of the draws."""
    random.seed(0)
    found = propagate(lambda x: 2 * x if random.random() < 0.5 else x, torch.ones(1), method="sample", samples=2000)
    assert abs(found.loc.item() - 1.5) < 0.06
    assert abs(found.variance.item() - 0.25) < 0.02
    return f"mean {found.loc.item():.2f}, variance {found.variance.item():.3f}"


@row(1, "draws share numpy's randomness", "variance 0.005 (right: 1)")
def numpys_randomness() -> str:
    """Numpy's global generator, and one of the model's own."""
    np.random.seed(0)  # noqa: NPY002 (the global generator is what is tested)
    own = np.random.default_rng(0)
    said = []
    for noise in (np.random.standard_normal, own.standard_normal):
        found = propagate(
            lambda x, noise=noise: x + float(noise()), torch.ones(1), method="sample", samples=2000, seed=0
        )
        assert abs(found.variance.item() - 1) < 0.15
        said.append(f"variance {found.variance.item():.2f}")
    return ", ".join(said)


@row(5, "`check` of a model that writes to its input", "eps_mean 7.45 (right: 0.04)")
def check_of_a_model_that_writes() -> str:
    """Every method and every draw sees the input as it was given."""

    def model(x: Any) -> Any:
        x = x.flatten(1)
        x.sub_(1.0).mul_(2.0)
        return x @ torch.ones(4, 1)

    x = torch.full((3, 2, 2), 2.0)
    error = check(model, x, input_variance=0.1, samples=500)["output"].methods["ap2"].eps_mean
    assert error is not None
    assert error < 0.1
    assert (x == 2).all()
    return f"eps_mean {error:.3f}"


@row(5, "draws of a model that writes to its input", "mean 4.0 (right: 2.0)")
def draws_of_a_model_that_writes() -> str:
    """No draw sees what another wrote."""
    model = nn.Dropout(0.5)
    x = torch.ones(1)
    found = propagate(lambda x: model(x.mul_(2)), x, method="sample", samples=2000, seed=0)
    assert abs(found.loc.item() - 2) < 0.2
    assert x.item() == 1
    return f"mean {found.loc.item():.2f}"


@row(6, "the variance is the input tensor, then view and in-place", "0.751 (right: 1.083), and p is overwritten")
def variance_that_is_the_input() -> str:
    """Poisson noise: the variance is the mean, in the same memory."""
    p = torch.tensor([[1.6]])
    found = propagate(nn.Sequential(nn.Flatten(), nn.ReLU(inplace=True)), p, input_variance=p, covariance=False)
    wanted = propagate(nn.ReLU(), p.clone(), input_variance=p.clone(), covariance=False)
    assert torch.equal(found.variance, wanted.variance)
    assert p.item() == torch.tensor(1.6).item()
    return f"{found.variance.item():.3f}, p stays"


class _Slow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Any) -> Any:
        time.sleep(0.02)
        return self.dropout(x)


@row(9, "two threads on one model with `dropout=True`", "20 of 20 races wrong; `seed` not repeatable")
def threads_on_one_model() -> str:
    """The flags of a call are its own, and seeded calls wait for each other."""
    model = _Slow().eval()
    wrong, found, drawn = 0, [], []
    for _ in range(20):
        found.clear()
        _in_threads(
            2, lambda: found.append(propagate(model, torch.ones(1), dropout=True, covariance=False).variance.item())
        )
        wrong += found != [1.0, 1.0]
    noisy = nn.Dropout(0.5).train()
    x = torch.ones(50)
    _in_threads(6, lambda: drawn.append(propagate(noisy, x, method="sample", samples=100, seed=1).loc))
    assert wrong == 0
    assert not any(module.training for module in model.modules())
    assert all(torch.equal(drawn[0], other) for other in drawn)
    return "0 of 20 races wrong; 6 threads, one result for one seed"


def _in_threads(count: int, work: Any) -> None:
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
        time.sleep(0.01)
    for thread in threads:
        thread.join()


@row(21, "draws kept as constants without a warning", "`randperm`, `randint`, `geometric_`, … say nothing")
def draws_kept_as_constants() -> str:
    """Every source of randomness is named."""
    draws = {
        "randperm": lambda x: x[torch.randperm(3)],
        "randint": lambda x: x * torch.randint(2, (3,)),
        "randint_like": lambda x: x * torch.randint_like(torch.ones(3), 2),
        "geometric_": lambda x: x * torch.ones(3).geometric_(0.5),
        "cauchy_": lambda x: x * torch.ones(3).cauchy_(),
        "log_normal_": lambda x: x * torch.ones(3).log_normal_(),
        "random_": lambda x: x * torch.ones(3).random_(2),
        "binomial": lambda x: x * torch.binomial(torch.ones(3), torch.ones(3) / 2),
        "_standard_gamma": lambda x: x * torch.distributions.Gamma(torch.ones(3), 1.0).sample(),
        "random": lambda x: x * random.random(),
        "numpy.random": lambda x: x * np.random.standard_normal(),  # noqa: NPY002
    }
    for name, model in draws.items():
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            propagate(model, torch.ones(3), input_variance=0.1, covariance=False)
        assert any(f"with {name!r}" in str(each.message) for each in said), name
    return f"{len(draws)} of {len(draws)} sources are named in a warning"


class _Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(1))

    def forward(self, x: Any) -> Any:
        self.h = 0.5 * self.h + x
        return self.h


@row(22, "a buffer assigned in `forward`", "becomes a `Normal`; after `sample` a dead tensor")
def buffer_assigned_in_forward() -> str:
    """The model is left as it was, and no draw sees the state of another."""
    model = _Stateful()
    model.eval()
    before = model.h
    propagate(model, torch.ones(1), input_variance=1.0, covariance=False)
    found = propagate(model, torch.ones(1), input_variance=1.0, method="sample", samples=500, seed=0)
    assert model.h is before
    assert before.item() == 0
    assert abs(found.loc.item() - 1) < 0.2
    return f"the same tensor, 0; sample mean {found.loc.item():.2f}"


@row(29, "an interrupt at a random moment", "hooks, flags or modes left in 13 of 398 loops")
def interrupts() -> str:
    """A pass that is interrupted leaves nothing behind; `make fuzz` tries more moments."""
    moments = sum(trial(Random(f"reliability/{number}"))["interrupts"] for number in range(40))
    assert moments >= 40
    return f"nothing left after {moments} interrupts"
