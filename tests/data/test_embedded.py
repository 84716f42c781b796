"""The embedded digits are what their README says."""

import hashlib
import re
from importlib import resources

import pytest
import torch

from momentprop.data import digits, embedded


@pytest.mark.parametrize(("split", "per_class"), [("train", 500), ("test", 100)])
def test_each_split_is_balanced_and_has_the_stated_shapes(split, per_class):
    images, labels = digits(split)
    assert images.shape == (10 * per_class, 1, 28, 28)
    assert images.dtype == torch.float32
    assert labels.dtype == torch.int64
    assert torch.equal(torch.bincount(labels), torch.full((10,), per_class))


def test_pixels_span_zero_to_one():
    images = digits("test").images
    assert images.min() == 0
    assert images.max() == 1


def test_the_order_is_that_of_the_original_set():
    # MNIST's well-known beginnings: no class reaches its quota among the first ten images.
    assert digits("train").labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert digits("test").labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]


def test_the_pixels_have_a_known_checksum():
    pixels = (digits("test").images * 255).round().to(torch.uint8)
    checksum = hashlib.sha256(bytes(pixels.flatten().tolist())).hexdigest()
    assert checksum == "6973118ee26132cec5e8bca46303f598e8d7f3fd72a7056c43f828e761c432f0"


def test_the_readme_states_the_checksums_that_the_loader_verifies():
    readme = resources.files("momentprop.data").joinpath("digits", "README.md").read_text()
    rows = dict(re.findall(r"`([a-z-]+)\.idx\.gz` \| \d+ \| `([0-9a-f]{64})`", readme))
    assert rows == embedded._CHECKSUMS


def test_train_is_the_default_split():
    assert torch.equal(digits().labels, digits("train").labels)


def test_an_unknown_split_is_refused():
    with pytest.raises(ValueError, match=r"there is no split 'validation': write `digits\(\"train\"\)`"):
        digits("validation")


def test_a_damaged_file_is_refused(monkeypatch):
    monkeypatch.setitem(embedded._CHECKSUMS, "test-labels", "0" * 64)
    with pytest.raises(ValueError, match=r"`test-labels\.idx\.gz` is damaged"):
        digits("test")


@pytest.mark.parametrize(
    "content", [b"", b"\x00\x00\x08", b"\x00\x00\x0d\x01\x00\x00\x00\x00", b"\x00\x00\x08\x01\x00"]
)
def test_a_wrong_idx_header_is_refused(content):
    with pytest.raises(ValueError, match="this is not an idx file of unsigned bytes: its header is"):
        embedded.parse_idx(content)
