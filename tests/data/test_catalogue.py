"""The recipes of all data sets."""

import pytest

from momentprop.data import catalogue


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10"])
def test_recipes_have_checksums_and_encrypted_mirrors(name):
    recipe = catalogue.RECIPES[name]
    checksums = [*recipe.checksums.values(), *(file.sha256 for file in recipe.originals)]
    assert all(len(bytes.fromhex(checksum)) == 32 for checksum in checksums)
    assert len(set(checksums)) == len(checksums)
    assert len(recipe.classes) == 10
    by_hand, mirrors, _ = recipe.sources
    assert all(address.startswith("https://") and address.endswith("/") for address in mirrors.addresses)
    assert by_hand.names == tuple(file.name for file in recipe.originals)
