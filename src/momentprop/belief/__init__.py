"""Belief networks: layers of random units, with exact inference where they are small and binary."""

from momentprop.belief.conditionals import Binary as Binary
from momentprop.belief.conditionals import Conditional as Conditional
from momentprop.belief.conditionals import Rectified as Rectified
from momentprop.belief.conditionals import Shifted as Shifted
from momentprop.belief.conditionals import Step as Step
from momentprop.belief.divergence import Divergence as Divergence
from momentprop.belief.enumeration import Posterior as Posterior
from momentprop.belief.equivalent_models import LatentVariableModel as LatentVariableModel
from momentprop.belief.equivalent_models import NoisyActivations as NoisyActivations
from momentprop.belief.latent import Latent as Latent
from momentprop.belief.network import BeliefNetwork as BeliefNetwork
