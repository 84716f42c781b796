"""Values of every type, as parameters of a test."""

import pytest
import torch

from momentprop import Fitted, Logistic, Normal
from momentprop.values import Value

FAMILIES = [Normal, Logistic, Fitted]
every_family = pytest.mark.parametrize("family", FAMILIES)


def assert_same(found: Value, wanted: Value) -> None:
    assert type(found) is type(wanted)
    for name in wanted.components:
        assert torch.equal(getattr(found, name), getattr(wanted, name))
