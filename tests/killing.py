"""Training runs that are killed."""

import contextlib
from collections.abc import Iterator

import pytest
from torch import Tensor

from momentprop.training.loop import Trainer


class Killed(BaseException):
    """In the place of a signal, which nothing catches."""


@contextlib.contextmanager
def killed_after(steps: int) -> Iterator[None]:
    """Kill a run that is made inside when it has made so many steps and begins another."""
    step, done = Trainer.step, []

    def until_killed(self: Trainer, batch: Tensor) -> None:
        if len(done) == steps:
            raise Killed
        step(self, batch)
        done.append(1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "step", until_killed)
        yield
