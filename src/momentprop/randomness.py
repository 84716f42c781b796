"""Randomness from outside torch: Python's `random`, numpy, and any other source inside a model."""

import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

REPLAYS = 3
"""How often a draw is repeated from the same state of torch's generators."""

DRAWS = frozenset(
    "bernoulli bernoulli_ binomial cauchy_ exponential_ geometric_ gumbel_softmax log_normal_ multinomial normal "
    "normal_ poisson rand rand_like randint randint_like randn randn_like random_ randperm uniform_ "
    "_sample_dirichlet _standard_gamma".split()
)
"""The names of torch's functions that draw random numbers."""


class Foreign:
    """The global generators of Python and numpy, as they were when this was made."""

    def __init__(self) -> None:
        self.before = _states()

    @property
    def have_drawn(self) -> list[str]:
        """The names of the generators that have been used since."""
        return [name for name, state in _states().items() if state != self.before.get(name, state)]


def _states() -> dict[str, Any]:
    if torch.compiler.is_compiling():
        return {}
    states: dict[str, Any] = {"random": random.getstate()}
    numpy: Any = sys.modules.get("numpy.random")
    if numpy is not None:
        name, keys, *rest = numpy.get_state()
        states["numpy.random"] = (name, keys.tobytes(), *rest)
    return states


def torch_states() -> list[Tensor]:
    """Return the states of torch's generators, on the CPU and on the GPUs that are in use."""
    on_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return [torch.get_rng_state(), *on_gpus]


def repeated(draw: Callable[[], Sequence[Tensor]], times: int = REPLAYS) -> Sequence[Tensor] | None:
    """Return a draw that depends only on torch's generators: it comes out the same from the same state. Otherwise None.

    The generators are left as they were. A source that few draws use may go unnoticed, unless it is Python's or numpy's
    global generator.
    """
    others = Foreign()
    found = []
    for _ in range(times):
        found.append(aside(draw))
    same = not others.have_drawn and all(are_same(found[0], again) for again in found[1:])
    return found[0] if same else None


def aside(draw: Callable[[], Sequence[Tensor]]) -> Sequence[Tensor]:
    """Make a draw, and leave torch's generators as they were."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        return draw()


def are_same(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    """Return whether two draws are equal."""
    return all(map(_same, one, other))


def _same(a: Tensor, b: Tensor) -> bool:
    """Return whether tensors are equal; on a GPU, up to the rounding of sums in another order."""
    if a.shape != b.shape:
        return False
    if a.device.type == "cpu":
        return torch.allclose(a, b, rtol=0.0, atol=0.0, equal_nan=True)
    size = a.nan_to_num(posinf=0.0, neginf=0.0).abs().sum() / max(a.numel(), 1)
    return torch.allclose(a, b, rtol=1e-4, atol=1e-4 * float(size), equal_nan=True)
