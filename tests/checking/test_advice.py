"""What to do next follows from the figures at the output."""

import dataclasses

import pytest

from momentprop.checking import advice
from momentprop.checking.results import Accuracy, Cost, ModuleAccuracy, PosteriorAccuracy, Results

FLOOR = Accuracy(eps_mean=0.025, eps_std=1.02, rms_log_std=0.02)
AP1 = Accuracy(eps_mean=0.5, worth_mean=3)
RIGHT = Accuracy(eps_mean=0.03, eps_std=1.01, rms_log_std=0.03, worth_mean=900, worth_std=500)
SMALL = Accuracy(eps_mean=0.03, eps_std=0.11, rms_log_std=2.2, worth_mean=900, worth_std=1)
ROUGH = Accuracy(eps_mean=0.4, eps_std=1.01, rms_log_std=0.3, worth_mean=4, worth_std=6)


def results(divergences=None, notes=(), **methods):
    """The results of methods with the given figures at the output; the later ones cost more."""
    names = [name.replace("_", "-") for name in methods]
    module = ModuleAccuracy("Net", (4, 3), 12, 0, FLOOR, dict(zip(names, methods.values(), strict=True)))
    posterior = None
    if divergences is not None:
        kl = {name: {"kl": x} for name, x in zip(names, divergences, strict=True)}
        posterior = PosteriorAccuracy(3, 1e-5, kl, {name: {"kl": 10.0} for name in names})
    costs = {name: Cost(2.0 + 10 * i, None) for i, name in enumerate(names)}
    return Results(
        *("call", {}, "Net", 1000, 4, 0, names, "output", {"output": module}, posterior, [], costs, 1.0, list(notes))
    )


def test_deviations_that_are_too_small_ask_for_the_cheapest_method_that_has_right_ones():
    found = advice.sentences(results(ap1=AP1, ap2=SMALL, joint=RIGHT, ap2_calibrated=RIGHT))
    assert found == [
        "The deviations by ap2 are ×0.110 of the true ones; use `covariance=True` (×1.01, at the cost of 22 forward "
        "passes)."
    ]


def test_a_calibration_comes_after_what_needs_no_data():
    found = results(ap2=SMALL, ap2_calibrated=RIGHT, joint=RIGHT)
    assert advice.sentences(found)[0].endswith(
        "use `covariance=True` (×1.01, at the cost of 22 forward passes). For 12 forward passes, "
        "`calibration=..., covariance=False` has ×1.01."
    )


def test_right_deviations_need_nothing_else():
    found = advice.sentences(results(ap1=AP1, ap2=RIGHT, joint=RIGHT))
    assert found == ["The deviations by ap2 are close (×1.01): use `covariance=False`, which costs 12 forward passes."]


def test_what_was_not_compared_is_named_where_no_method_is_right():
    found = " ".join(advice.sentences(results(ap1=AP1, ap2=SMALL, joint=ROUGH)))
    assert "Those of `covariance=True` are better (×1.01, at the cost of 22 forward passes)" in found
    assert "but each is still off by about 35 %." in found
    assert '`"probes"` (`probes=16`)' in found
    assert "`momentprop.calibrate` fits corrections" in found
    found = " ".join(advice.sentences(results(ap2=ROUGH, joint=ROUGH, probes=ROUGH, ap2_calibrated=ROUGH)))
    assert "no method here is better" in found
    assert "Compare what may help" not in found
    assert "`covariance=True`) follows correlations" in " ".join(advice.sentences(results(ap2=SMALL)))
    assert "follows correlations" not in " ".join(advice.sentences(results(ap2=SMALL, notes=["joint is left out"])))


def test_better_means_are_pointed_at():
    small, wrong = (dataclasses.replace(each, eps_mean=0.3) for each in (SMALL, RIGHT))
    found = advice.sentences(results(ap2=small, joint=wrong, probes_64=RIGHT))
    assert found[1] == (
        "Its means are off by 0.30 deviations, those of `probes=64` by 0.030 (at the cost of 22 forward passes)."
    )
    assert advice.sentences(results(ap2=small, joint=wrong))[1].startswith(
        "Its means are off by 0.30 deviations. Compare"
    )


def test_what_to_compare_is_said_once_and_also_where_only_the_plain_network_has_better_means():
    shifted = dataclasses.replace(SMALL, eps_mean=0.5)
    rough = advice.sentences(results(ap1=AP1, ap2=shifted, joint=ROUGH))
    assert rough[0].endswith("`momentprop.calibrate` fits corrections to a few inputs.")
    assert rough[1] == "Its means are off by 0.40 deviations."
    plain, shifted = dataclasses.replace(AP1, eps_mean=0.03), dataclasses.replace(RIGHT, eps_mean=0.3)
    assert (
        '`method="ap1"` by 0.030 (at the cost of 2.0 forward passes). Compare what may help: `"probes"`'
        in (advice.sentences(results(ap1=plain, ap2=shifted, joint=shifted))[1])
    )


def test_closer_class_probabilities_are_pointed_at():
    found = advice.sentences(results([0.2, 0.05, 0.002], ap1=AP1, ap2=RIGHT, joint=RIGHT))
    assert found[1] == (
        "For class probabilities use `covariance=True`: they are 0.0020 nats from those of the draws, not 0.050 (at "
        "the cost of 22 forward passes)."
    )
    assert len(advice.sentences(results([0.2, 5e-4, 2e-5], ap1=AP1, ap2=RIGHT, joint=RIGHT))) == 1


def test_where_draws_cannot_tell_more_of_them_are_asked_for():
    perfect = dataclasses.replace(RIGHT, worth_mean=1000, worth_std=1000)
    assert "a larger `samples` shows what is left" in advice.sentences(results(ap2=perfect))[-1]


def test_without_deviations_class_probabilities_decide():
    assert advice.sentences(results(ap1=AP1)) == [
        'No method here gives deviations: compare `methods=("ap2", "joint")`.'
    ]
    found = advice.sentences(results([0.2, 0.1], ap1=AP1, mine=Accuracy(eps_mean=0.1)), quote="<{}>".format)
    assert found[0].startswith("Use <mine>: its class probabilities are the closest to those of the draws (0.10 nats")


@pytest.mark.parametrize("show", [str, lambda report: report.to_markdown(), lambda report: report.to_html()])
def test_a_report_has_it_below_what_was_found(report, show):
    text = show(report)
    assert text.count("What to do next") == 1
    assert text.index("What to do next") > text.index("The class probabilities by ")
    assert report.advice == advice.sentences(report)
