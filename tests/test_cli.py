"""The command line: what it lists, writes, prints and refuses."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from momentprop import cli
from momentprop.cli import paper
from momentprop.data import catalogue
from momentprop_experiments.reproduction.registry import EXPERIMENTS
from tests import tiny_data


def test_the_help_lists_every_experiment_with_one_line(capsys):
    assert cli.main(["paper", "--help"]) == 0
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


def test_all_runs_every_experiment_that_needs_no_data(tmp_path, capsys, monkeypatch):
    few = {name: EXPERIMENTS[name] for name in ("pea", "relu-mean", "accuracy-lenet")}
    monkeypatch.setattr(paper, "EXPERIMENTS", few)
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
    assert "stability, stability-deep, regression or all" in printed.err


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


def test_the_version_is_shown(capsys):
    assert cli.main(["--version"]) == 0
    assert re.fullmatch(r"momentprop \S.* \(torch \S+, Python \S+\)\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "no such command 'nonsense'; see `momentprop --help`"),
        (["paper"], "missing argument 'NAME'; see `momentprop paper --help`"),
        (["paper", "pea", "--slow"], "no such option: --slow"),
        (["paper", "pea", "--out"], "option '--out' requires an argument"),
        (["paper", "pea", "truth"], "got unexpected extra argument(s) (truth); see `momentprop paper --help`"),
        (["data", "get"], "missing argument 'NAME...'; see `momentprop data get --help`"),
        (["data", "fetch"], "no such command 'fetch'; see `momentprop data --help`"),
    ],
)
def test_a_command_line_that_makes_no_sense_gives_one_line(arguments, message, capsys):
    assert cli.main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert printed.err.startswith(f"momentprop: {message}")


def test_without_typer_one_line_says_what_to_install(capsys, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("momentprop.cli.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "typer", None)
    assert cli.main(["paper", "pea"]) == 2
    assert capsys.readouterr().err == 'momentprop: the command line needs typer: run `pip install "momentprop[cli]"`\n'


def test_a_bug_of_ours_keeps_its_traceback(monkeypatch):
    def fail(*_):
        raise RuntimeError("a bug")

    monkeypatch.setattr(paper, "_names", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        cli.main(["paper", "pea"])


def test_an_interrupted_command_has_the_shells_status(monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(paper, "_names", interrupt)
    assert cli.main(["paper", "pea"]) == 130


def test_data_are_got_listed_and_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(catalogue.RECIPES, "tiny", tiny_data.recipe())
    root = ["--root", str(tmp_path)]
    assert cli.main(["data", "list", *root]) == 0
    assert f"tiny           not there: run `momentprop data get tiny --root {tmp_path}`" in capsys.readouterr().out
    (tmp_path / "tiny").mkdir()
    for name, content in tiny_data.FILES.items():
        (tmp_path / "tiny" / name).write_bytes(content)
    assert cli.main(["data", "get", "tiny", "digits", *root]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"tiny is in {tmp_path / 'tiny'}"
    assert second.startswith("digits is in ")
    assert cli.main(["data", "list", *root]) == 0
    assert f"tiny             0.1 MB in {tmp_path / 'tiny'}" in capsys.readouterr().out


def test_data_without_a_sub_command_shows_its_help(capsys):
    assert cli.main(["data"]) == 0
    assert "Fetch data sets, unless they are there already." in capsys.readouterr().out


def test_the_help_of_data_get_lists_every_data_set(capsys):
    assert cli.main(["data", "get", "--help"]) == 0
    printed = capsys.readouterr().out
    for name, recipe in catalogue.RECIPES.items():
        assert f"    {name:13}  {recipe.title}\n" in printed


def test_data_that_no_source_has_end_with_status_2(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(catalogue.RECIPES, "tiny", tiny_data.recipe())
    assert cli.main(["data", "get", "tiny", "--root", str(tmp_path)]) == 2
    printed = capsys.readouterr().err
    assert "momentprop: no source has tiny; tried in this order:" in printed
    assert "Traceback" not in printed


def test_one_wrong_name_is_noticed_before_anything_is_fetched(tmp_path, capsys):
    assert cli.main(["data", "get", "mnist", "mnits", "--root", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("momentprop: there is no data set 'mnits': did you mean mnist?")
    assert not list(tmp_path.iterdir())
