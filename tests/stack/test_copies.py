"""Copies of values, and of models that hold them."""

import copy
import io
import pickle
from typing import Any

import pytest
import torch

from momentprop import Categorical, Logistic, Mean, Sample
from tests.stack.inputs import a_value, an_mlp


@pytest.mark.parametrize(
    "value",
    [
        a_value(2, 3),
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
    model = an_mlp()
    model.prior = a_value(2)
    assert torch.equal(copy.deepcopy(model).prior.variance, model.prior.variance)
