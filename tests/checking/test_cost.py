"""The price of a method is the processor's work for it, whatever else the machine does."""

import threading
import time

import pytest
import torch
from torch import nn

import momentprop
from momentprop.checking import cost

X = torch.randn(256, 256)
MODEL = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)).requires_grad_(False)


def _plain():
    return MODEL(X)


def test_only_the_work_of_the_thread_counts(monkeypatch: pytest.MonkeyPatch):
    """The thread's own clock is all that is read, so waiting costs nothing; here every plain pass takes 10 ms of it."""
    passes = 0

    def plain():
        nonlocal passes
        passes += 1
        return _plain()

    monkeypatch.setattr(time, "thread_time", lambda: 0.01 * passes)
    found = cost.measured(plain, {"waits": lambda: (time.sleep(0.002), plain()), "twice": lambda: (plain(), plain())})
    assert found == pytest.approx({"waits": 1, "twice": 2})


@pytest.mark.full
def test_other_threads_and_processes_do_not_change_it():
    over, threads = threading.Event(), []

    def busy():
        while not over.is_set():
            _plain()

    try:
        for _ in range(2):
            threads.append(threading.Thread(target=busy))
            threads[-1].start()
        found = cost.measured(_plain, {"same": _plain})
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert found["same"] == pytest.approx(1, abs=0.35)


def test_the_number_of_threads_is_given_back():
    before = torch.get_num_threads()
    seen = []
    cost.measured(lambda: seen.append(torch.get_num_threads()) or torch.zeros(1), {"ap2": lambda: None})
    assert set(seen) == {1}
    assert torch.get_num_threads() == before


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_has_a_clock_of_its_own():
    model, x = MODEL.to("cuda"), X.to("cuda")
    found = cost.measured(lambda: model(x), {"twice": lambda: (model(x), model(x))})
    assert 1.2 < found["twice"] < 3


@pytest.mark.parametrize("given", [
    {"input_covariance": 0.01 * torch.eye(256)},
    {"of": momentprop.Normal(X, 0.01)},
    {"model": momentprop.with_weights(MODEL, 1e-4)},
    {"model": momentprop.with_weights(nn.RNN(256, 4).requires_grad_(False), 1e-4)},
], ids=["covariance", "value", "weights", "recurrent weights"])  # fmt: skip
def test_the_unit_is_a_pass_on_tensors_whatever_is_random(given: dict, monkeypatch: pytest.MonkeyPatch):
    def measured(plain, methods):
        output = plain()
        for part in output if isinstance(output, tuple) else (output,):
            assert isinstance(part, torch.Tensor)
        return dict.fromkeys(methods, 1.0)

    monkeypatch.setattr(cost, "measured", measured)
    model, x = given.pop("model", MODEL), given.pop("of", X)
    momentprop.check(model, x, samples=5, methods=("ap2",), **given)
