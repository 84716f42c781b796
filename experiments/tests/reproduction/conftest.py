"""Quick runs of experiments, made once for each process of the tests, and a plain sum to compare with."""

import json
import math
from itertools import product

import pytest

from momentprop_experiments.options import Options
from momentprop_experiments.reproduction.registry import EXPERIMENTS


@pytest.fixture(scope="session")
def ran(tmp_path_factory):
    """Read the numbers and the text of a quick run from its files, by the name of the experiment."""
    done = {}

    def read(name):
        if name not in done:
            out = tmp_path_factory.mktemp(name)
            files = EXPERIMENTS[name].run(out, Options(quick=True, device="cpu")).save(out, name)
            assert [file.name for file in files] == [f"{name}.{ending}" for ending in ("json", "md", "png", "svg")]
            assert all(file.stat().st_size > 0 for file in files)
            done[name] = json.loads(files[0].read_text()), files[1].read_text(encoding="utf-8")
        return done[name]

    return read


@pytest.fixture(scope="session")
def data(ran):
    """Read the numbers of a quick run."""
    return lambda name: ran(name)[0]


@pytest.fixture(scope="session")
def enumerate_unit():
    """Sum E S(b + w'X) by a plain loop over all states of the inputs."""

    def total(weights, bias, p):
        found = 0.0
        for state in product((0, 1), repeat=len(weights)):
            probability = math.prod(q if x else 1 - q for x, q in zip(state, p, strict=True))
            found += probability / (1 + math.exp(-bias - sum(w * x for w, x in zip(weights, state, strict=True))))
        return found

    return total
