"""The report on dropout: it answers each claim by runs of the same seed."""

import json

import pytest

from momentprop_experiments.repository import results_folder
from momentprop_experiments.reproduction.dropout.dropout_figure import WINDOW, running, with_dropout
from momentprop_experiments.reproduction.dropout.dropout_report import answers, summary

ROOT = results_folder().parent
RESULTS = ROOT / "results" / "paper"


def _run(way, p, seed, *accuracies):
    return {"way": way, "dropout": p, "seed": seed, "validation_accuracy": accuracies, "test": {}}


def test_a_claim_is_answered_by_runs_of_the_same_seed():
    done = [_run("plain", 0.0, 0, 0.70, 0.80), _run("plain", 0.0, 1, 0.72, 0.82), _run("plain", 0.0, 2, 0.1, 0.1)]
    done += [_run("analytic", 0.3, 0, 0.90, 0.90), _run("analytic", 0.3, 1, 0.88, 0.88)]
    done += [_run("sampled", 0.3, 0, 0.50, 0.60), _run("sampled", 0.3, 1, 0.50, 0.90)]
    found = {(each.way, each.better, each.other): each for each in answers(done, 1000)}
    gain = found["analytic", "more accurate than", "plain"]
    assert (gain.paper, gain.here, gain.seeds) == ("yes", "yes", "higher for 2 of 2")
    assert gain.by == "+11.3 ± 1.3 points"  # the last figures weigh two thirds
    assert found["sampled", "more accurate than", "plain"].here == "no"
    fast = found["analytic", "as fast as", "plain"]
    assert (fast.here, fast.by) == ("yes", "1 epochs, plain 2")
    assert found["sampled", "as fast as", "plain"].by == "not reached"
    assert "analytic-norm" not in {each.way for each in found.values()}
    text = summary(list(found.values()))
    assert (
        "With p = 0.3, analytic dropout improves the validation accuracy, and does not slow the training down" in text
    )
    few = {(each.way, each.better, each.other): each for each in answers(done, 20)}
    assert few["analytic", "more accurate than", "plain"].here == "no clear difference"
    assert "does not clearly change the validation accuracy" in summary(list(few.values()))


def test_plain_training_is_compared_with_the_same_seeds():
    done = [_run("plain", 0.0, seed, 0.5) for seed in range(3)] + [_run("analytic", 0.2, 1, 0.6)]
    assert [run["seed"] for run in with_dropout(done, 0.2)["plain"]] == [1]


def test_the_running_average_is_that_of_some_epochs():
    assert running([]) == []
    assert running([2.0] * 9) == [2.0] * 9
    impulse = running([0.0] * 50 + [1.0] + [0.0] * 50)
    assert sum(impulse) == pytest.approx(1)
    assert sum(weight**2 for weight in impulse) == pytest.approx(1 / WINDOW)


def test_published_results_say_that_analytic_dropout_helps():
    network = json.loads((RESULTS / "dropout.json").read_text())["networks"]["lenet"]
    found = network["runs"]
    assert len([run for run in found.values() if run["test"]]) == network["wanted"] == 19
    here = {(each.way, each.better, each.other, each.p): each.here for each in answers(found.values(), 1000)}
    for way in ("analytic", "analytic-norm", "analytic-expected"):
        for p in (0.2, 0.3):
            assert here[way, "more accurate than", "plain", p] == here[way, "as fast as", "plain", p] == "yes"
    assert here["sampled", "as fast as", "plain", 0.3] == "no"
    for seed in range(3):
        plain, sampled, analytic = (found[f"lenet-{way}-{seed}"] for way in ("plain", "sampled-0.3", "analytic-0.3"))
        assert analytic["validation_loss"][-1] < sampled["validation_loss"][-1] < plain["validation_loss"][-1]
        assert analytic["validation_accuracy"][0] > sampled["validation_accuracy"][0] + 0.2
