"""Comparison of moments with draws."""

from torch import Tensor


def z_scores(draws: Tensor, mean: Tensor, variance: Tensor) -> tuple[float, float]:
    """Largest deviation of the draws' mean and variance (along dim 0) in units of their standard errors."""
    n = len(draws)
    center = draws - draws.mean(0)
    spread = center.square().mean(0)
    kurtosis = center.pow(4).mean(0) / spread**2
    error_of_variance = spread * ((kurtosis - 1) / n).sqrt()
    return (
        ((draws.mean(0) - mean) / (spread / n).sqrt()).abs().max().item(),
        ((spread - variance) / error_of_variance).abs().max().item(),
    )
