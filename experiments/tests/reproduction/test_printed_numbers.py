"""The numbers that the paper prints."""

import pytest

from momentprop_experiments.reproduction import printed_numbers
from momentprop_experiments.reproduction.accuracy import accuracy_cifar, accuracy_lenet

STUDIES = {"lenet": accuracy_lenet.STUDY, "cifar": accuracy_cifar.STUDY}


@pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)
def test_every_case_has_a_printed_figure_for_every_column(study):
    for case in study.cases.values():
        for row in (case.printed.ap1, case.printed.ap2, case.printed.std):
            assert len(row) == len(study.columns)
        assert case.printed.kl_logistic <= 2 * case.printed.kl_simplified or case.network == "lenet-logistic"


def test_the_printed_figures_are_those_of_the_paper():
    assert printed_numbers.LENET["lrelu-0.1"].ap1 == (0.31, 0.74, 0.51, 1.47, 1.11, 1.60)
    assert printed_numbers.LENET["bernoulli"].std[-1] == 0.93
    assert printed_numbers.CIFAR["logistic-0.01"].ap2[-1] == 2.20
    assert printed_numbers.CIFAR["dropout"].ap1[:2] == (None, 0.01)
    assert [name for name, case in printed_numbers.CIFAR.items() if case.commented_out] == ["lrelu-1e-4", "lrelu-0.1"]


def test_the_printed_statistics_are_those_of_the_paper():
    assert printed_numbers.STATISTICS["lrelu"]["bn"].mean == (0.10, 0.49, 0.13, 0.36, 0.29, 0.52, 0.49)
    assert printed_numbers.STATISTICS["logistic"]["analytic"].std[-1] == 1.21
    for ways in printed_numbers.STATISTICS.values():
        assert all(len(row) == 7 for found in ways.values() for row in (found.mean, found.std))
