"""Settings for all tests: warnings are errors, but for torch's about its inner workings; kernels run by their formulas.

The tests in `tests/codegen` build kernels. `MOMENTPROP_KERNELS=wait` lets all tests run with built kernels.
"""

import os

import pytest

os.environ.setdefault("MOMENTPROP_KERNELS", "eager")

_TORCHS_OWN = (
    r"ignore:.torch\.jit\.script(_method)?. is deprecated:DeprecationWarning",  # forward mode loads scripted formulas
    r"ignore:.*should not be instantiated:DeprecationWarning",  # dynamo instantiates every autograd.Function
    "ignore:Guards may run slower on Python 3.13.0:RuntimeWarning",  # of dynamo
)


def pytest_configure(config: pytest.Config) -> None:
    """Ignore what torch warns of that nobody can change."""
    for line in _TORCHS_OWN:
        config.addinivalue_line("filterwarnings", line)
