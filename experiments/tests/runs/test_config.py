"""The configuration of a run: JSON, errors, and its command."""

import json

import pytest

from momentprop.errors import UserError
from momentprop_experiments import Config


def test_a_configuration_goes_through_json():
    config = Config(network="mlp", dropout=0, learning_rate=1, input_variance=0.1)
    assert Config.from_dict(json.loads(json.dumps(config.as_dict()))) == config
    assert type(config.learning_rate) is float


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"network": "lenett"}, "unknown network 'lenett': did you mean 'lenet'"),
        ({"dropout": 1.0}, "dropout must be below 1"),
        ({"validation": 1.0}, "validation must be below 1"),
        ({"norm": "layer"}, "unknown norm 'layer': choose one of none, bn, analytic$"),
        ({"method": "ap3"}, "unknown method 'ap3': did you mean 'ap"),
        ({"network": "lenet", "width": 16}, "width is for the networks resnet18 and vit, not for 'lenet'"),
        ({"ephocs": 3}, "there is no setting 'ephocs': did you mean 'epochs'"),
    ],
)
def test_an_impossible_configuration_is_refused(fields, message):
    with pytest.raises(UserError, match=message):
        Config.from_dict(fields)


def test_the_command_of_a_configuration_gives_it_back():
    config = Config(network="cifar", data="cifar10", dropout=0.2, amp=True, decay=0.9)
    assert config.command == "momentprop train cifar --decay 0.9 --amp --data cifar10 --dropout 0.2"
