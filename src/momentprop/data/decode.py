"""Decodes the files of a data set, in each of their published formats, into arrays."""

import io
import json
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from momentprop.data.archives import gunzip, read_tar
from momentprop.data.arrays import Arrays
from momentprop.data.embedded import parse_idx
from momentprop.data.errors import SourceError

Decoder = Callable[[Mapping[str, bytes]], dict[str, Arrays]]
"""Turns the content of files, by name, into splits, by name; raises a `SourceError` for bad files."""

_IDX_PREFIXES = {"train": "train", "test": "t10k"}

_SIDE, _CHANNELS = 32, 3  # of CIFAR's images
_BATCHES = {"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)}


def decode_idx(files: Mapping[str, bytes]) -> dict[str, Arrays]:
    """Decode the four idx files of MNIST and its successors, gzipped or not."""
    splits = {}
    for split, prefix in _IDX_PREFIXES.items():
        images = _idx(files, f"{prefix}-images-idx3-ubyte", ndim=3)
        labels = _idx(files, f"{prefix}-labels-idx1-ubyte", ndim=1)
        splits[split] = Arrays(images.unsqueeze(1), labels)
    return splits


def _idx(files: Mapping[str, bytes], name: str, ndim: int) -> Tensor:
    packed = f"{name}.gz"
    try:
        tensor = parse_idx(gunzip(files[packed]) if packed in files else files[name])
    except (SourceError, ValueError, RuntimeError) as error:
        raise SourceError(f"`{packed if packed in files else name}` is damaged") from error
    if tensor.ndim != ndim:
        raise SourceError(f"`{name}` has {tensor.ndim} dimensions instead of {ndim}")
    return tensor


def decode_cifar_binary(files: Mapping[str, bytes]) -> dict[str, Arrays]:
    """Decode the archive of CIFAR-10's binary version: records of a label and 3,072 bytes, channel after channel."""
    paths = {split: [f"cifar-10-batches-bin/{name}.bin" for name in names] for split, names in _BATCHES.items()}
    archive = io.BytesIO(files["cifar-10-binary.tar.gz"])
    batches = read_tar(archive, [path for group in paths.values() for path in group])
    return {split: _records(b"".join(batches[path] for path in group)) for split, group in paths.items()}


def _records(content: bytes) -> Arrays:
    record = 1 + _CHANNELS * _SIDE**2
    if not content or len(content) % record:
        raise SourceError(f"its batches hold {len(content)} bytes, which is not a multiple of {record}")
    records = torch.frombuffer(bytearray(content), dtype=torch.uint8).view(-1, record)
    return Arrays(records[:, 1:].reshape(-1, _CHANNELS, _SIDE, _SIDE), records[:, 0].clone())


def decode_cifar_sheets(files: Mapping[str, bytes]) -> dict[str, Arrays]:
    """Decode CIFAR-10 from PNG sheets, one image per row with its channels last, and labels in JSON."""
    splits = {}
    for split, names in _BATCHES.items():
        images = torch.cat([_sheet(f"{name}.png", files[f"{name}.png"]) for name in names])
        splits[split] = Arrays(images, _labels(f"{split}_lables.json", files[f"{split}_lables.json"]))
    return splits


def _sheet(name: str, content: bytes) -> Tensor:
    try:
        from PIL import Image
    except ImportError as error:
        raise SourceError('its images need pillow: run `pip install "momentprop[experiments]"`') from error
    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
            if image.mode != "RGB" or image.width != _SIDE**2:
                raise SourceError(f"`{name}` is not a sheet of {_SIDE} by {_SIDE} colour images")
            pixels = bytearray(image.tobytes())
    except (OSError, SyntaxError, ValueError) as error:  # pillow raises these for files that it cannot read
        raise SourceError(f"`{name}` is damaged") from error
    return torch.frombuffer(pixels, dtype=torch.uint8).view(-1, _SIDE, _SIDE, _CHANNELS).permute(0, 3, 1, 2)


def _labels(name: str, content: bytes) -> Tensor:
    try:
        return torch.tensor(json.loads(content), dtype=torch.uint8)
    except (ValueError, TypeError, RuntimeError) as error:
        raise SourceError(f"`{name}` is damaged") from error


SHEETS = tuple(f"{name}.png" for names in _BATCHES.values() for name in names) + tuple(
    f"{split}_lables.json" for split in _BATCHES
)
"""The files that `decode_cifar_sheets` reads, with the misspelling of the package that contains them."""
