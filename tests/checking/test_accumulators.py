"""What is kept of the draws: histograms and coverage."""

import torch

from momentprop import Normal
from momentprop.checking.accumulators import Coverage, Histogram


def test_a_histogram_counts_every_draw_in_its_bin_however_far():
    draws = torch.randn(1000, 3, dtype=torch.float64) * torch.tensor([1.0, 100.0, 1e-6]) + 5.0
    histogram = Histogram(torch.full((3,), 5.0), torch.full((3,), 0.01))
    for part in draws.split(77):
        histogram.add(part)
    assert histogram.counts.sum(1).tolist() == [1000] * 3
    for unit in range(3):
        start = histogram.center[unit] - histogram.width[unit] * Histogram.BINS / 2
        bins = ((draws[:, unit] - start) / histogram.width[unit]).floor().long()
        assert torch.equal(histogram.counts[unit], torch.bincount(bins, minlength=Histogram.BINS))


def test_coverage_counts_draws_inside():
    value = Normal(torch.zeros(2), torch.tensor([1.0, 4.0]))
    coverage = Coverage(value, (0.5, 0.9))
    draws = torch.tensor([[0.6, 0.6], [0.7, 1.3], [1.7, 1.7], [-1.6, -5.0]], dtype=torch.float64)
    coverage.add(draws[:1])
    coverage.add(draws[1:])
    assert coverage.counts.tolist() == [[1, 2], [3, 3]]
