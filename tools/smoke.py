"""Show that an installed wheel works: run as `python -I tools/smoke.py`, so that only the installed package is seen."""

import importlib.metadata
from pathlib import Path

import torch

import momentprop
from momentprop.data import digits


def main() -> None:
    """Propagate noise through a small network and read the embedded data, both from the installed package."""
    package = Path(momentprop.__file__).parent
    assert "site-packages" in package.parts, f"momentprop was imported from {package}, not from the wheel"
    assert (package / "py.typed").exists(), "py.typed is missing from the wheel"
    images, labels = digits("test")
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10), torch.nn.ReLU())
    output = model(momentprop.Normal(images, 0.1))
    assert output.loc.shape == output.variance.shape == (len(labels), 10)
    print(f"momentprop {importlib.metadata.version('momentprop')} works from {package}")


if __name__ == "__main__":
    main()
