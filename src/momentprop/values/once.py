"""Functions that run when their result is first needed."""

import threading
from collections.abc import Callable

import torch
from torch import Tensor


class Once:
    """A function that runs once, and again if its result should have gradients and has none."""

    def __init__(self, function: Callable[[], Tensor]) -> None:
        self.function = function
        self.known = False
        self.with_gradients = False
        self.lock = threading.RLock()

    def __call__(self) -> Tensor:
        """Return the result."""
        with self.lock:
            if not self.known or (torch.is_grad_enabled() and not self.with_gradients):
                self.result, self.known = self.function(), True
                self.with_gradients = torch.is_grad_enabled()
        return self.result
