"""The price of a method is the processor's work for it, whatever else the machine does."""

import threading
import time

import pytest
import torch
from torch import nn

from momentprop.checking import cost

X = torch.randn(256, 256)
MODEL = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)).requires_grad_(False)


def _plain():
    return MODEL(X)


def test_waiting_costs_nothing():
    found = cost.measured(
        _plain, {"waits": lambda: (time.sleep(0.02), _plain()), "twice": lambda: (_plain(), _plain())}
    )
    assert found["waits"] < 1.5  # by the clock it takes more than ten times as long
    assert 1.5 < found["twice"] < 2.6


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
