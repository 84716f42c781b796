"""Check that an installed wheel works: `python -I tools/smoke.py` imports only the installed package.

It tries what needs only torch, and checks that every other part names its missing package. An option tries what else is
installed: `--commands` the command line (the extra `cli`), `--extras` figures, data frames and ONNX programs, and
`--experiments` the commands of the package `momentprop_experiments`.
"""

import argparse
import importlib.metadata
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import nn

import momentprop
from momentprop.data import digits

X = torch.tensor([[1.0, 2.0]])


def main() -> None:
    """Try the installed package, and the parts named by options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option in ("--commands", "--extras", "--experiments"):
        parser.add_argument(option, action="store_true")
    chosen = parser.parse_args()
    package = Path(momentprop.__file__).parent
    assert "site-packages" in package.parts, f"momentprop was imported from {package}, not from the wheel"
    assert (package / "py.typed").exists(), "py.typed is missing from the wheel"
    assert all(hasattr(momentprop, name) for name in momentprop.__all__)
    for check in (_propagation, _predictions, _weights, _posteriors, _require_no_experiments):
        check()
    if chosen.extras:
        _extras()
    else:
        _name_what_is_missing()
    if chosen.experiments:
        _experiments()
    elif chosen.commands:
        _require_one_sentence()
    print(f"momentprop {importlib.metadata.version('momentprop')} works from {package}")


def _propagation() -> None:
    """The embedded digits, and the covariance of a linear layer."""
    images, labels = digits("test")
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10), nn.ReLU())
    output = model(momentprop.Normal(images, 0.1))
    assert output.loc.shape == output.variance.shape == (len(labels), 10)
    layer = _layer()
    output = momentprop.propagate(layer, X, input_variance=0.5)
    torch.testing.assert_close(output.covariance, 0.5 * (layer.weight @ layer.weight.T)[None])


def _predictions() -> None:
    """What a result answers."""
    scores = momentprop.propagate(_layer(), X, input_std=0.1)
    q = scores.probabilities()
    torch.testing.assert_close(q.sum(-1), torch.ones(1))
    assert torch.equal(scores.predict(-1), q.argmax(-1))
    assert scores.entropy() > scores.mutual_information() > 0
    low, high = scores.interval(0.9)
    assert (low < scores.loc).all()
    assert (scores.loc < high).all()


def _weights() -> None:
    """Random weights, as an argument and as a model: the variance of w·x is that of the weights times x²."""
    expected = 0.01 * X.square().sum(-1, keepdim=True).expand(1, 3) + 0.01
    for output in (
        momentprop.propagate(_layer(), X, weights=0.01),
        momentprop.propagate(momentprop.with_weights(_layer(), 0.01), X),
    ):
        torch.testing.assert_close(output.variance, expected)


def _posteriors() -> None:
    """Posteriors of laplace-torch and of SWAG; none of their libraries is needed to read them."""
    layer = _layer()
    names = dict(layer.named_parameters())
    mean = {name: x.detach() for name, x in names.items()}
    swag = momentprop.posteriors.from_swag(layer, mean, {name: x**2 + 0.01 for name, x in mean.items()})
    flat = torch.cat([x.flatten() for x in mean.values()])
    laplace = SimpleNamespace(
        model=layer, mean=flat, params=list(names.values()), posterior_variance=torch.full_like(flat, 0.01)
    )
    expected = momentprop.propagate(layer, X, weights=0.01).variance
    for model in (swag, momentprop.posteriors.from_laplace(laplace)):
        torch.testing.assert_close(momentprop.propagate(model, X).variance, expected)
    refused = _complaint(lambda: momentprop.posteriors.from_variational(layer))
    assert "no layer of bayesian-torch or blitz" in refused, refused


def _layer() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(2, 3).eval().requires_grad_(False)


def _name_what_is_missing() -> None:
    """Without the extras, figures, data frames and ONNX programs say which package they need."""
    output = momentprop.propagate(_layer(), X, input_variance=0.5)
    with tempfile.TemporaryDirectory() as folder:
        for needs, call in {
            'pip install "momentprop[plots]"': output.plot,
            'pip install "momentprop[frames]"': output.to_dataframe,
            "pip install onnx onnxscript": lambda: momentprop.to_onnx(
                _layer(), momentprop.Normal(X, 0.5), Path(folder) / "model.onnx"
            ),
        }.items():
            assert needs in _complaint(call), f"`{needs}` is missing from: {_complaint(call)}"


def _complaint(call: Callable[[], object]) -> str:
    """The message of a call that cannot work."""
    try:
        call()
    except (ImportError, ValueError) as error:
        return str(error)
    return "nothing: it works"


def _extras() -> None:
    """Figures, data frames, and an ONNX program that gives the numbers of torch."""
    output = momentprop.propagate(_layer(), X, input_variance=0.5)
    assert output.plot().axes
    assert len(output.to_dataframe()) == 3
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        momentprop.to_onnx(_layer(), momentprop.Normal(X, 0.5), path)
        session = onnxruntime.InferenceSession(str(path))
        given = {"input": X.numpy(), "input_variance": torch.full_like(X, 0.5).numpy()}
        loc, variance = map(torch.from_numpy, session.run(["loc", "variance"], given))
    torch.testing.assert_close(loc, output.loc)
    torch.testing.assert_close(variance, output.variance)


def _require_no_experiments() -> None:
    """The wheel has no experiments."""
    files = [str(file) for file in importlib.metadata.files("momentprop") or ()]
    assert files, "cannot list the files of the wheel"
    found = [file for file in files if "experiments" in file]
    assert not found, f"the wheel contains experiments: {found}"


def _require_one_sentence() -> None:
    """A command of the experiments says in one sentence how to get it."""
    done = _command("train", "lenet", "--epochs", "1")
    assert (done.returncode, done.stdout) == (2, ""), done
    assert done.stderr.startswith("momentprop: `momentprop train` belongs to the experiments"), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


def _experiments() -> None:
    """The commands of the experiments are there, and a network trains on the embedded digits."""
    assert all(_command(name, "--help").returncode == 0 for name in ("demo", "paper", "train"))
    with tempfile.TemporaryDirectory() as folder:
        options = ("--epochs", "1", "--train-images", "100", "--out", folder, "--overwrite")
        done = _command("train", "mlp", "--data", "digits", *options)
        assert done.returncode == 0, done
        assert (Path(folder) / "model.safetensors").is_file()


def _command(*arguments: str) -> subprocess.CompletedProcess[str]:
    quietly = ["-I", "-W", "ignore"]  # torch warns that there is no numpy
    command = [sys.executable, *quietly, "-m", "momentprop", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    main()
