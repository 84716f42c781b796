"""CIFAR-10 in its two formats, with two images a batch: what is read, and what is refused."""

import io
import json
import sys

import pytest
import torch
from PIL import Image

from momentprop.data import decode
from momentprop.data.errors import SourceError
from tests import tiny_data
from tests.tiny_data import tar_of

BATCHES = {f"data_batch_{number}": tiny_data.arrays(2, (3, 32, 32), seed=number) for number in range(1, 6)}
BATCHES["test_batch"] = tiny_data.arrays(2, (3, 32, 32), seed=6)


def binary():
    def records(images, labels):
        return torch.cat([labels[:, None], images.flatten(1)], dim=1).numpy().tobytes()

    return tar_of({f"cifar-10-batches-bin/{name}.bin": records(*batch) for name, batch in BATCHES.items()})


def png(array):
    packed = io.BytesIO()
    Image.fromarray(array.numpy()).save(packed, format="PNG")
    return packed.getvalue()


def sheets():
    files = {
        f"{name}.png": png(images.permute(0, 2, 3, 1).reshape(-1, 1024, 3)) for name, (images, _) in BATCHES.items()
    }
    labels = [batch.labels.tolist() for batch in BATCHES.values()]
    files["train_lables.json"] = json.dumps([label for batch in labels[:5] for label in batch]).encode()
    files["test_lables.json"] = json.dumps(labels[5]).encode()
    return files


def test_both_formats_of_cifar_give_the_same_arrays():
    train, test = list(BATCHES.values())[:5], BATCHES["test_batch"]
    expected = {"train": [torch.cat(parts) for parts in zip(*train, strict=True)], "test": list(test)}
    from_binary = decode.decode_cifar_binary({"cifar-10-binary.tar.gz": binary()})
    from_sheets = decode.decode_cifar_sheets(sheets())
    for split, (images, labels) in expected.items():
        for decoded in (from_binary, from_sheets):
            assert torch.equal(decoded[split].images, images)
            assert torch.equal(decoded[split].labels, labels)
    assert set(decode.SHEETS) == set(sheets())


def test_incomplete_batches_of_cifar_are_refused():
    empty = tar_of({f"cifar-10-batches-bin/{name}.bin": bytes(3072) for name in BATCHES})
    with pytest.raises(SourceError, match="its batches hold 15360 bytes, which is not a multiple of 3073"):
        decode.decode_cifar_binary({"cifar-10-binary.tar.gz": empty})


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("data_batch_1.png", b"no image", "`data_batch_1.png` is damaged"),
        ("data_batch_1.png", sheets()["data_batch_1.png"][:-500], "`data_batch_1.png` is damaged"),
        ("data_batch_1.png", png(torch.zeros(2, 1024, dtype=torch.uint8)), "is not a sheet of 32 by 32 colour images"),
        ("data_batch_1.png", png(torch.zeros(2, 9, 3, dtype=torch.uint8)), "is not a sheet of 32 by 32 colour images"),
        ("test_lables.json", b"[1, 2", "`test_lables.json` is damaged"),
        ("test_lables.json", b"[1, 1000]", "`test_lables.json` is damaged"),
        ("test_lables.json", b'["a"]', "`test_lables.json` is damaged"),
    ],
)
def test_damaged_sheets_are_refused(name, content, why):
    with pytest.raises(SourceError, match=why):
        decode.decode_cifar_sheets({**sheets(), name: content})


def test_without_pillow_the_sheets_say_what_to_install(monkeypatch):
    files = sheets()
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(SourceError, match=r'its images need pillow: run `pip install "momentprop\[experiments\]"`'):
        decode.decode_cifar_sheets(files)
