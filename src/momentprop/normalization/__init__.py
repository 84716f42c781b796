"""Statistics of a data set, carried through a network as one pixel: for scaling weights and for normalization."""

from momentprop.normalization.folding import fold
from momentprop.normalization.initialization import Initialization, initialize
from momentprop.normalization.inputs import input_statistics
from momentprop.normalization.layers import normalize
from momentprop.normalization.pixel import dataset_statistics

__all__ = ["Initialization", "dataset_statistics", "fold", "initialize", "input_statistics", "normalize"]
