"""Where the items of a batch lie in a tensor."""

import pytest
import torch

from momentprop import propagate
from momentprop.correlation.births import Birth
from momentprop.correlation.items import Weighing, at, places, whole


def test_places_that_are_dimensions_of_their_own_come_first():
    found = list(places((6, 3, 4), 3))
    assert [place.axis for place in found] == [2, 1, 1]
    assert [place.shape for place in found] == [(6, 1, 3, 1, 4), (1, 3, 2, 3, 4), (2, 3, 1, 3, 4)]
    assert not list(places((5, 4), 3))


def test_a_folded_tensor_is_split_into_items():
    x = torch.arange(2 * 3 * 2 * 5).reshape(2, 3, 2, 5)  # items along dimension 1
    folded = x.flatten(0, 2)
    place = at(folded.shape, 0, 3, before=2)
    assert torch.equal(place.by_items(folded), x.movedim(1, 0).flatten(1))
    assert torch.equal(place.items_first(place.split(folded.unsqueeze(0)))[:, 0], x.movedim(1, 0).flatten(1))
    assert torch.equal(whole(x.shape).by_items(x), x.flatten().unsqueeze(0))
    assert whole(()).by_items(torch.ones(())).shape == (1, 1)


def test_what_items_share_is_shared_inside_each_item_alone():
    """One source moves all units of a batch; of the covariance of an item it gives the part of this item."""
    shared = torch.tensor([1.0, 2.0, 3.0, 4.0])
    birth = Birth(None, torch.Size([4]), None, (0,), shared)
    place = at((4,), 0, 2)
    apart = place.of(birth)
    ((moves, weight),) = apart.terms(place.split(torch.ones(1, 4)))
    assert weight is None
    assert place.items_first(moves).flatten().tolist() == [3.0, 7.0]


def test_the_variance_of_a_birth_counts_all_its_noise():
    factors = torch.tensor([[1.0, 0.0], [2.0, 1.0]])
    birth = Birth(None, torch.Size([2]), torch.tensor([0.5, -1e-9]), (), torch.tensor([0.0, 2.0]), factors=factors)
    assert birth.variance.tolist() == [5.5, 5.0]


def test_where_the_cheap_test_cannot_tell_the_exact_one_decides(monkeypatch: pytest.MonkeyPatch):
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    x, searched = torch.randn(3, 3), []
    wanted = propagate(model, x, input_variance=0.1).covariance
    search = Weighing._searched
    monkeypatch.setattr(Weighing, "_searched", lambda *args: searched.append(1) or search(*args))
    assert torch.equal(propagate(model, x, input_variance=0.1).covariance, wanted)
    assert not searched
    monkeypatch.setattr(Weighing, "_surely_fit", lambda self, found: [False for _ in found])
    assert torch.equal(propagate(model, x, input_variance=0.1).covariance, wanted)
    assert len(searched) == 2  # the input, and what the activation adds
