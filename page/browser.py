"""Opens the page in Chromium, plays with it, and returns what it says; for tests and pictures."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from page.build import PAGE

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def lacking() -> str | None:
    """Return the name of a program that is needed and not installed, if there is one."""
    if not all(map(shutil.which, ("npm", "node"))):
        return "npm, which comes with Node.js"
    return None if chromium() else "Chromium"


def chromium() -> str | None:
    """Return the path of Chromium."""
    return next(filter(None, map(shutil.which, _NAMES)), None)


def play(page: Path, shots: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the page says in every shot, as `browser.mjs` describes them, and the errors of its console."""
    job = {"page": str(page.resolve()), "chromium": chromium(), "shots": shots}
    command = ["node", str(PAGE / "browser.mjs"), json.dumps(job)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(f"the page did not play: {done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found
