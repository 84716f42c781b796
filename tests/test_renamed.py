"""The names of 0.1 that have moved still work, and say what to write."""

import importlib
import subprocess
import sys

import pytest

import momentprop
import momentprop_experiments.networks
from momentprop import renamed

OLD = [  # every name of 0.1 that its reference or its guides show, and that has moved
    ("momentprop.check.report", "Report", "momentprop.checking.Report"),
    ("momentprop.check.report", "Module", "momentprop.checking.ModuleAccuracy"),
    ("momentprop.check.report", "Accuracy", "momentprop.checking.Accuracy"),
    ("momentprop.check.report", "Posterior", "momentprop.checking.PosteriorAccuracy"),
    ("momentprop.experiments.attacks", "gradient_sign", "momentprop_experiments.attacks.gradient_sign"),
    ("momentprop.experiments.kept", "load", "momentprop_experiments.runs.trained_networks.load"),
    ("momentprop.experiments.networks", "lenet", "momentprop_experiments.networks.lenet"),
    ("momentprop.export", "AsTensors", "momentprop.AsTensors"),
    ("momentprop.model_change", "ModelChangeWarning", "momentprop.ModelChangeWarning"),
    ("momentprop.monte_carlo", "MEMORY", "momentprop.sampling.MEMORY"),
    ("momentprop.monte_carlo", "Moments", "momentprop.sampling.RunningMoments"),
    ("momentprop.noises", "noise", "momentprop.noise.noise"),
    ("momentprop.score_function", "ScoreFunction", "momentprop.nn.ScoreFunction"),
    ("momentprop.training", "Config", "momentprop_experiments.Config"),
    ("momentprop.training", "Result", "momentprop_experiments.Result"),
    ("momentprop.training", "load_model", "momentprop_experiments.load_model"),
    ("momentprop.training", "save_halved", "momentprop_experiments.save_halved"),
    ("momentprop.training", "train", "momentprop_experiments.train"),
    ("momentprop.values.spread", "Spread", "momentprop.values.Uncertain"),
]


@pytest.mark.parametrize(("module", "name", "new"), OLD)
def test_an_old_name_is_the_new_thing_and_says_what_to_write(module, name, new):
    where, _, now = new.rpartition(".")
    with pytest.warns(DeprecationWarning, match="write that") as caught:
        found = getattr(importlib.import_module(module), name)
    assert found is getattr(importlib.import_module(where), now)
    assert [str(warning.message) for warning in caught] == [f"`{module}.{name}` is now `{new}`: write that"]
    assert caught[0].filename == __file__


def test_every_kept_name_is_tested():
    assert {f"{module}.{name}" for module, name, _ in OLD} >= set(renamed._NAMES)
    assert {module for module, _, _ in OLD} >= set(renamed._MODULES) - {"momentprop.experiments"}


def test_old_modules_are_reached_by_attributes_and_by_from():
    from momentprop.experiments import networks

    with pytest.warns(DeprecationWarning, match="`momentprop.experiments.networks.mlp` is now"):
        assert networks.mlp is momentprop_experiments.networks.mlp
    with pytest.warns(DeprecationWarning, match="`momentprop.noises.noise` is now"):
        assert momentprop.noises.noise is momentprop.noise.noise
    assert callable(momentprop.check)


def test_a_name_that_never_was_is_no_attribute():
    with pytest.raises(AttributeError, match=r"'momentprop\.training' has no attribute 'nothing'"):
        momentprop.training.nothing  # noqa: B018
    with pytest.raises(AttributeError, match=r"'momentprop\.noise' has no attribute 'nothing'"):
        momentprop.noises.nothing  # noqa: B018


def test_without_the_experiments_an_old_name_says_where_it_is():
    program = """
import sys
sys.modules["momentprop_experiments"] = None
import momentprop.training
try:
    momentprop.training.train
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == (
        "`momentprop.training.train` is now `momentprop_experiments.train`, in a package of its own: "
        "run `pip install . ./experiments` in a clone\n"
    )
