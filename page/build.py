"""Build the page to play with, `build/page/index.html`: one file, which works from disk.

`python -m page.build` exports the networks, installs what `page/package.json` pins, and puts all into one page.
"""

import base64
import gzip
import json
import subprocess
from pathlib import Path
from typing import Any

import torch

import momentprop
from page.networks import Reader

PAGE = Path(__file__).parent
OUT = PAGE.parent / "build" / "page"
NOISE = 0.2
"""The noise under which a digit is hard, and with which the page starts."""

FIRST = 104  # the digit of the paper's first figure
WASM = PAGE / "node_modules" / "onnxruntime-web" / "dist" / "ort-wasm-simd-threaded.wasm"


def main() -> None:
    """Build the page, and say where it is."""
    page = build()
    print(f"Open {page} in a browser ({page.stat().st_size / 1e6:.1f} MB).")


def build() -> Path:
    """Export the networks, install and bundle the scripts, and write the page."""
    npm("ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
    reader = Reader()
    files = {path.stem: path for path in reader.export(OUT / "programs")} | {"wasm": WASM}
    npm("exec", "--", "esbuild", "app/main.js", "--bundle", "--format=esm", "--minify", "--log-level=warning",
        f"--outfile={OUT / 'app.js'}")  # fmt: skip
    parts = {
        "style": (PAGE / "style.css").read_text(),
        "data": json.dumps(data(reader), separators=(",", ":")),
        "programs": "\n".join(embedded(name, path.read_bytes()) for name, path in files.items()),
        "script": (OUT / "app.js").read_text().replace("</script", r"<\/script"),
    }
    page = (PAGE / "index.html").read_text()
    for name, text in parts.items():
        page = page.replace("{{" + name + "}}", text)
    out = OUT / "index.html"
    out.write_text(page)
    return out


def npm(*arguments: str) -> None:
    """Run npm for the page."""
    subprocess.run(["npm", *arguments], cwd=PAGE, check=True)


def embedded(name: str, content: bytes) -> str:
    """Return a script element with packed bytes, which the page unpacks."""
    packed = base64.b64encode(gzip.compress(content, mtime=0)).decode()
    return f'<script id="{name}" type="text/plain">{packed}</script>'


def data(reader: Reader) -> dict[str, Any]:
    """Return what the page knows beside the networks."""
    return {
        "accuracy": reader.accuracy,
        "mean": reader.mean,
        "std": reader.std,
        "factors": reader.factors,
        "pixelMean": reader.pixel_mean.flatten().tolist(),
        "pixelVariance": reader.pixel_variance.flatten().tolist(),
        "order": reader.order.flatten().tolist(),
        "digits": [
            {"label": int(reader.labels[i]), "pixels": (reader.images[i] * 255).round().int().flatten().tolist()}
            for i in shelf(reader)
        ],
    }


def shelf(reader: Reader) -> list[int]:
    """Return the digits to pick: of every class the one that is least sure under noise, and another."""
    with torch.no_grad():
        x = (reader.images - reader.mean) / reader.std
        scores = momentprop.propagate(reader.network, x, input_std=NOISE / reader.std, covariance=False)
        sure = scores.probabilities().amax(-1)
    found = [FIRST]
    for label in reader.labels.unique():
        of_label = (reader.labels == label).nonzero().flatten().tolist()
        hard = FIRST if FIRST in of_label else min(of_label, key=lambda i: float(sure[i]))
        found += [hard, next(i for i in of_label if i != hard)]
    return list(dict.fromkeys(found))


if __name__ == "__main__":
    main()
