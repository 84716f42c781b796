"""One trial: the number that it has, the random numbers that follow from it, and what came out."""

import traceback
from collections import Counter
from dataclasses import dataclass, field
from random import Random

import torch

from tests.fuzz import elementwise, interrupts, mixing, models, programs

KINDS = {
    "elementwise": elementwise.trial,
    "mixing": mixing.trial,
    "programs": programs.trial,
    "models": models.trial,
    "interrupts": interrupts.trial,
}


@dataclass(frozen=True)
class Outcome:
    """What a trial counted, or how it failed."""

    kind: str
    number: int
    counts: Counter[str] = field(default_factory=Counter)
    failure: str = ""
    details: str = ""


def run(kind: str, seed: int, number: int, device: str) -> Outcome:
    """Run one trial, which depends on these arguments only."""
    random = Random(f"{kind}/{seed}/{number}")
    torch.manual_seed(random.getrandbits(63))
    try:
        return Outcome(kind, number, KINDS[kind](random, device))
    except Exception as error:
        return Outcome(kind, number, Counter(), _described(error), traceback.format_exc())


def _described(error: Exception) -> str:
    message = " ".join(str(error).split())
    return message if isinstance(error, AssertionError) and message else f"{type(error).__name__}: {message}"
