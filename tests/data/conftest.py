"""A server of the tiny data set, and a client that does not wait long."""

import pytest

from momentprop.data import catalogue, download
from tests import tiny_data
from tests.tiny_data import Server


@pytest.fixture
def server():
    with Server() as running:
        yield running


@pytest.fixture(autouse=True)
def _hurry(monkeypatch):
    monkeypatch.setattr(download, "TIMEOUT", 0.3)
    monkeypatch.setattr(download, "PAUSE", 0.001)


@pytest.fixture
def use(monkeypatch):
    """Make the tiny data set known, with these mirrors and further sources."""

    def install(*mirrors, more=()):
        monkeypatch.setitem(catalogue.RECIPES, "tiny", tiny_data.recipe(*mirrors, more=more))

    return install
