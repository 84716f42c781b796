"""Execute the notebooks: `run` renews their outputs, `check` only tells whether they work.

`python tools/notebooks.py run` and `python tools/notebooks.py check` take all notebooks, or the named ones, as in
`check quick_start`. A notebook fails if a cell raises an error or writes to standard error, as every warning does. Each
runs in its own temporary folder. The saved outputs hold nothing specific to the machine or the time, so a notebook
changes only if its numbers or figures do.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from traitlets.config import Config

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
SECONDS = 300  # for one cell
WIDGET = "application/vnd.jupyter.widget-view+json"
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def executed(path: Path) -> Any:
    """Return the notebook at `path` with the outputs of a fresh kernel; an error of a cell is raised."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["IPYTHONDIR"] = folder  # no user's settings or history
        client = NotebookClient(
            notebook,
            timeout=SECONDS,
            kernel_name="python3",
            record_timing=False,
            coalesce_streams=True,
            resources={"metadata": {"path": folder}},
            config=Config(KernelManager={"transport": "ipc", "ip": f"{folder}/kernel"}),  # no port is opened
        )
        client.execute()
    return tidied(notebook)


def tidied(notebook: Any) -> Any:
    """Return the notebook without what is specific to a machine: versions, names of kernels, progress bars."""
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({})
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if WIDGET not in output.get("data", {})]
    return notebook


def complaints(notebook: Any) -> list[str]:
    """Return what the cells wrote to standard error."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    return [output.text for output in outputs if output.output_type == "stream" and output.name == "stderr"]


def main(arguments: list[str] | None = None) -> int:
    """Execute notebooks, and return 1 if one of them failed."""
    # One thread, and no kernels built on the way: the numbers are the same in every run.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("MOMENTPROP_KERNELS", "eager")
    parser = argparse.ArgumentParser(description="Execute the notebooks.")
    parser.add_argument("command", choices=("run", "check"), help="write the outputs back, or only try")
    parser.add_argument("names", nargs="*", help="the notebooks; all of them, if none is named")
    given = parser.parse_args(arguments)
    paths = [FOLDER / f"{name}.ipynb" for name in given.names] or sorted(FOLDER.glob("*.ipynb"))
    failed, began = 0, time.monotonic()
    for path in paths:
        started = time.monotonic()
        try:
            notebook = executed(path)
            found = "".join(complaints(notebook))
        except CellExecutionError as error:
            found = str(error)
        if found:
            failed += 1
            print(f"{path.stem}: failed\n{found}", flush=True)
        else:
            if given.command == "run":
                nbformat.write(notebook, path)
            print(f"{path.stem}: {time.monotonic() - started:.0f} s", flush=True)
    print(f"{len(paths) - failed} of {len(paths)} notebooks passed, in {time.monotonic() - began:.0f} s")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
