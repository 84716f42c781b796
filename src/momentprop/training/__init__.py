"""Trains any model with `fit`, in one process or many.

Checkpoints need safetensors and progress bars need rich (`pip install "momentprop[experiments]"`); without rich there
are no bars. The package `momentprop_experiments` trains the paper's networks.
"""

from momentprop.training.checkpoint import CheckpointError as CheckpointError
from momentprop.training.distributed import over_ranks as over_ranks
from momentprop.training.fitting import fit as fit
from momentprop.training.losses import Classification as Classification
from momentprop.training.losses import ExpectedClassification as ExpectedClassification
from momentprop.training.losses import Regression as Regression
from momentprop.training.losses import gaussian_nll as gaussian_nll
from momentprop.training.settings import Settings as Settings
