"""Statistics of a data set, carried through a network as one pixel: for scaling weights and for normalization."""

from momentprop.normalization.folding import fold as fold
from momentprop.normalization.initialization import Initialization as Initialization
from momentprop.normalization.initialization import initialize as initialize
from momentprop.normalization.inputs import input_statistics as input_statistics
from momentprop.normalization.layers import normalize as normalize
from momentprop.normalization.pixel import dataset_statistics as dataset_statistics
