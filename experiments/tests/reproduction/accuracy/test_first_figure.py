"""The paper's first figure: histograms of draws beside AP1 and AP2."""

import pytest

from momentprop_experiments.options import Options
from momentprop_experiments.reproduction.accuracy import first_figure
from momentprop_experiments.reproduction.outcome import Outcome


def test_the_first_figure_shows_what_the_draws_average(tmp_path):
    result = first_figure.run(tmp_path, Options(quick=True))
    assert isinstance(result, Outcome)
    data = result.data
    assert sum(data["probabilities"]["sampled"]) == pytest.approx(1, abs=1e-3)
    assert data["divergence"]["ap2"]["kl_race"] < 0.2 * data["divergence"]["ap1"]["kl"]
    for unit in data["units"]:
        assert sum(unit["histogram"]["counts"]) == data["draws"] == 500
        assert unit["ap2"]["mean"] == pytest.approx(unit["draws"]["mean"], abs=0.3 * unit["draws"]["stddev"])
