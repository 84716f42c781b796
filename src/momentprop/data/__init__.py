"""Data sets of images: one inside the package, and others that are fetched once and verified on every read.

Importing this package needs only torch.
"""

from momentprop.data.dataset import Dataset, Indices, Split
from momentprop.data.embedded import Digits, digits
from momentprop.data.errors import DataError
from momentprop.data.library import get, load, load_split
from momentprop.data.store import default_root

__all__ = ["DataError", "Dataset", "Digits", "Indices", "Split", "default_root", "digits", "get", "load", "load_split"]
