"""The report on dropout: it answers each claim by runs of the same seed."""

import itertools
import json

import pytest

from momentprop_experiments.repository import results_folder
from momentprop_experiments.reproduction.dropout.dropout_figure import WINDOW, running, with_dropout
from momentprop_experiments.reproduction.dropout.dropout_report import _where, answers, summary

ROOT = results_folder().parent
RESULTS = ROOT / "results" / "paper"


def _run(way, p, seed, *accuracies):
    return {"way": way, "dropout": p, "seed": seed, "validation_accuracy": accuracies, "test": {}}


def test_a_claim_is_answered_by_runs_of_the_same_seed():
    done = [_run("plain", 0.0, 0, 0.70, 0.80), _run("plain", 0.0, 1, 0.72, 0.82), _run("plain", 0.0, 2, 0.1, 0.1)]
    done += [_run("analytic", 0.3, 0, 0.90, 0.90), _run("analytic", 0.3, 1, 0.93, 0.92)]
    done += [_run("sampled", 0.3, 0, 0.50, 0.60), _run("sampled", 0.3, 1, 0.50, 0.90)]
    found = {(each.way, each.better, each.other): each for each in answers(done)}
    gain = found["analytic", "more accurate than", "plain"]
    assert (gain.paper, gain.here, gain.seeds) == ("yes", "yes", "2 of 2")
    assert gain.by == "+13.5 ± 2.1"  # the last figures weigh two thirds: 13.33 and 13.67 points
    other = found["sampled", "more accurate than", "plain"]
    assert (other.here, other.by.split()[0]) == ("not settled", "-11.0")
    fast = found["analytic", "as fast as", "plain"]
    assert (fast.here, fast.by) == ("not settled", "1 epochs, plain 2 (+1.0 ± 3.7)")  # one epoch, which may be rounding
    late = found["sampled", "as fast as", "plain"]
    assert (late.here, late.by) == ("not settled", "not reached by 2 of 2")
    assert "analytic-norm" not in {each.way for each in found.values()}
    text = summary(list(found.values()))
    assert "With p = 0.3, analytic dropout improves the validation accuracy, and it is not settled whether" in text
    assert "1 of its answers hold here, 0 are contradicted, and 3 are not settled" in text


def test_one_seed_settles_nothing():
    done = [_run("plain", 0.0, 0, 0.5), _run("analytic", 0.3, 0, 0.9)]
    assert {each.here for each in answers(done)} == {"not settled"}


def test_what_a_run_did_not_record_is_told():
    assert _where([{"made": None}, {}]).startswith("Of 2 runs, we made 2 before runs recorded their device")
    made = {"device": "cuda (H200)", "commit": "0123456789abcdef"}
    assert _where([{"made": made}, {"made": made}]) == "Of 2 runs, we made 2 on cuda (H200), commit 012345678."


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
    assert len([run for run in found.values() if run["test"]]) == 39
    here = {(each.way, each.better, each.other, each.p): each.here for each in answers(found.values())}
    for way, p in itertools.product(("analytic", "analytic-norm", "analytic-expected"), (0.2, 0.3)):
        assert here[way, "more accurate than", "plain", p] == here[way, "as fast as", "plain", p] == "yes"
    assert here["sampled", "as fast as", "plain", 0.3] == "not settled"
    for seed in range(3):
        plain, sampled, analytic = (found[f"lenet-{way}-{seed}"] for way in ("plain", "sampled-0.3", "analytic-0.3"))
        assert analytic["validation_loss"][-1] < sampled["validation_loss"][-1] < plain["validation_loss"][-1]
        assert analytic["validation_accuracy"][0] > sampled["validation_accuracy"][0] + 0.2
