"""Data sets as tensors: splits, statistics, batches, loaders, and files that are mapped."""

import os
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Subset

from momentprop.data import DataError, Dataset, Split, catalogue, digits, load, load_split
from momentprop.data.arrays import Arrays
from momentprop.data.dataset import channel_statistics
from momentprop.data.store import checksum, read, write
from tests import tiny_data


@pytest.fixture
def data():
    train, test = tiny_data.arrays(50, (3, 5, 4), seed=1), tiny_data.arrays(10, (3, 5, 4), seed=2)
    return Dataset(
        "colours", tuple("0123456789"), Split(train.images, train.labels.long()), Split(test.images, test.labels.long())
    )


def test_the_embedded_digits_have_the_same_interface():
    loaded = load("digits")
    assert len(loaded.train) == 5000
    for split in ("train", "test"):
        images, labels = getattr(loaded, split).batch()
        assert torch.equal(images, digits(split).images)
        assert torch.equal(labels, digits(split).labels)
    assert loaded.classes == tuple("0123456789")


@pytest.mark.parametrize("indices", [[3, 0, 7], torch.tensor([3, 0, 7]), range(3), slice(2, 9, 3), None])
def test_a_batch_holds_floats_between_zero_and_one(data, indices):
    images, labels = data.train.batch(indices)
    chosen = torch.arange(50)
    if indices is not None:
        chosen = chosen[list(indices) if isinstance(indices, range) else indices]
    assert images.dtype == torch.float32
    assert torch.equal(images, data.train.images[chosen].float() / 255)
    assert torch.equal(labels, data.train.labels[chosen])


def test_statistics_are_those_of_each_channel_of_the_training_images(data):
    values = data.train.images.double() / 255
    torch.testing.assert_close(data.mean.double(), values.mean((0, 2, 3)), rtol=1e-7, atol=0)
    torch.testing.assert_close(data.std.double(), values.std((0, 2, 3), correction=0), rtol=1e-7, atol=0)
    assert data.mean is data.mean  # computed once


def test_statistics_of_several_chunks_are_those_of_the_whole(monkeypatch, data):
    whole = channel_statistics(data.train.images)
    monkeypatch.setattr("momentprop.data.dataset._CHUNK", 7)
    assert all(map(torch.equal, channel_statistics(data.train.images), whole))


def test_normalized_training_images_have_zero_mean_and_unit_variance(data):
    normalized = data.normalized()
    images, _ = normalized.train.batch()
    torch.testing.assert_close(images.mean((0, 2, 3)), torch.zeros(3), rtol=0, atol=1e-6)
    torch.testing.assert_close(images.std((0, 2, 3), correction=0), torch.ones(3), rtol=1e-6, atol=0)
    expected = (data.test.batch()[0] - data.mean[:, None, None]) / data.std[:, None, None]
    torch.testing.assert_close(normalized.test.batch()[0], expected)
    assert torch.equal(normalized.train[4][0], images[4])


def test_a_channel_that_never_varies_is_only_shifted():
    images = torch.full((3, 1, 2, 2), 51, dtype=torch.uint8)
    split = Split(images, torch.zeros(3, dtype=torch.int64))
    assert torch.equal(Dataset("grey", ("a",), split, split).normalized().train.batch()[0], torch.zeros(3, 1, 2, 2))


def test_the_validation_split_is_a_tenth_disjoint_and_seeded(data):
    train, validation = data.validation_split()
    assert len(validation) == 5
    assert torch.equal(torch.cat([train, validation]).sort().values, torch.arange(50))
    again = data.validation_split(seed=0)
    assert torch.equal(again.train, train)
    assert torch.equal(again.validation, validation)
    assert not torch.equal(data.validation_split(seed=1).validation, validation)
    assert len(data.validation_split(fraction=0).validation) == 0


def test_the_validation_split_does_not_change_between_versions():
    # A trained network was validated with these images: another split would leak.
    assert load("digits").validation_split().validation[:5].tolist() == [38, 48, 58, 60, 63]


def test_the_validation_split_leaves_the_global_generator_alone(data):
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    data.validation_split()
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize("fraction", [-0.1, 1.0, float("nan")])
def test_a_fraction_that_makes_no_sense_is_refused(data, fraction):
    with pytest.raises(ValueError, match="must be at least 0 and less than 1, but is"):
        data.validation_split(fraction)


def test_a_loader_takes_a_split_and_a_part_of_it(data):
    train, _ = data.validation_split()
    for dataset, positions in ((data.train, torch.arange(50)), (Subset(data.train, train.tolist()), train)):
        images, labels = (torch.cat(parts) for parts in zip(*DataLoader(dataset, batch_size=7), strict=True))
        assert torch.equal(images, data.train.batch(positions)[0])
        assert torch.equal(labels, data.train.labels[positions])


def test_a_data_set_moves_to_a_device(data):
    moved = data.normalized().to("meta")
    tensors = (moved.train.images, moved.test.labels, moved.test.mean, moved.test.std)
    assert {tensor.device.type for tensor in tensors if tensor is not None} == {"meta"}
    assert len([tensor for tensor in tensors if tensor is not None]) == 4
    assert data.to("cpu").train.mean is None


def test_a_stored_split_is_mapped_and_cannot_be_changed(tmp_path):
    arrays = tiny_data.arrays(200, (1, 28, 28), seed=1)
    path = tmp_path / "train.safetensors"
    write(path, arrays)
    loaded = read(path, checksum(arrays))
    if sys.platform == "linux":
        assert str(path) in Path("/proc/self/maps").read_text()
    loaded.images.zero_()
    assert torch.equal(read(path, checksum(arrays)).images, arrays.images)
    assert os.listdir(tmp_path) == ["train.safetensors"]
    assert path.stat().st_mode & 0o777 == 0o644


def test_the_checksum_does_not_depend_on_memory_layout():
    images, labels = tiny_data.arrays(3, (3, 4, 5), seed=1)
    strided = images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    assert not strided.is_contiguous()
    assert checksum(Arrays(strided, labels)) == checksum(Arrays(images, labels))


def test_one_split_is_read_without_the_file_of_the_other(monkeypatch, tmp_path):
    monkeypatch.setitem(catalogue.RECIPES, "mnist", tiny_data.recipe())
    (tmp_path / "mnist").mkdir()
    write(tmp_path / "mnist" / "test.safetensors", tiny_data.SPLITS["test"])
    found = load_split("mnist", "test", tmp_path)
    assert torch.equal(found.images, tiny_data.SPLITS["test"].images)
    assert found.labels.dtype == torch.int64
    for missing in (lambda: load_split("mnist", "train", tmp_path), lambda: load("mnist", tmp_path)):
        with pytest.raises(DataError, match=r"mnist is not in .*: run `momentprop data get mnist --root"):
            missing()


def test_a_split_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match=r"there is no split 'validation': write `load_split\('digits', \"test\"\)`"):
        load_split("digits", "validation")
