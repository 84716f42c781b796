"""What the first call costs: each runs in its own process, with an empty cache of compiled code.

    python benchmarks/first_call.py compile AP2 --network ResNet-18 --batch 128 --device cuda

prints the seconds of one first call, after imports and after the device has started. `speed.py` starts it.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

import torch
from contenders import NETWORKS, Scene, compiled, drawn, prepare, scene, without_gradients
from torch import nn
from turns import ROOT, Run, wait

LIMIT = 600
"""The seconds after which a call is abandoned."""

IMPORT = "import time, torch; start = time.process_time(); import momentprop; print(time.process_time() - start)"


def encoder() -> Scene:
    """Return a transformer encoder of two layers, and two sequences of 16 tokens."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x = torch.randn(2, 16, 64)
    return Scene(model, x, torch.full_like(x, 0.01))


def eager(given: Scene) -> dict[str, Run]:
    """Return an eager forward pass of the plain network and by AP2."""
    runs: dict[str, Run] = {"plain": lambda: given.model(given.x), "AP2": lambda: given.model(given.value)}
    return {name: without_gradients(run) for name, run in runs.items()}


KINDS = {"compile": compiled, "draw": drawn, "eager": eager, "built": eager}
"""The contenders whose first call is timed; *built* waits until its kernels have been built."""


def first_call(kind: str, contender: str, network: str, batch: int, device: str) -> float | None:
    """Return the seconds of a first call in a new process, or None if it did not end in time."""
    command = [sys.executable, __file__, kind, contender, "--network", network, "--batch", str(batch)]
    with tempfile.TemporaryDirectory() as cache:
        try:
            mode = "wait" if kind == "built" else "auto"
            caches = {"TORCHINDUCTOR_CACHE_DIR": cache, "TRITON_CACHE_DIR": cache, "MOMENTPROP_CACHE": cache}
            return _output([*command, "--device", device], {**caches, "MOMENTPROP_KERNELS": mode})
        except subprocess.TimeoutExpired:
            return None


def import_seconds(times: int) -> list[float]:
    """Return the processor seconds of `import momentprop` in new processes, after `import torch`.

    Python finds the bytecode there, as after `pip install`.
    """
    with tempfile.TemporaryDirectory() as bytecode:
        settings = {"PYTHONPYCACHEPREFIX": bytecode, "PYTHONDONTWRITEBYTECODE": ""}
        return [_output([sys.executable, "-c", IMPORT], settings) for _ in range(1 + times)][1:]


def _output(command: list[str], environment: dict[str, str] | None = None) -> float:
    """Return the last number that a command prints; it finds the same modules as this process."""
    paths = [str(ROOT / "src"), str(ROOT / "experiments" / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    given = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **(environment or {})}
    done = subprocess.run(command, env=given, capture_output=True, text=True, timeout=LIMIT, check=False)
    if done.returncode:
        raise RuntimeError(f"`{' '.join(command)}` failed:\n{done.stderr[-2000:]}")
    return float(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Make one first call, and print its seconds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("contender", help="plain or AP2; sample or `by hand` of draws")
    parser.add_argument("--network", choices=("encoder", *NETWORKS), default="CIFAR")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    prepare(options.device)
    encodes = options.network == "encoder"
    given = encoder() if encodes else scene(options.network, options.batch, options.device)
    run = KINDS[options.kind](given)[options.contender]
    (given.x @ given.x.mT).sum().item()  # now the device and its matrix library have started
    wait()
    started = time.perf_counter()
    run()
    wait()
    print(time.perf_counter() - started)


if __name__ == "__main__":
    main()
