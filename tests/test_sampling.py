"""Running moments lose nothing, whatever the chunks and however large the mean."""

import sys
import warnings
from types import ModuleType, SimpleNamespace

import pytest
import torch

import momentprop
from momentprop import sampling as monte_carlo
from momentprop.sampling import RunningCovariance, RunningMoments
from momentprop.values import JointEstimate


@pytest.mark.parametrize("shift", [0.0, 1e6])
@pytest.mark.parametrize("chunks", [[1000], [1, 999], [1] * 10 + [490, 500], [333, 333, 334]])
def test_moments_do_not_depend_on_the_chunks(chunks, shift):
    torch.manual_seed(0)
    draws = torch.distributions.Exponential(1.0).sample((1000, 3)).double() + shift
    moments = RunningMoments()
    for chunk in draws.split(chunks):
        moments.add(chunk)
    centred = draws - draws.mean(0)
    torch.testing.assert_close(moments.mean, draws.mean(0))
    for power, found in zip((2, 3, 4), moments.powers, strict=True):
        torch.testing.assert_close(found, (centred**power).sum(0), rtol=1e-6, atol=0)


def _stated_over_true_error_of_the_variance(runs):
    moments = RunningMoments()
    moments.add(runs.mT)  # each run is a unit of its own
    stated = moments.estimate(torch.float64).variance_error.square().mean().sqrt()
    return stated / runs.double().var(1).std()


def test_the_error_of_the_variance_knows_the_fourth_moment():
    torch.manual_seed(0)
    runs = torch.distributions.Exponential(1.0).sample((2000, 500))
    assert _stated_over_true_error_of_the_variance(runs) == pytest.approx(1.0, abs=0.1)


def test_the_variance_of_a_fair_coin_has_an_error_too():
    # its variance is the largest possible, so that the error is of second order; it is stated up to sqrt(3) too large
    torch.manual_seed(0)
    assert 1.0 < _stated_over_true_error_of_the_variance(torch.randint(2, (2000, 500))) < 1.8


def test_draws_are_made_within_the_memory(monkeypatch):
    sizes = []
    add = RunningMoments.add
    monkeypatch.setattr(RunningMoments, "add", lambda self, draws: (sizes.append(len(draws)), add(self, draws)))
    monkeypatch.setattr(monte_carlo, "MEMORY", 4 * 1000 * 4 * 10)
    monte_carlo.stream(lambda: [torch.randn(1000).exp().exp().exp()], 25)
    assert sizes == [1, 10, 10, 4]


def test_an_estimate_is_a_result_only():
    (estimate,) = monte_carlo.stream(lambda: [torch.randn(3)], 10)
    low, high = estimate.interval(0.5)
    torch.testing.assert_close(high - low, 2 * 0.6744897501960817 * estimate.stddev)
    with pytest.raises(NotImplementedError, match="no Estimate rule for 'relu'"):
        torch.relu(estimate)


def test_a_progress_bar_works_with_and_without_tqdm(monkeypatch):
    for modules in ({}, {"tqdm.auto": None}):
        with monkeypatch.context() as patched:
            for name, module in modules.items():
                patched.setitem(__import__("sys").modules, name, module)
            with monte_carlo.progress(3, "counting") as bar:
                bar.update(3)


def test_a_notebook_without_widgets_is_not_told_so(monkeypatch, recwarn):
    for name in ("tqdm.auto", "tqdm.autonotebook"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr("tqdm.notebook.IProgress", None)
    monkeypatch.setitem(sys.modules, "ipykernel.zmqshell", ModuleType("zmqshell"))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=object))
    warnings.simplefilter("always")
    with monte_carlo.progress(3, "counting") as bar:
        bar.update(3)
    assert [warning.message for warning in recwarn] == []


def test_moments_of_several_processes_merge_to_those_of_all_draws():
    torch.manual_seed(0)
    draws = torch.distributions.Exponential(1.0).sample((1000, 3)).double() + 100
    parts = []
    for part in draws.split([1, 399, 600]):
        parts.append(RunningMoments())
        parts[-1].add(part)
    joint, whole = RunningMoments(), RunningMoments()
    for part in (
        RunningMoments(),
        *parts,
        RunningMoments(),
    ):  # one without draws changes nothing
        joint.merge(part)
    whole.add(draws)
    found, wanted = joint.estimate(torch.float64), whole.estimate(torch.float64)
    for name in ("loc", "variance", "loc_error", "variance_error"):
        torch.testing.assert_close(getattr(found, name), getattr(wanted, name), rtol=1e-9, atol=0)


@pytest.mark.parametrize(
    "model",
    [
        lambda x: torch.zeros(()).index_fill(0, torch.tensor([0]), x),
        lambda x: x - torch.roll(x, 1),
        lambda x: x.expand(4).clone().as_strided_((2, 2), (2, 1)),
    ],
    ids=["index_fill", "roll", "as_strided_"],
)
def test_draws_are_right_where_vmap_is_wrong(model):
    found = momentprop.propagate(model, torch.tensor(1.0), input_variance=1.0, method="sample", samples=300, seed=0)
    torch.manual_seed(0)
    draws = torch.stack([model(1.0 + torch.randn(())) for _ in range(300)])
    assert found.shape == draws.shape[1:]
    torch.testing.assert_close(found.variance, draws.var(0), rtol=0.3, atol=0.0)


def test_draws_that_are_all_the_same_are_made_singly(monkeypatch):
    def one_for_all(function, **_):
        return lambda batch: tuple(draw.expand(len(batch), *draw.shape) for draw in function(batch[0]))

    monkeypatch.setattr(torch.func, "vmap", one_for_all)
    found = momentprop.propagate(
        torch.nn.Identity(), torch.ones(3), input_variance=1.0, method="sample", samples=300, seed=0
    )
    torch.testing.assert_close(found.variance, torch.ones(3), rtol=0.3, atol=0.0)


def test_the_covariance_of_draws_is_that_of_all_of_them_at_once() -> None:
    draws = torch.randn(50, 2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64).cumsum(-1) + 100
    for batch_dim, items in ((0, 2), (1, 3), (None, 1)):
        moments = RunningCovariance(batch_dim)
        for part in (draws[:1], draws[1:20], draws[20:]):
            moments.add(part)
        found = moments.estimate(torch.float64)
        assert isinstance(found, JointEstimate)
        rows = draws.flatten(1)[None] if batch_dim is None else draws.movedim(batch_dim + 1, 0).flatten(2)
        wanted = torch.stack([torch.cov(each.T) for each in rows])
        assert len(wanted) == items
        torch.testing.assert_close(found.covariance, wanted[0] if batch_dim is None else wanted)
        torch.testing.assert_close(found.variance, draws.var(0))
