"""Data sets of images: one inside the package, and others that are fetched once and verified on every read.

Importing this package needs only torch.
"""

from momentprop.data.dataset import Dataset as Dataset
from momentprop.data.dataset import Indices as Indices
from momentprop.data.dataset import Split as Split
from momentprop.data.embedded import Digits as Digits
from momentprop.data.embedded import digits as digits
from momentprop.data.errors import DataError as DataError
from momentprop.data.library import get as get
from momentprop.data.library import load as load
from momentprop.data.library import load_split as load_split
from momentprop.data.store import default_root as default_root
