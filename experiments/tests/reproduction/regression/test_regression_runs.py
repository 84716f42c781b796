"""Regression with noisy inputs: the data, the scores, and the order that must hold in them."""

import json
import sys

import pytest
import torch
from scipy import stats

from momentprop import Normal
from momentprop_experiments.options import Options
from momentprop_experiments.repository import results_folder
from momentprop_experiments.reproduction.regression import regression, regression_data
from momentprop_experiments.reproduction.regression.regression_report import markdown

RESULTS = results_folder() / "paper"


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    out = tmp_path_factory.mktemp("regression")
    result = regression.run(out, Options(quick=True))
    assert [file.suffix for file in result.save(out, "x")] == [".json", ".md", ".png", ".svg"]
    return result


def test_generated_data_are_standardized_with_the_stated_noise():
    table = regression_data.generated(3)
    for part in table.train:
        assert torch.allclose(part.mean(0), torch.zeros(part.shape[1]), atol=1e-6)
        assert torch.allclose(part.std(0), torch.ones(part.shape[1]), atol=1e-6)
    x, y = (torch.cat(parts) for parts in zip(table.train, table.test, strict=True))
    outer, inner = (x[:, 0].abs() > 1.5, x[:, 0].abs() < 0.5)
    assert y[outer].std() > 1.3 * y[inner].std()
    assert not torch.equal(table.test[0], regression_data.generated(4).test[0])


def test_without_scikit_learn_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r"scikit-learn: run `pip install \"momentprop\[experiments\]\"`"):
        regression_data.diabetes(0)


def test_the_diabetes_data_are_those_of_scikit_learn():
    pytest.importorskip("sklearn", reason="scikit-learn is missing: it comes with the extra `experiments`")
    table = regression_data.diabetes(0)
    assert [tuple(part.shape) for part in (*table.train, *table.test)] == [(354, 10), (354, 1), (88, 10), (88, 1)]
    body_mass = table.train[0][:, 2]
    assert (body_mass * table.train[1][:, 0]).mean() > 0.5  # the known correlation, 0.59 over all patients
    assert torch.allclose(body_mass.std(), torch.tensor(1.0))


def test_the_scores_are_those_of_scipy():
    generator = torch.Generator().manual_seed(0)
    loc, targets = torch.randn(2, 50, 1, generator=generator, dtype=torch.float64)
    variance = 0.5 + torch.rand(50, 1, generator=generator, dtype=torch.float64)
    found = regression.scores(Normal(loc, variance), targets)
    expected = stats.norm(loc.numpy(), variance.sqrt().numpy())
    assert found["nll"] == pytest.approx(-expected.logpdf(targets.numpy()).mean())
    low, high = expected.interval(0.9)
    assert found["coverage_90"] == pytest.approx(((targets.numpy() >= low) & (targets.numpy() <= high)).mean())
    assert found["rmse"] == pytest.approx(float((loc - targets).square().mean().sqrt()))


def test_the_mixture_of_equal_draws_has_the_likelihood_of_one():
    means, variances, targets = torch.zeros(5, 4, 1), torch.full((5, 4, 1), 2.0), torch.ones(4, 1)
    one = regression.scores(Normal(means[0], variances[0]), targets)["nll"]
    assert regression._mixture_nll(means, variances, targets) == pytest.approx(one)
    told = regression._of_draws(torch.tensor([[[0.0]], [[2.0]]]), torch.tensor([[[1.0]], [[3.0]]]))
    assert (told.loc.item(), told.variance.item()) == pytest.approx((1.0, 4.0))


def test_a_quick_run_has_every_method_in_order(quick):
    for levels in quick.data["figures"]["generated"].values():
        clean, noisy = levels["0"], levels["0.3"]
        assert list(noisy) == ["AP1", "AP2", "calibrated AP2", *(f"Monte Carlo, {n}" for n in (8, 32, 128))]
        for found in (clean, noisy):
            assert found["Monte Carlo, 128"]["nll"]["mean"] < 2
        nll = {name: each["nll"]["mean"] for name, each in noisy.items()}
        assert nll["calibrated AP2"] < nll["AP2"] < nll["AP1"]
        assert abs(nll["calibrated AP2"] - nll["Monte Carlo, 128"]) < 0.1
        assert noisy["AP1"]["coverage_90"]["mean"] < 0.8 < noisy["calibrated AP2"]["coverage_90"]["mean"]
        assert noisy["AP2"]["rmse"]["mean"] < noisy["AP1"]["rmse"]["mean"]


def test_the_text_of_a_run_counts_what_the_seeds_settle(quick):
    cases = [methods for levels in quick.data["figures"]["generated"].values() for methods in levels.values()]
    assert len(cases) == 4
    for words in ("a lower NLL than AP1? Not settled{}.", "Monte Carlo with 8 draws? Not settled{};"):
        assert words.format(" in 4 of 4 cases") in quick.markdown  # one seed
    two = {**quick.data, "figures": {"generated": {"ap2": {}, "sample": {}}}}
    for trained_by, levels in two["figures"]["generated"].items():
        for variance, methods in quick.data["figures"]["generated"][trained_by].items():
            levels[variance] = {
                method: {key: {**each, "each": [each["mean"], each["mean"] + 1e-6]} for key, each in found.items()}
                for method, found in methods.items()
            }
    better = sum(case["AP2"]["nll"]["mean"] < case["AP1"]["nll"]["mean"] for case in cases)
    assert f"lower NLL than AP1? Yes in {better}" in markdown("x", two)


def test_published_tables_are_of_both_data_sets_and_five_splits():
    data = json.loads((RESULTS / "regression.json").read_text())
    assert list(data["figures"]) == ["diabetes", "generated"]
    assert data["seeds"] == 5
    for found in data["figures"].values():
        for levels in found.values():
            for methods in levels.values():
                nll = {name: each["nll"]["mean"] for name, each in methods.items()}
                assert abs(nll["calibrated AP2"] - nll["Monte Carlo, 128"]) < 0.06
            nll = {name: each["nll"]["mean"] for name, each in levels["1"].items()}
            assert nll["calibrated AP2"] < nll["Monte Carlo, 8"] < nll["AP2"] < nll["AP1"]
