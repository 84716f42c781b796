"""The running times: that every step and prediction runs, and that turns are fair."""

from momentprop_experiments.reproduction.running_times import running_times
from momentprop_experiments.turns import Clock, take_turns


def test_every_step_and_prediction_is_measured(data):
    found = data("running-times")["networks"]["lenet"]
    assert set(found["training"]["ratio"]) == set(running_times.STEPS)
    assert set(found["predicting"]["ratio"]) >= {"standard", "AP2"}
    assert found["training"]["ratio"]["standard"] == [1.0, 1.0, 1.0]


def test_a_round_has_the_order_of_the_last_one_reversed():
    calls = []
    runs = {name: lambda name=name: calls.append(name) for name in "ab"}
    rounds = take_turns(runs, Clock(rounds=3, seconds=0.0, turn=0.0))
    assert len(rounds) == 3
    assert calls[-6:] == ["a", "b", "b", "a", "a", "b"]
