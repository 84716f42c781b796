"""Trained networks under noise: a network that is not there."""

import pytest

import momentprop
from momentprop_experiments.options import Options
from momentprop_experiments.reproduction.calibration.calibration_cases import CASES
from momentprop_experiments.reproduction.noisy_networks import Setting


def test_a_network_that_is_not_in_the_repository_is_left_out(tmp_path):
    setting = Setting(Options(networks=tmp_path, device="cpu"))
    left_out = [name for name, case in CASES.items() if not setting.has(case)]
    assert left_out == ["resnet18-0.01", "resnet18-0.1"]
    (sentence,) = setting.missing(CASES)
    assert sentence.startswith("The cases of `resnet18` are missing")
    assert "`momentprop train resnet18 --data cifar10" in sentence
    with pytest.raises(momentprop.errors.UserError, match=r"no `vit\.safetensors`"):
        setting.subject(CASES["vit-0.1"])
