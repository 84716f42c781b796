"""Trains any model with `fit`, in one process or many.

Checkpoints need safetensors and progress bars need rich (`pip install "momentprop[experiments]"`); without rich there
are no bars. The package `momentprop_experiments` trains the paper's networks.
"""

from momentprop.renamed import keep_names as _keep_names
from momentprop.training.checkpoint import CheckpointError
from momentprop.training.distributed import over_ranks
from momentprop.training.fitting import fit
from momentprop.training.losses import Classification, ExpectedClassification, Regression, gaussian_nll
from momentprop.training.settings import Settings

__all__ = [
    "CheckpointError",
    "Classification",
    "ExpectedClassification",
    "Regression",
    "Settings",
    "fit",
    "gaussian_nll",
    "over_ranks",
]

_keep_names(__name__)
