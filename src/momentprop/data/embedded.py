"""A balanced subset of MNIST: 500 training and 100 test images of each digit.

The files are in `momentprop/data/digits/`, with a README on their origin; `tools/embed_digits.py` writes them.

>>> images, labels = digits("test")
>>> images.shape, images.dtype, labels.dtype
(torch.Size([1000, 1, 28, 28]), torch.float32, torch.int64)
"""

import gzip
import hashlib
import struct
from importlib import resources
from typing import NamedTuple

import torch

from momentprop.data.arrays import Arrays

# SHA-256 of the unpacked content of each file: the packed bytes depend on the version of zlib.
_CHECKSUMS = {
    "train-images": "36cb395b94762f0009909e61c7df0bc6d23da1b3e0251f38b10b10501b652034",
    "train-labels": "6bf07e4d2b09bd66291b74f06f4d0e8c9f34e62ddcb50269a3126f861d1e7d68",
    "test-images": "b97c8bfeb834d8e7999eaa2d69239abe06653dc09c1e5d7eb0c974c5965bc6a9",
    "test-labels": "41cf2f530031915ba9fbb241407c369dba1acd7515053edff48cebeee8b260f4",
}

_UNSIGNED_BYTE = 8  # the idx format's code for the element type


class Digits(NamedTuple):
    """Images of handwritten digits and the digits they show."""

    images: torch.Tensor  # shape: (n, 1, 28, 28), float32 in [0, 1]
    labels: torch.Tensor  # shape: (n,), int64 in 0..9


def digits(split: str = "train") -> Digits:
    """Return the embedded images and labels of `split`, which is `"train"` (5,000 images) or `"test"` (1,000)."""
    if split not in ("train", "test"):
        raise ValueError(f'there is no split {split!r}: write `digits("train")` or `digits("test")`')
    images, labels = read(split)
    return Digits(images.float() / 255, labels.long())


def read(split: str) -> Arrays:
    """Return the embedded images and labels of a split as bytes."""
    return Arrays(_read(f"{split}-images").unsqueeze(1), _read(f"{split}-labels"))


def _read(name: str) -> torch.Tensor:
    """Return the embedded file `name` as a tensor of bytes."""
    packed = resources.files("momentprop.data").joinpath("digits", f"{name}.idx.gz").read_bytes()
    content = gzip.decompress(packed)
    if hashlib.sha256(content).hexdigest() != _CHECKSUMS[name]:
        raise ValueError(f"the embedded file `{name}.idx.gz` is damaged: install momentprop again")
    return parse_idx(content)


def parse_idx(content: bytes) -> torch.Tensor:
    """Return the tensor of bytes in `content`, a file in the idx format of MNIST.

    The header is two zero bytes, the element type, the number of dimensions, and each dimension as a big-endian
    32-bit integer.

    >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]))
    tensor([7, 9], dtype=torch.uint8)
    """
    if len(content) < 4 or content[:3] != bytes([0, 0, _UNSIGNED_BYTE]) or len(content) < 4 + 4 * content[3]:
        raise ValueError(f"this is not an idx file of unsigned bytes: its header is {content[:8]!r}")
    ndim = content[3]
    shape = struct.unpack_from(f">{ndim}I", content, 4)
    # A bytearray, because torch.frombuffer warns about read-only memory.
    body = torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=4 + 4 * ndim)
    return body.reshape(shape)
