"""A seed for every test, and reports that several files look at."""

import pytest
import torch
from torch import nn

from momentprop import check
from tests.checking.reports import EVIL


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def report():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(108, 10)).eval()
    x = torch.rand(4, 1, 8, 8)
    return check(model, x, input_variance=0.05, dropout=True, samples=100, methods=("ap1", "ap2", "ap2-logistic"))


@pytest.fixture(scope="session")
def evil_report():
    class Evil(nn.Module):
        def __init__(self):
            super().__init__()
            self.add_module(EVIL, nn.Linear(4, 3))
            self.add_module("a | b`\"'&", nn.ReLU())

        def forward(self, x):
            for module in self.children():
                x = module(x)
            return {"logits": x, EVIL: x * 2}

    Evil.__name__ = f"Evil{EVIL}"
    names = [EVIL, '" onload="alert(1)', "'><img src=x onerror=alert(1)>"]
    methods = ["ap1", (EVIL, {})]
    return check(Evil(), torch.randn(3, 4), input_variance=0.1, samples=30, methods=methods, class_names=names)
