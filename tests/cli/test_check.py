"""`momentprop check`: a report from the command line, and one clear line for whatever is wrong."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from momentprop import calibrate, cli

NETS = """
import torch
from torch import nn

def small():
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))

def number():
    return 3

def broken():
    raise RuntimeError("no\\nweights")

class Odd(nn.Module):
    def forward(self, x):
        return torch.special.zeta(x, x)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a module of networks, weights and data, as the current one."""
    monkeypatch.chdir(tmp_path)
    Path("nets.py").write_text(NETS)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    state = {name.replace("3.", "4."): value for name, value in model.state_dict().items()}
    save_file(state, "w.safetensors")
    torch.save(state, "w.pt")
    save_file({"other": torch.ones(1)}, "other.safetensors")
    np.save("x.npy", np.random.default_rng(0).random((6, 1, 4, 4), dtype=np.float32))
    np.save("wide.npy", np.zeros((6, 17)))
    np.save("scalar.npy", np.float32(1))
    Path("text.npy").write_text("no array")
    yield tmp_path
    sys.modules.pop("nets", None)


def _run(*arguments):
    return cli.main(["check", *map(str, arguments)])


@pytest.mark.parametrize("weights", ["w.safetensors", "w.pt"])
def test_it_prints_the_tables_and_writes_the_report(folder, capsys, weights):
    status = _run("nets:small", "--weights", weights, "--data", "x.npy", "--variance", "0.01", "--samples", "50",
                  "--inputs", "4", "--html", "report.html", "--json", "report.json")  # fmt: skip
    printed = capsys.readouterr()
    assert (status, printed.err) == (0, "")
    assert "At the output, the means by ap2 are off by" in printed.out
    assert max(len(line) for line in printed.out.splitlines() if not line.startswith("    ")) <= 80
    assert printed.out.endswith("The report is in report.html: open it in a browser.\n")
    numbers = json.loads(Path("report.json").read_text())
    assert numbers["inputs"] == 4
    command = f"momentprop check nets:small --data x.npy --weights {weights} --variance 0.01 --samples 50 --inputs 4"
    assert numbers["call"] == f"{command} --html report.html --json report.json"
    assert command in Path("report.html").read_text()


def test_noise_may_be_a_standard_deviation(folder, capsys):
    assert _run("nets:small", "--data", "x.npy", "--std", "0.1", "--samples", "20", "--calibrate") == 0
    assert "    y = momentprop.propagate(model, x, input_std=0.1, " in capsys.readouterr().out


def test_dropout_methods_and_class_names_are_options(folder, capsys):
    status = _run("nets:small", "--data", "x.npy", "--dropout", "--samples", "20", "--methods", "ap2,ap2-logistic",
                  "--class-names", "cat,dog,<b>", "--html", "report.html")  # fmt: skip
    assert (status, capsys.readouterr().err) == (0, "")
    page = Path("report.html").read_text()
    assert "ap2-logistic" in page
    assert "&lt;b&gt;" in page
    assert "--dropout --methods ap2,ap2-logistic" in page.replace("--samples 20 ", "")


def test_correlations_and_a_calibration_are_compared(folder, capsys):
    sys.path.insert(0, str(folder))
    try:
        from nets import small
    finally:
        sys.path.remove(str(folder))
    model = small().eval()
    model.load_state_dict(torch.load("w.pt"))
    x = torch.from_numpy(np.load("x.npy"))
    calibrate(model, x, input_variance=0.01, samples=20).save("c.safetensors")
    status = _run("nets:small", "--weights", "w.pt", "--data", "x.npy", "--variance", "0.01", "--samples", "20",
                  "--calibration", "c.safetensors", "--json", "report.json")  # fmt: skip
    printed = capsys.readouterr()
    assert (status, printed.err) == (0, "")
    methods = json.loads(Path("report.json").read_text())["methods"]
    assert methods == ["ap1", "ap2", "joint", "ap2-calibrated", "joint-calibrated"]
    assert "What to do next: " in printed.out


def test_corrected_methods_are_compared_by_options(folder, capsys):
    status = _run("nets:small", "--weights", "w.pt", "--data", "x.npy", "--variance", "0.01", "--samples", "20",
                  "--calibrate", "--covariance", "--probes", "8", "--json", "report.json")  # fmt: skip
    printed = capsys.readouterr()
    assert (status, printed.err) == (0, "")
    report = json.loads(Path("report.json").read_text())
    assert report["methods"] == ["ap1", "ap2", "joint", "probes-8", "ap2-calibrated", "joint-calibrated"]
    assert report["inputs"] == 3  # the other three of six were calibrated with
    assert report["call"].endswith("--calibrate --covariance --probes 8 --samples 20 --json report.json")
    assert "The calibration was fitted to 3 other inputs than those of the check." in printed.out
    assert "\nNext, " in printed.out
    assert "    y = momentprop.propagate(model, x, input_variance=0.01, " in printed.out


@pytest.mark.parametrize(
    ("options", "methods"),
    [
        (["--probes", "4"], ["ap1", "ap2", "probes-4"]),
        (["--covariance"], ["ap1", "ap2", "joint"]),
        (["--methods", "ap2,joint", "--covariance", "--probes", "4"], ["ap2", "joint", "probes-4"]),
    ],
)
def test_options_add_methods(folder, capsys, options, methods):
    assert _run("nets:small", "--data", "x.npy", "--variance", "1", "--samples", "9", "--json", "r.json", *options) == 0
    assert json.loads(Path("r.json").read_text())["methods"] == methods


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nets", "--data", "x.npy"], "'nets' does not name a factory: write MODULE:FACTORY"),
        (["nothere:small", "--data", "x.npy"], "cannot import 'nothere': No module named 'nothere'"),
        (["nets:large", "--data", "x.npy"], "the module 'nets' has no 'large'"),
        (["nets:number", "--data", "x.npy"], "nets:number() returns a int, but must return an nn.Module"),
        (["nets:broken", "--data", "x.npy"], "nets:broken() failed: no weights"),
        (["nets:small", "--data", "no.npy"], "there is no file no.npy"),
        (["nets:small", "--data", "nets.py"], "cannot read nets.py: the name of the file must end in .npy or .pt"),
        (["nets:small", "--data", "text.npy"], "cannot read text.npy: "),
        (
            ["nets:small", "--data", "scalar.npy"],
            "scalar.npy must hold a tensor with the inputs along its first dimension",
        ),
        (["nets:small", "--data", "wide.npy"], "the network does not take an input of shape (6, 17)"),
        (["nets:small", "--data", "x.npy", "--weights", "other.safetensors"], "does not fit the network: "),
        (["nets:small", "--data", "x.npy", "--weights", "no.pt"], "there is no file no.pt"),
        (["nets:small", "--data", "x.npy", "--samples", "9"], "nothing in the model is random"),
        (["nets:small", "--data", "x.npy", "--variance", "1", "--methods", "ap9"], "unknown method 'ap9'"),
        (["nets:small", "--data", "x.npy", "--calibration", "no.safetensors"], "no.safetensors"),
        (
            ["nets:small", "--data", "x.npy", "--variance", "1", "--calibrate", "--inputs", "1"],
            "`--calibrate` needs at least two inputs",
        ),
        (
            ["nets:small", "--data", "x.npy", "--variance", "1", "--calibrate", "--calibration", "c.safetensors"],
            "c.safetensors",
        ),
        (["nets:small", "--data", "x.npy", "--variance", "1", "--probes", "1"], "invalid value for '--probes'"),
        (["nets:Odd", "--data", "x.npy", "--variance", "1"], "no Normal rule for 'special_zeta'"),
        (["nets:small", "--data", "x.npy", "--variance", "1", "--std", "1"], "input_variance and input_std were given"),
        (["nets:small", "--data", "x.npy", "--variance", "-1"], "invalid value for '--variance'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(folder, capsys, arguments, message):
    assert _run(*arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("momentprop: ")
    assert printed.err.count("\n") == 1
    assert message in printed.err


def test_a_missing_reader_says_what_to_install(folder, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "numpy", None)
    assert _run("nets:small", "--data", "x.npy") == 2
    assert 'pip install "momentprop[experiments]"' in capsys.readouterr().err


def test_it_runs_as_a_command(folder):
    command = [sys.executable, "-m", "momentprop", "check", "nets:small", "--data", "x.npy", "--variance", "0.1"]
    done = subprocess.run([*command, "--samples", "20"], capture_output=True, text=True, check=True, timeout=120)
    assert "| output " in done.stdout
