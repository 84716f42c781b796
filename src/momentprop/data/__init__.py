"""Data carried inside the package, so that the demo and the tests need no network."""

from momentprop.data.embedded import Digits as Digits
from momentprop.data.embedded import digits as digits
