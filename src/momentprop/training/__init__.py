"""Training: the paper's networks by `train`, any model by `fit`, on one process or many.

Checkpoints need safetensors, curves matplotlib and live bars rich (`pip install "momentprop[experiments]"`); without
the last two, training goes on without them.
"""

from momentprop.training.checkpoint import CheckpointError as CheckpointError
from momentprop.training.config import Config as Config
from momentprop.training.config import Settings as Settings
from momentprop.training.distributed import over_ranks as over_ranks
from momentprop.training.loop import fit as fit
from momentprop.training.losses import Classification as Classification
from momentprop.training.losses import ExpectedClassification as ExpectedClassification
from momentprop.training.losses import Regression as Regression
from momentprop.training.losses import gaussian_nll as gaussian_nll
from momentprop.training.run import Result as Result
from momentprop.training.run import load_model as load_model
from momentprop.training.run import save_halved as save_halved
from momentprop.training.run import train as train
