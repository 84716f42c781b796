"""Belief networks: layers of random units, with exact inference where they are small and binary."""

from momentprop.belief.conditionals import Binary, Conditional, Rectified, Shifted, Step
from momentprop.belief.divergence import Divergence
from momentprop.belief.enumeration import Posterior
from momentprop.belief.equivalent_models import LatentVariableModel, NoisyActivations
from momentprop.belief.latent import Latent
from momentprop.belief.network import BeliefNetwork

__all__ = [
    "BeliefNetwork",
    "Binary",
    "Conditional",
    "Divergence",
    "Latent",
    "LatentVariableModel",
    "NoisyActivations",
    "Posterior",
    "Rectified",
    "Shifted",
    "Step",
]
