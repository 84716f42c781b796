"""Saves, restores and protects torch's random generators in a run of several processes."""

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from momentprop.files import ContentError
from momentprop.training.distributed import Ranks


@contextlib.contextmanager
def forked_generators(ranks: Ranks) -> Iterator[None]:
    """Restore torch's own generators on exit."""
    with torch.random.fork_rng([ranks.device] if ranks.device.type == "cuda" else []):
        yield


def generator_states(ranks: Ranks) -> dict[str, Tensor]:
    """Return the states of the generators of all processes, stacked."""
    states = {"cpu": torch.get_rng_state()}
    if ranks.device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(ranks.device)
    return {name: torch.stack(ranks.gather(state)) for name, state in states.items()}


def restore_generators(found: Mapping[str, Tensor], ranks: Ranks) -> None:
    """Restore the generators of this process from the result of `generator_states`, where that has them."""
    for name, states in found.items():
        if ranks.rank < len(states):
            state = states[ranks.rank].clone()
            if name == "cpu":
                torch.set_rng_state(state)
            elif ranks.device.type == "cuda":
                torch.cuda.set_rng_state(state, ranks.device)


def require_states(found: Mapping[str, Tensor]) -> None:
    """Raise a `ContentError` if these are not the states of generators."""
    if "cpu" not in found:
        raise ContentError("the states of its generators are missing")
    try:
        for state in found["cpu"]:
            torch.Generator().set_state(state.clone())
    except (RuntimeError, TypeError) as error:
        raise ContentError("the states of its generators are not valid") from error
