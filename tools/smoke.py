"""Check that an installed wheel works: `python -I tools/smoke.py` imports only the installed package.

With `--commands` it also tries the command line, which needs the extra `cli`.
"""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import torch

import momentprop
from momentprop.data import digits


def main() -> None:
    """Try the installed package: propagate noise, read the embedded data, and check that it has no experiments."""
    package = Path(momentprop.__file__).parent
    assert "site-packages" in package.parts, f"momentprop was imported from {package}, not from the wheel"
    assert (package / "py.typed").exists(), "py.typed is missing from the wheel"
    images, labels = digits("test")
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10), torch.nn.ReLU())
    output = model(momentprop.Normal(images, 0.1))
    assert output.loc.shape == output.variance.shape == (len(labels), 10)
    _require_no_experiments()
    if "--commands" in sys.argv[1:]:
        _require_one_sentence()
    print(f"momentprop {importlib.metadata.version('momentprop')} works from {package}")


def _require_no_experiments() -> None:
    """Check that the wheel has no experiments."""
    files = [str(file) for file in importlib.metadata.files("momentprop") or ()]
    assert files, "cannot list the files of the wheel"
    found = [file for file in files if "experiments" in file]
    assert not found, f"the wheel contains experiments: {found}"


def _require_one_sentence() -> None:
    """Check that a command of the experiments says in one sentence how to get it."""
    quietly = ["-I", "-W", "ignore"]  # torch warns that there is no numpy
    command = [sys.executable, *quietly, "-m", "momentprop", "train", "lenet", "--epochs", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, ""), done
    assert done.stderr.startswith("momentprop: `momentprop train` belongs to the experiments"), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


if __name__ == "__main__":
    main()
