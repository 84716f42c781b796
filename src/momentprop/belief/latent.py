r"""The latent variable of a layer: reads $X = f(A x - Z)$ from a torch module, and builds the module again."""

from dataclasses import dataclass
from functools import singledispatch

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Normal

from momentprop import nn as units
from momentprop.belief.conditionals import Conditional, Function, Step, conditional, identity, is_identity, is_rectifier
from momentprop.belief.noise_tails import negated
from momentprop.functional.noise import draw_like


@dataclass(frozen=True)
class Latent:
    r"""A layer $X = f(A x - Z)$: an affine map $A$, a function $f$ and noise $Z$, or None."""

    affine: nn.Module
    function: Function
    noise: Distribution | None

    @classmethod
    def of(cls, layer: nn.Module) -> "Latent":
        """Read a layer: a unit of `momentprop.nn`, or a `Sequential` that ends in one."""
        *before, unit = layer if isinstance(layer, nn.Sequential) else [layer]
        return cls(before[0] if len(before) == 1 else nn.Sequential(*before), *unit_view(unit))

    @property
    def step(self) -> Step | None:
        """The function of a binary layer, which determines its states."""
        return self.function if isinstance(self.function, Step) else None

    def given(self, state: Tensor) -> Conditional:
        """The distribution of the layer, given a state of the layer before."""
        return conditional(self.function, self.noise, self.affine(state))

    def draw(self, activation: Tensor) -> Tensor:
        """Independent noise for every activation."""
        return torch.zeros_like(activation) if self.noise is None else draw_like(activation, self.noise)

    def module(self) -> nn.Sequential:
        """The layer as a torch module."""
        return nn.Sequential(self.affine, _unit(self.function, self.noise))


def _unit(function: Function, noise: Distribution | None) -> nn.Module:
    """The unit of `momentprop.nn` with this function and noise."""
    if isinstance(function, Step):
        levels = function.low, function.high
        return units.Heaviside(*levels) if noise is None else units.StochasticBinary(noise, *levels)
    if noise is None:
        raise ValueError(
            "a continuous layer without noise has no latent variable, because it is a function: give `noise`"
        )
    if is_identity(function):
        return units.AdditiveNoise(negated(noise))
    return units.StochasticReLU(noise) if is_rectifier(function) else units.NoisyActivation(function, noise)


View = tuple[Function, Distribution | None]


@singledispatch
def unit_view(unit: nn.Module) -> View:
    """The function and the noise of a unit; `unit_view.register` adds another class of units."""
    raise TypeError(
        f"a {type(unit).__name__} is not known to be f(a - Z) for some noise Z: end the layer in a unit of "
        "`momentprop.nn`, or use `.sample` or `.propagate`, which take any layer"
    )


@unit_view.register
def _view_of_binary(unit: units.StochasticBinary) -> View:
    return Step(unit.low, unit.high), unit.noise


@unit_view.register
def _view_of_threshold(unit: units.Heaviside) -> View:
    return Step(unit.low, unit.high), None


@unit_view.register
def _view_of_activation(unit: units.NoisyActivation) -> View:
    return unit.function, unit.noise


@unit_view.register
def _view_of_gaussian_noise(unit: units.GaussianNoise) -> View:
    return identity, Normal(0.0, unit.std, validate_args=False)


@unit_view.register
def _view_of_additive_noise(unit: units.AdditiveNoise) -> View:
    return identity, negated(unit.noise)
