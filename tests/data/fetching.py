"""What is stored of the tiny data set, and a process that fetches it."""

import subprocess
import sys

import torch

from momentprop import data
from momentprop.data import store
from tests.tiny_data import FILES, SPLITS, UNPACKED


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def assert_complete(root):
    """The stored data set is right, and nothing else is left behind."""
    loaded = data.load("tiny", root)
    for split in ("train", "test"):
        assert torch.equal(getattr(loaded, split).images, SPLITS[split].images)
        assert torch.equal(getattr(loaded, split).labels, SPLITS[split].labels.long())
    kept = [name for name in names(root / "tiny") if name not in (*FILES, *UNPACKED)]
    assert kept == [".lock", "test.safetensors", "train.safetensors"]


def assert_nothing_stored(root):
    assert not list((root / "tiny").glob("*.safetensors"))
    assert not list((root / "tiny").glob(f"{store.TEMPORARY}*"))


CHILD = """
import sys
from momentprop.data import catalogue, get
from tests import tiny_data
catalogue.RECIPES["tiny"] = tiny_data.recipe(sys.argv[1])
get("tiny", sys.argv[2])
"""


def start_child(server, root):
    return subprocess.Popen([sys.executable, "-c", CHILD, server.address, str(root)], stderr=subprocess.PIPE, text=True)
