"""Try what a release would publish, outside the checkout: `python tools/release_check.py`, after `make dist`.

On the oldest and the newest supported Python of the machine, each in a clean environment, it builds the wheels from the
sdists once more and compares them, checks the metadata, compiles every file to bytecode with warnings as errors, and
then runs `tools/smoke.py` with torch alone, with all extras, and with the experiments, and the examples of README and
docs. It ends with a list of what ran. If torch is not available, the list says so, and `--strict` makes that an error.
"""

import argparse
import filecmp
import json
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CONSTRAINTS = ROOT / "constraints.txt"
OLDEST = tuple(int(part) for part in SETTINGS["requires-python"].removeprefix(">=").split("."))
EXTRAS = [name for name in SETTINGS["optional-dependencies"] if name not in ("test", "docs", "dev")]
ASKED_FOR = (*(f"momentprop[{extra}]" for extra in EXTRAS), "onnx", "onnxscript")  # in messages, to install beside it
IN_A_CLONE = (".", *(f".[{extra}]" for extra in EXTRAS), ". ./experiments")  # in the documentation


class Trial:
    """A clean environment of one Python, in a folder outside the checkout."""

    def __init__(self, python: Path, folder: Path) -> None:
        self.version = _version(python)
        self.folder = folder / ".".join(map(str, self.version))
        self.python = self.folder / "bin" / "python"
        self.done: list[str] = []
        self._since = time.monotonic()
        _run(str(python), "-m", "venv", str(self.folder))

    def install(self, *what: str) -> None:
        """Install packages, in the versions of `constraints.txt`."""
        self.pip("install", "--quiet", "-c", str(CONSTRAINTS), *what)

    def pip(self, *arguments: str) -> str:
        """Run pip, which also builds packages with the pinned tools."""
        return self.run("-m", "pip", *arguments, PIP_CONSTRAINT=str(CONSTRAINTS))

    def run(self, *arguments: str, folder: Path | None = None, **environment: str) -> str:
        """Run Python in a folder outside the checkout and return what it prints."""
        return _run(str(self.python), *arguments, folder=folder or self.folder, OMP_NUM_THREADS="1", **environment)

    def note(self, what: str) -> None:
        """Add a line to the list at the end, with the seconds since the last one."""
        now = time.monotonic()
        self.done.append(f"{what} ({now - self._since:.0f} s)")
        self._since = now
        print(f"Python {self}: {self.done[-1]}", flush=True)

    def __str__(self) -> str:
        return ".".join(map(str, self.version))


def main() -> int:
    """Try every Python; return 1 if none had torch or, under `--strict`, if one had none."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", type=Path, help="try this one instead of the machine's")
    parser.add_argument("--brief", action="store_true", help="try the wheel only, with torch alone and as a command")
    parser.add_argument("--cuda", action="store_true", help="install torch even if it brings gigabytes of CUDA")
    parser.add_argument("--strict", action="store_true", help="fail if a Python had no torch")
    chosen = parser.parse_args()
    started, trials, lacking = time.monotonic(), [], 0
    pythons = chosen.python or _oldest_and_newest()
    with tempfile.TemporaryDirectory(prefix="release-") as folder:
        if not chosen.brief:
            _check_the_sdist(Path(folder))
            _check_the_citation(Path(folder))
        for python in pythons:
            trial = Trial(python, Path(folder))
            trials.append(trial)
            if not chosen.brief:
                _check_without_torch(trial, Path(folder))
            reason = None if chosen.python or chosen.cuda else _why_no_torch(trial)
            if reason:
                lacking += 1
                trial.note(f"NOT RUN with torch: {reason}")
            else:
                _check_with_torch(trial, chosen.brief)
    print(f"\nmomentprop {SETTINGS['version']}, in {time.monotonic() - started:.0f} s")
    for trial in trials:
        print(f"Python {trial}", *trial.done, sep="\n  * ")
    return int(lacking == len(trials) or (chosen.strict and lacking > 0))


def _check_the_sdist(folder: Path) -> None:
    """The sdist of the library holds every file that git tracks and no other; unpack it into `folder`."""
    (path,) = DIST.glob("momentprop-*.tar.gz")
    with tarfile.open(path) as sdist:
        files = {name.partition("/")[2] for name in sdist.getnames()}
        sdist.extractall(folder / "sdist", filter="data")
    if (ROOT / ".git").exists():
        tracked = {name for name in _run("git", "ls-files", folder=ROOT).splitlines() if (ROOT / name).is_file()}
        differ = sorted(tracked ^ (files - {"PKG-INFO"}))
        assert not differ, f"git tracks other files than the sdist holds: {differ}"
    print(f"{path.name}: {len(files)} files", flush=True)


def _check_the_citation(folder: Path) -> None:
    """`CITATION.cff` obeys its schema."""
    _run(sys.executable, "-m", "venv", str(folder / "citation"))
    commands = folder / "citation" / "bin"
    _run(str(commands / "pip"), "install", "--quiet", "cffconvert==2.0.0")
    print("CITATION.cff:", _run(str(commands / "cffconvert"), "--validate", folder=ROOT).strip(), flush=True)


def _check_without_torch(trial: Trial, folder: Path) -> None:
    """Build both packages from their sdists, check their metadata, and compile all files to bytecode."""
    for sdist in sorted(DIST.glob("*.tar.gz")):
        trial.pip("wheel", "--quiet", "--no-deps", "--wheel-dir", str(trial.folder / "built"), str(sdist))
    for wheel in _wheels():
        assert filecmp.cmp(wheel, trial.folder / "built" / wheel.name, shallow=False), f"{wheel.name} is another one"
    trial.note("built from the sdists: the same wheels, byte for byte")
    trial.install("--no-deps", *map(str, _wheels()))
    found = trial.run("-c", "from importlib.metadata import version as v; print(v('momentprop'))").strip()
    assert found == SETTINGS["version"], f"version {found}"
    (source,) = (folder / "sdist").iterdir()
    trial.run("-W", "error", "-m", "compileall", "-q", "-f", str(source))
    trial.pip("uninstall", "--quiet", "--yes", "momentprop", "momentprop-experiments")
    trial.note(f"version {found}; every file compiles without a warning")


def _why_no_torch(trial: Trial) -> str | None:
    """Ask pip what it would install with the wheel, and return a reason not to; this Python has a torch already."""
    if trial.version == sys.version_info[:2]:
        return None
    report = trial.folder / "report.json"
    arguments = ("--dry-run", "--report", str(report), "-c", str(CONSTRAINTS), str(_wheels()[0]))
    try:
        trial.pip("install", "--quiet", "--ignore-installed", *arguments)
    except subprocess.CalledProcessError as error:
        return f"pip finds no torch for it: {error.stderr.strip().splitlines()[-1]}"
    names = [item["metadata"]["name"] for item in json.loads(report.read_text(encoding="utf-8"))["install"]]
    cuda = [name for name in names if name.startswith(("nvidia", "cuda"))]
    return f"it brings {len(cuda)} packages of CUDA, some gigabytes; `--cuda` installs them" if cuda else None


def _check_with_torch(trial: Trial, brief: bool) -> None:
    """Smoke tests and the examples of the documentation, with torch alone and then with more and more extras."""
    library, experiments = _wheels()
    trial.install(str(library))
    smoke, examples = (str(ROOT / "tools" / name) for name in ("smoke.py", "doc_examples.py"))
    trial.run("-I", "-W", "ignore", smoke)
    print(trial.run("-I", "-W", "ignore", examples), flush=True)
    trial.note("torch alone: smoke tests, and the examples of README and docs that need no more")
    trial.install("momentprop[cli]")
    trial.run("-I", "-W", "ignore", smoke, "--commands")
    trial.note("the extra `cli`: the command line")
    if brief:
        return
    trial.install(*ASKED_FOR, "onnxruntime")
    trial.install(str(experiments))
    trial.run("-I", smoke, "--extras", "--experiments")
    trial.note("every extra and the experiments: figures, data frames, ONNX, `momentprop train`")
    trial.pip("check")
    _check_documented_commands(trial)


def _check_documented_commands(trial: Trial) -> None:
    """The commands of the documentation for a clone, in the folder of the sdist."""
    (source,) = (trial.folder.parent / "sdist").iterdir()
    for packages in (*IN_A_CLONE, f"{_wheels()[0]}[cli]"):
        trial.run("-m", "pip", "install", "--quiet", *packages.split(), folder=source, PIP_CONSTRAINT=str(CONSTRAINTS))
        trial.run("-I", "-c", "import momentprop")
    trial.note(f"`pip install` of {', '.join(IN_A_CLONE)} in an unpacked sdist, and of a wheel file with an extra")


def _wheels() -> tuple[Path, Path]:
    """The wheels in `dist`, of the library and of the experiments."""
    return next(DIST.glob("momentprop-*.whl")), next(DIST.glob("momentprop_experiments-*.whl"))


def _oldest_and_newest() -> list[Path]:
    """The oldest and the newest supported Python on PATH, among pyenv's, or the one that runs this."""
    found = {_version(python): python for python in _pythons()}
    supported = sorted(version for version in found if version >= OLDEST)
    assert supported, f"there is no Python {'.'.join(map(str, OLDEST))} or newer"
    chosen = [found[version] for version in dict.fromkeys((supported[0], supported[-1]))]
    print("found Python", ", ".join(".".join(map(str, version)) for version in supported), flush=True)
    return chosen


def _pythons() -> Iterator[Path]:
    """Every Python of the machine that answers."""
    names = [f"python3.{minor}" for minor in range(OLDEST[1], OLDEST[1] + 10)]
    paths = [Path(path) for path in map(shutil.which, names) if path]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for path in (*sorted(pyenv.glob("3.*/bin/python3")), *paths, Path(sys.executable)):
        if subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
            yield path


def _version(python: Path) -> tuple[int, int]:
    major, minor = _run(str(python), "-c", "import sys; print(*sys.version_info[:2])").split()
    return int(major), int(minor)


def _run(*command: str, folder: Path | None = None, **environment: str) -> str:
    """Run a command without the caller's PYTHONPATH and return what it prints."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        command, cwd=folder, env=kept | environment, capture_output=True, text=True, check=True
    ).stdout


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(f"{error.stdout}{error.stderr}\nfailed: {shlex.join(map(str, error.cmd))}")
