import pytest
import torch
from torch.distributions import Normal, TransformedDistribution, Uniform
from torch.distributions.transforms import AffineTransform, ExpTransform

from momentprop.torch_compat.distributions import mapped
from tests.torch_compat.gone import loaded_without


def test_every_tensor_moves_and_the_original_stays() -> None:
    given = TransformedDistribution(
        Normal(torch.zeros(2), torch.ones(2)), [ExpTransform(), AffineTransform(torch.ones(2), 2.0).inv]
    )
    moved = mapped(given, torch.Tensor.double)
    assert moved.base_dist.loc.dtype == torch.float64
    assert moved.sample().dtype == torch.float64
    assert given.base_dist.loc.dtype == torch.float32


def test_a_copy_does_not_check_its_arguments() -> None:
    given = Uniform(torch.zeros(1), torch.ones(1), validate_args=True)
    with pytest.raises(ValueError, match="support"):
        given.cdf(torch.tensor([2.0]))
    assert float(mapped(given, torch.clone).cdf(torch.tensor([2.0]))) == 1


def test_without_checks_to_switch_off_a_copy_is_made_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    module = loaded_without("torch.distributions.Distribution._validate_args", "distributions", monkeypatch)
    assert module.mapped(Uniform(torch.zeros(1), torch.ones(1)), torch.Tensor.double).low.dtype == torch.float64
