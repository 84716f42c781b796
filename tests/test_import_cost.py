import subprocess
import sys

_PROGRAM = """
import sys
import torch
from torch.utils._python_dispatch import TorchDispatchMode

class Operations(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        print("operation", function)
        return function(*args, **kwargs or {})

with Operations():
    torch.zeros(1)  # torch itself imports more at the first operation
    print("start")
    before = set(sys.modules)
    import momentprop
for name in set(sys.modules) - before:
    print("module", name)
"""

_STANDARD = {"_decimal", "_statistics", "decimal", "fractions", "html", "html.entities", "statistics"}
_MADE_OF_NUMBERS = {"aten.lift_fresh.default"}  # a tensor that is written down, and not computed


def _found(kind: str) -> set[str]:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True)
    return {
        line.partition(" ")[2]
        for line in done.stdout.partition("start\n")[2].splitlines()
        if line.startswith(f"{kind} ")
    }


def test_an_import_brings_no_modules_but_its_own_and_a_few_of_the_standard_library() -> None:
    assert {name for name in _found("module") if name.partition(".")[0] != "momentprop"} <= _STANDARD


def test_an_import_runs_no_operation_of_torch() -> None:
    assert _found("operation") <= _MADE_OF_NUMBERS
