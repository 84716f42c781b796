"""The command line: what it lists, writes, prints and refuses."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from momentprop import cli
from momentprop.cli import app
from momentprop.data import catalogue, library
from tests import tiny_data


def test_the_command_without_arguments_shows_its_help(capsys):
    assert cli.main([]) == 0
    printed = capsys.readouterr().out
    assert "  check  " in printed
    assert "  data   " in printed
    assert "  kernels  Build kernels ahead of time, list and clear them." in printed


def test_the_package_installs_the_command():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"momentprop": "momentprop.cli:main"}


def test_the_version_is_shown(capsys):
    assert cli.main(["--version"]) == 0
    assert re.fullmatch(r"momentprop \S.* \(torch \S+, Python \S+\)\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "no such command 'nonsense'; see `momentprop --help`"),
        (["check"], "missing argument 'MODULE:FACTORY'; see `momentprop check --help`"),
        (["data", "list", "--slow"], "no such option: --slow"),
        (["data", "list", "--root"], "option '--root' requires an argument"),
        (["data", "list", "mnist"], "got unexpected extra argument(s) (mnist); see `momentprop data list --help`"),
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
    assert cli.main(["data", "list"]) == 2
    assert capsys.readouterr().err == 'momentprop: the command line needs typer: run `pip install "momentprop[cli]"`\n'


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


def test_the_module_runs_as_a_command():
    done = subprocess.run(
        [sys.executable, "-m", "momentprop", "data", "list"], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.startswith("digits ")


def test_a_bug_of_ours_keeps_its_traceback(monkeypatch):
    def fail(*_):
        raise RuntimeError("a bug")

    monkeypatch.setattr(library, "size", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        cli.main(["data", "list"])


def test_an_interrupted_command_has_the_shells_status(monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(library, "size", interrupt)
    assert cli.main(["data", "list"]) == 130


def _install(monkeypatch, **commands):
    """Make it look as if these entry points, and no others, were installed."""
    found = EntryPoints(EntryPoint(name, value, app.GROUP) for name, value in commands.items())
    monkeypatch.setattr(app.metadata, "entry_points", lambda group: found.select(group=group))


@pytest.mark.parametrize("name", ["train", "paper", "demo"])
@pytest.mark.parametrize("arguments", [[], ["lenet", "--epochs", "3"], ["--help"]], ids=str)
def test_one_sentence_says_how_to_get_the_experiments(name, arguments, capsys, monkeypatch):
    _install(monkeypatch)
    assert cli.main([name, *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == (
        f"momentprop: `momentprop {name}` belongs to the experiments, which are not installed: clone the "
        "repository and run `make install`, or `pip install . ./experiments` inside the clone\n"
    )
    assert cli.main(["--help"]) == 0
    assert f"  {name} " not in capsys.readouterr().out


def register(application):
    """Add a command, as another package would."""

    @application.command("hello")
    def hello(name: str) -> None:
        """Greet."""
        print(f"Hello {name}")


def test_another_package_adds_a_command_by_an_entry_point(capsys, monkeypatch):
    _install(monkeypatch, hello=f"{__name__}:register")
    assert cli.main(["hello", "you"]) == 0
    assert capsys.readouterr().out == "Hello you\n"
    assert cli.main([]) == 0
    assert "  hello    Greet." in capsys.readouterr().out


def test_a_broken_package_leaves_the_other_commands_alone(capsys, monkeypatch):
    _install(monkeypatch, train="momentprop_nowhere:register")
    assert cli.main(["train", "lenet"]) == 2
    printed = capsys.readouterr().err
    assert printed == "momentprop: the command 'train' cannot be loaded: No module named 'momentprop_nowhere'\n"
    assert cli.main(["data", "list"]) == 0
