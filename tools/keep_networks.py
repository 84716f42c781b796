"""Keep trained networks in the repository: `python tools/keep_networks.py FOLDER RUN ...`.

Each RUN is the folder of a finished run. Its network goes to FOLDER/NAME.safetensors in half precision, where NAME
joins the names of the network and of the run's folder. FOLDER/README.md lists all networks in FOLDER, each with its
command and test accuracy.
"""

import sys
from pathlib import Path

from momentprop.markdown import table
from momentprop_experiments import Config, load_model, save_halved

_TEXT = """# Trained networks

`momentprop_experiments.load_model` reads them. The weights are rounded to half precision, the accuracies are those of
the test images before the rounding. Each was made by its command, after `momentprop data get`.

"""


def main(folder: Path, runs: list[Path]) -> None:
    """Keep the networks of some runs, and write the list of all."""
    folder.mkdir(parents=True, exist_ok=True)
    for run in runs:
        config = Config.from_dict(load_model(run)[1]["config"])
        save_halved(run, folder / f"{config.network}-{run.name}.safetensors")
    rows = [_row(path) for path in sorted(folder.glob("*.safetensors"))]
    head = ("network", "test accuracy", "evaluated by", "torch", "command")
    (folder / "README.md").write_text(_TEXT + table(head, rows) + "\n")


def _row(path: Path) -> tuple[str, ...]:
    about = load_model(path)[1]
    config = Config.from_dict(about["config"])
    return path.stem, f"{about['test']['accuracy']:.2%}", config.evaluation, about["torch"], f"`{config.command}`"


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(run) for run in sys.argv[2:]])
