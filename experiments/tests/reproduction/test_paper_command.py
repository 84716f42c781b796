"""`momentprop paper`: its help, files, output and errors."""

import json
import subprocess
import sys

import pytest
import torch

from momentprop import cli
from momentprop_experiments.repository import results_folder
from momentprop_experiments.reproduction import paper_command
from momentprop_experiments.reproduction.registry import EXPERIMENTS


def test_the_experiments_add_their_commands(capsys):
    assert cli.main([]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.split("Commands:")[1].splitlines() if line.strip()]
    assert {"check", "data", "demo", "paper", "train"} <= set(listed)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["paper"], "missing argument 'NAME'; see `momentprop paper --help`"),
        (["paper", "pea", "--slow"], "no such option: --slow"),
        (["paper", "pea", "--out"], "option '--out' requires an argument"),
        (["paper", "pea", "truth"], "got unexpected extra argument(s) (truth); see `momentprop paper --help`"),
    ],
)
def test_a_command_line_that_makes_no_sense_gives_one_line(arguments, message, capsys):
    assert cli.main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert printed.err.startswith(f"momentprop: {message}")


def test_the_help_lists_every_experiment_with_one_line(capsys):
    assert cli.main(["paper", "--help"]) == 0
    printed = capsys.readouterr().out
    for name, experiment in EXPERIMENTS.items():
        (line,) = [line for line in printed.splitlines() if line.split()[:1] == [name]]
        assert line.endswith(experiment.TITLE)


@pytest.mark.parametrize("name", ["or-gate", "or_gate"])
def test_an_experiment_prints_its_table_and_names_its_files(name, tmp_path, capsys):
    assert cli.main(["paper", name, "--quick", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "| p(X1=1) | p(X2=1) | OR gate |" in printed
    for ending in ("json", "md", "png", "svg"):
        file = tmp_path / "paper" / f"or-gate.{ending}"
        assert file.stat().st_size > 0
        assert str(file) in printed


def test_a_file_of_numbers_says_where_they_come_from(tmp_path):
    assert cli.main(["paper", "pea", "--quick", "--device", "cpu", "--out", str(tmp_path)]) == 0
    made = json.loads((tmp_path / "paper" / "pea.json").read_text())["made"]
    assert made["device"].startswith("cpu (")
    assert made["versions"]["torch"] == torch.__version__
    assert made["seconds"] >= 0
    assert made["commit"] is None or len(made["commit"].split(",")[0]) == 40


@pytest.mark.parametrize(("name", "used"), [("pea", "cpu"), ("accuracy-lenet", "meta")])
def test_the_device_of_a_file_is_the_one_that_computed(name, used, tmp_path, monkeypatch):
    monkeypatch.setattr(paper_command, "as_device", torch.device)
    monkeypatch.setattr(paper_command, "EXPERIMENTS", {name: EXPERIMENTS["pea"]})
    assert cli.main(["paper", name, "--device", "meta", "--out", str(tmp_path)]) == 0
    made = json.loads((tmp_path / "paper" / f"{name}.json").read_text())["made"]
    assert made["device"].startswith(used)


def test_a_report_is_written_anew_from_its_numbers(tmp_path, capsys):
    folder = tmp_path / "paper"
    folder.mkdir()
    published = results_folder() / "paper"
    numbers = (published / "normalization.json").read_text()
    (folder / "normalization.json").write_text(numbers)
    assert cli.main(["paper", "normalization", "--stored", "--out", str(tmp_path)]) == 0
    assert (folder / "normalization.json").read_text() == numbers
    assert (folder / "normalization.md").read_text() == (published / "normalization.md").read_text()
    assert (folder / "normalization.png").stat().st_size > 0
    capsys.readouterr()
    for name, message in (
        ("pea", "the stored numbers of pea are not enough to draw its figure"),
        ("dropout", "there is no"),
    ):
        assert cli.main(["paper", name, "--stored", "--out", str(tmp_path)]) == 2
        assert message in capsys.readouterr().err


def test_all_runs_every_experiment_that_needs_no_data(tmp_path, capsys, monkeypatch):
    few = {name: EXPERIMENTS[name] for name in ("pea", "relu-mean", "accuracy-lenet")}
    monkeypatch.setattr(paper_command, "EXPERIMENTS", few)
    assert cli.main(["paper", "all", "--out", str(tmp_path)]) == 0
    assert sorted(path.name for path in tmp_path.glob("paper/*.json")) == ["pea.json", "relu-mean.json"]
    assert capsys.readouterr().out.count("Written to") == 2


@pytest.mark.parametrize(
    ("name", "hint"), [("and-gates", "did you mean and-gate? choose"), ("zzz", "'zzz': choose first-figure, and-gate")]
)
def test_an_unknown_name_gives_one_line_with_the_choices(name, hint, tmp_path, capsys):
    assert cli.main(["paper", name, "--out", str(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert hint in printed.err
    assert "stability-deep, stability-attacks, regression or all" in printed.err


def test_a_missing_extra_gives_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert cli.main(["paper", "truth", "--out", str(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1
    assert 'pip install "momentprop[experiments]"' in printed.err
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_gives_one_line(tmp_path, capsys):
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert cli.main(["paper", "pea", "--out", str(blocked)]) == 2
    assert capsys.readouterr().err.startswith("momentprop: [Errno")


def test_the_module_runs_as_a_command(tmp_path):
    command = [sys.executable, "-m", "momentprop", "paper", "and-gate", "--quick", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert "a = 5.889 and b = -8.833" in done.stdout
    assert json.loads((tmp_path / "paper" / "and-gate.json").read_text())["printed"]["bias"] == -1.5


def test_a_bug_of_ours_keeps_its_traceback(monkeypatch):
    def fail(*_):
        raise RuntimeError("a bug")

    monkeypatch.setattr(paper_command, "_names", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        cli.main(["paper", "pea"])


def test_an_interrupted_command_has_the_shells_status(monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(paper_command, "_names", interrupt)
    assert cli.main(["paper", "pea"]) == 130
