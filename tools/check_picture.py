"""Draw `docs/check.png`, the first part of a report, with a Chromium: `python tools/check_picture.py`."""

import dataclasses
import shutil
import subprocess
import tempfile
from pathlib import Path

import momentprop
from momentprop.data import load
from momentprop_experiments import demo

PICTURE = Path(__file__).parents[1] / "docs" / "check.png"
SIZE = (1120, 1830)  # ends below the layers


def main() -> None:
    """Check a LeNet under noise on its pixels, and photograph the page."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    assert browser is not None, "needs a Chromium on the PATH"
    case = demo.CASES[0]
    model, images, _, _ = demo.network(case, load("digits"), count=20)
    report = dataclasses.replace(momentprop.check(model, images, **case.noise), model="LeNet")
    with tempfile.TemporaryDirectory() as folder:
        page = report.save_html(Path(folder, "report.html"))
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        options += [f"--user-data-dir={folder}/profile", f"--window-size={SIZE[0]},{SIZE[1]}"]
        subprocess.run([browser, *options, f"--screenshot={PICTURE}", page.as_uri()], check=True, capture_output=True)


if __name__ == "__main__":
    main()
