"""The command line: what it lists, writes, prints and refuses."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from momentprop import cli
from momentprop.experiments.paper import EXPERIMENTS


def test_the_help_lists_every_experiment_with_one_line(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["paper", "--help"])
    assert stopped.value.code == 0
    printed = capsys.readouterr().out
    for name, experiment in EXPERIMENTS.items():
        (line,) = [line for line in printed.splitlines() if line.split()[:1] == [name]]
        assert line.endswith(experiment.TITLE)


def test_the_command_without_arguments_shows_its_help(capsys):
    assert cli.main([]) == 0
    assert "paper" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["or-gate", "or_gate"])
def test_an_experiment_prints_its_table_and_names_its_files(name, tmp_path, capsys):
    assert cli.main(["paper", name, "--quick", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "| p(X1=1) | p(X2=1) | OR gate |" in printed
    for ending in ("json", "md", "png", "svg"):
        file = tmp_path / "paper" / f"or-gate.{ending}"
        assert file.stat().st_size > 0
        assert str(file) in printed


def test_all_runs_every_experiment(tmp_path, capsys, monkeypatch):
    few = {name: EXPERIMENTS[name] for name in ("pea", "relu-mean")}
    monkeypatch.setattr(cli, "EXPERIMENTS", few)
    assert cli.main(["paper", "all", "--out", str(tmp_path)]) == 0
    assert sorted(path.name for path in tmp_path.glob("paper/*.json")) == ["pea.json", "relu-mean.json"]
    assert capsys.readouterr().out.count("Written to") == 2


@pytest.mark.parametrize(
    ("name", "hint"), [("and-gates", "did you mean and-gate? choose"), ("zzz", "'zzz': choose and-")]
)
def test_an_unknown_name_gives_one_line_with_the_choices(name, hint, tmp_path, capsys):
    assert cli.main(["paper", name, "--out", str(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert hint in printed.err
    assert "relu-mean, truth or all" in printed.err


def test_a_missing_extra_gives_one_line_that_says_what_to_install(tmp_path, capsys, monkeypatch):
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


def test_the_package_installs_the_command():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"momentprop": "momentprop.cli:main"}
