"""`momentprop train`: its output, files and errors, and its exit status."""

import dataclasses
import json
import signal
import subprocess
import sys
import time

import pytest

from momentprop import cli
from momentprop.training.loop import Trainer
from momentprop_experiments import Config

QUICK = ["train", "mlp", "--method", "ap1", "--epochs", "1", "--activation", "relu"]


def test_the_command_echoes_its_configuration_and_result(tmp_path, capsys):
    out = tmp_path / "run"
    assert cli.main([*QUICK, "--learning-rate", "0.01", "--out", str(out), "--amp"]) == 0
    printed = capsys.readouterr()
    assert f"Training into {out}:" in printed.out
    for setting in ("network mlp", "method ap1", "learning-rate 0.01", "amp True", "batch-size 128"):
        assert setting in printed.out
    assert "test accuracy" in printed.out
    assert "epoch 1 of 1: train loss" in printed.err
    saved = json.loads((out / "config.json").read_text())
    assert saved["learning_rate"] == 0.01
    assert saved["amp"] is True


def test_the_help_teaches_by_examples_and_lists_every_setting(capsys):
    assert cli.main(["train", "--help"]) == 0
    printed = capsys.readouterr().out
    assert "momentprop train lenet --dropout 0.2" in printed
    assert "torchrun" in printed
    for field in dataclasses.fields(Config):
        if field.name != "network":
            assert f"--{field.name.replace('_', '-')}" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train"], "NETWORK"),
        (["train", "lenett"], "unknown network 'lenett': did you mean 'lenet'"),
        (["train", "mlp", "--data", "mnits"], "mnits"),
        (["train", "mlp", "--method", "ap3"], "unknown method 'ap3'"),
        (["train", "mlp", "--epochs", "many"], "--epochs"),
        (["train", "mlp", "--epochs", "0"], "epochs must be at least 1, but is 0"),
        (["train", "mlp", "--dropout", "1.5"], "dropout must be below 1, but is 1.5"),
        (["train", "mlp", "--ephocs", "3"], "--ephocs"),
        (["train", "mlp", "--device", "nonsense"], "device 'nonsense' cannot be used"),
        (["train", "mlp", "--data", "mnist", "--root", "nowhere"], "momentprop data get mnist --root nowhere"),
    ],
)
def test_bad_arguments_give_one_line_and_status_two(arguments, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1
    assert printed.err.startswith("momentprop: ")
    assert message in printed.err
    assert not list(tmp_path.iterdir())


def test_a_folder_with_a_run_is_refused_resumed_or_overwritten(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(QUICK) == 0
    assert (tmp_path / "runs" / "mlp-digits-ap1-relu" / "model.safetensors").exists()
    assert cli.main(QUICK) == 2
    assert "continue it with `--resume`" in capsys.readouterr().err
    assert cli.main([*QUICK[:-4], "--epochs", "2", "--activation", "relu", "--resume"]) == 0
    assert "epoch 2 of 2" in capsys.readouterr().err
    assert cli.main([*QUICK, "--seed", "1", "--resume"]) == 2
    assert "its seed is 0, not 1" in capsys.readouterr().err
    assert cli.main([*QUICK, "--seed", "1", "--overwrite"]) == 0


def test_an_interrupt_says_how_to_go_on(tmp_path, capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    arguments = [*QUICK, "--out", str(tmp_path / "run")]
    monkeypatch.setattr(sys, "argv", ["momentprop", *arguments])
    monkeypatch.setattr(Trainer, "step", interrupted)
    assert cli.main(arguments) == 130
    printed = capsys.readouterr().err
    assert f"momentprop: stopped; `momentprop {' '.join(arguments)} --resume` resumes" in printed
    monkeypatch.undo()
    assert cli.main([*arguments, "--resume"]) == 0


def test_an_interrupted_process_ends_with_status_130(tmp_path):
    out = tmp_path / "run"
    command = [sys.executable, "-m", "momentprop", *QUICK[:-4], "--epochs", "1000", "--out", str(out)]
    # a background shell may ignore the signal, and processes inherit that
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    finally:
        signal.signal(signal.SIGINT, before)
    try:
        deadline = time.monotonic() + 60
        while not (out / "log.csv").exists():
            assert process.poll() is None
            assert time.monotonic() < deadline, "no epoch ended within a minute"
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        printed = process.communicate(timeout=30)[1]
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert "Traceback" not in printed
    assert "--resume` resumes from the last checkpoint" in printed
