"""The units of the final output together: correlations by draws, and class posteriors by covariances."""

import pytest
import torch

from momentprop import Joint, Normal
from momentprop.checking.joint_output import JointOutput, log_posterior, marginal


def covariances(*shape):
    """Random covariances."""
    root = torch.randn(*shape, shape[-1], dtype=torch.float64)
    return root @ root.mT


def test_correlations_of_draws_are_those_of_torch():
    covariance = covariances(4, 3)
    values = {
        "joint": Joint.from_covariance(torch.zeros(4, 3, dtype=torch.float64), covariance),
        "ap2": Normal(torch.zeros(4, 3), 1.0),
    }
    draws = torch.randn(50, 4, 3, dtype=torch.float64) @ torch.randn(3, 3, dtype=torch.float64) + 100
    found = JointOutput(values)
    for some in draws.split([1, 19, 30]):
        found.add(some)
    found = found.correlations()
    for item in range(4):
        torch.testing.assert_close(found.truth[item], torch.corrcoef(draws[:, item].T))
    deviation = covariance.diagonal(dim1=1, dim2=2).sqrt()
    torch.testing.assert_close(found.methods["joint"], covariance / deviation[:, :, None] / deviation[:, None])
    assert found.methods["ap2"] is None
    assert found.varies.all()


def test_without_a_joint_method_or_with_one_unit_there_is_nothing_to_correlate():
    found = JointOutput({"ap2": Normal(torch.zeros(4, 3), 1.0)})
    found.add(torch.randn(5, 4, 3))
    assert found.correlations() is None
    found = JointOutput({"joint": Joint(torch.zeros(4, 1), 1.0)})
    found.add(torch.randn(5, 4, 1))
    assert found.correlations() is None


def test_units_that_do_not_vary_correlate_with_nothing():
    draws = torch.randn(30, 2, 3)
    draws[..., 1] = -torch.inf  # a masked logit
    found = JointOutput({"joint": Joint(torch.zeros(2, 3), torch.tensor([1.0, 0.0, 1.0]))})
    found.add(draws)
    found = found.correlations()
    assert found.varies.tolist() == [[True, False, True]] * 2
    for matrix in (found.truth, found.methods["joint"]):
        assert matrix.isfinite().all()
        assert (matrix[:, 1] == 0).all()


def drawn(loc, covariance, count=200_000):
    """The class posterior by draws."""
    noise = torch.randn(count, len(loc), dtype=torch.float64) @ torch.linalg.cholesky(covariance).T
    return (loc + noise).softmax(-1).mean(0)


def test_the_posterior_of_a_vector_is_that_of_its_covariance():
    loc, covariance = torch.randn(2, 4, dtype=torch.float64), covariances(2, 4)
    found = log_posterior(Joint.from_covariance(loc, covariance), -1).exp()
    for item in range(2):
        torch.testing.assert_close(found[item], drawn(loc[item], covariance[item]), rtol=0, atol=5e-3)


def test_the_posterior_of_an_image_takes_the_covariance_at_each_pixel():
    loc, covariance = torch.randn(2, 3, 2, 1, dtype=torch.float64), covariances(2, 6)
    found = log_posterior(Joint.from_covariance(loc, covariance), -3).exp()
    assert found.shape == (2, 2, 1, 3)
    for item in range(2):
        for pixel in range(2):
            units = [2 * channel + pixel for channel in range(3)]
            wanted = drawn(loc[item, :, pixel, 0], covariance[item][units][:, units])
            torch.testing.assert_close(found[item, pixel, 0], wanted, rtol=0, atol=5e-3)


def test_a_masked_class_has_no_probability():
    loc = torch.tensor([[0.0, -torch.inf, 1.0]])
    covariance = torch.diag(torch.tensor([1.0, 0.0, 1.0])).unsqueeze(0)
    found = log_posterior(Joint.lazy(loc, lambda: covariance), -1).exp()
    assert found[0, 1] < 1e-100
    assert float(found.sum()) == pytest.approx(1, abs=1e-6)


def test_marginals_are_units_by_themselves():
    value = Joint.from_covariance(torch.zeros(2), torch.tensor([[1.0, 0.5], [0.5, 2.0]]))
    assert type(marginal(value)) is Normal
    assert marginal(value).variance.tolist() == pytest.approx([1.0, 2.0])
    alone = Normal(torch.zeros(2), 1.0)
    assert marginal(alone) is alone
