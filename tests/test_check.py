"""What `check` measures: figures against closed forms, their floors and worths by simulation, all kinds of models."""

import math
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import momentprop
from momentprop import Normal, check, propagate
from momentprop.checking import metrics
from momentprop.checking.accumulators import Coverage, Histogram
from momentprop.checking.call import batch_size
from momentprop.checking.methods import functions
from momentprop.checking.picked_units import UnitPicker, leaves
from momentprop.sampling import RunningMoments
from tests.networks import mlp

X = torch.randn(12, 6, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def _estimate(draws: Tensor):
    moments = RunningMoments()
    moments.add(draws)
    return moments.estimate(torch.float64)


def _changed(change):
    """A method that changes the output of AP2."""

    def method(model, x, *, record, **options):
        y, inside = propagate(model, x, record=True, **options)
        return (change(y), inside) if record else change(y)

    return method


# Figures


def test_exact_moments_of_a_linear_network_are_at_the_floor():
    x = torch.randn(500, 6)  # outputs of one input vary together, those of different inputs do not
    report = check(nn.Linear(6, 12), x, input_variance=torch.rand(6), samples=1000, classes=None)
    module = report["output"]
    ap2, floor = module.methods["ap2"], module.floor
    assert ap2.eps_mean == pytest.approx(floor.eps_mean, rel=0.1)
    assert ap2.rms_log_std == pytest.approx(floor.rms_log_std, rel=0.1)
    assert 1 / floor.eps_std < ap2.eps_std < floor.eps_std
    assert ap2.correlation == pytest.approx(floor.correlation, abs=0.02)
    for level in ("50", "90", "99"):
        assert abs(ap2.coverage[level] - float(level) / 100) < 4 * floor.coverage[level]


def test_a_wrong_method_shows_the_error_it_has():
    off = _changed(lambda y: Normal(y.loc + 2 * y.stddev, 0.25 * y.variance))
    model = nn.Linear(6, 50)
    report = check(model, X, input_variance=0.1, methods=[("off", off)], classes=None)
    found = report["output"].methods["off"]
    assert found.eps_mean == pytest.approx(2, abs=0.05)
    assert found.eps_std == pytest.approx(0.5, abs=0.02)
    assert found.rms_log_std == pytest.approx(math.log(2), abs=0.03)
    # |z| < 0.6745/2 about 2: Phi(-1.66) - Phi(-2.34)
    assert found.coverage["50"] == pytest.approx(0.0385, abs=0.01)
    assert found.worth_mean == pytest.approx(2 / math.pi / 4, rel=0.05)


class Law(NamedTuple):
    """Independent units of which everything is known."""

    draw: object
    mean: float
    stddev: float


LAWS = {
    "normal": Law(lambda n, units: torch.randn(n, units, dtype=torch.float64), 0.0, 1.0),
    "exponential": Law(lambda n, units: torch.empty(n, units, dtype=torch.float64).exponential_(), 1.0, 1.0),
    "uniform": Law(lambda n, units: torch.rand(n, units, dtype=torch.float64), 0.5, 12**-0.5),
    "binary": Law(lambda n, units: (torch.rand(n, units) < 0.3).double(), 0.3, 0.21**0.5),
}


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_floors_are_what_exact_moments_show(law):
    samples, units = 500, 4000
    scale = torch.linspace(0.9, 1.1, units, dtype=torch.float64)
    truth = _estimate(law.draw(samples, units) * scale)
    mean, stddev = law.mean * scale, law.stddev * scale
    assert metrics.eps_mean(mean, truth) == pytest.approx(metrics.eps_mean_floor(samples), rel=0.05)
    assert metrics.rms_log_std(stddev, truth) == pytest.approx(metrics.rms_log_std_floor(truth), rel=0.05)
    assert metrics.correlation(stddev, truth) == pytest.approx(metrics.correlation_ceiling(truth), abs=0.02)
    assert 1 / metrics.eps_std_floor(truth) < metrics.eps_std(stddev, truth) < metrics.eps_std_floor(truth)


def test_the_floor_of_deviations_holds_for_units_that_vary_together():
    ratios = []
    for _ in range(200):
        truth = _estimate(torch.randn(300, 1, dtype=torch.float64).expand(300, 5))
        ratios.append(math.log(metrics.eps_std(torch.ones(5, dtype=torch.float64), truth)))
    measured = torch.tensor(ratios).square().mean().sqrt().item()
    assert measured == pytest.approx(math.log(metrics.eps_std_floor(truth)), rel=0.15)


def _softmax_draws(samples: int, rows: int) -> Tensor:
    logits = torch.linspace(0, 2, 5, dtype=torch.float64) + torch.randn(samples, rows, 5, dtype=torch.float64)
    return logits.softmax(-1)


def test_the_floor_of_a_divergence_is_that_of_the_exact_posterior():
    exact = _softmax_draws(400_000, 1).mean(0)
    draws = _softmax_draws(500, 400)
    measured = metrics.divergence(draws.mean(0), exact.log())
    assert measured == pytest.approx(metrics.divergence_floor(draws.mean(0), draws.var(0), 500), rel=0.1)


@pytest.mark.parametrize("count", [50, 200])
def test_the_mean_of_so_many_draws_is_worth_so_many(count):
    truth = _estimate(torch.randn(1000, 20_000, dtype=torch.float64))
    method = _estimate(torch.randn(count, 20_000, dtype=torch.float64))
    error, floor = metrics.eps_mean(method.loc, truth), metrics.eps_mean_floor(1000)
    assert metrics.worth(error**2, floor**2, 1000) == pytest.approx(count, rel=0.1)
    error, floor = metrics.rms_log_std(method.stddev, truth), metrics.rms_log_std_floor(truth)
    assert metrics.worth(error**2, floor**2, 1000) == pytest.approx(count, rel=0.1)


def test_a_posterior_of_so_many_draws_is_worth_so_many():
    truth, method = _softmax_draws(1000, 2000), _softmax_draws(50, 2000).mean(0)
    floor = metrics.divergence_floor(truth.mean(0), truth.var(0), 1000)
    divergence = metrics.divergence(truth.mean(0), method.log())
    assert metrics.worth(divergence, floor, 1000) == pytest.approx(50, rel=0.15)


def test_errors_that_are_all_equal_look_at_most_a_seventh_smaller():
    samples, units = 1000, 100_000
    noise = torch.randn(units, dtype=torch.float64) / samples**0.5
    floor = metrics.eps_mean_floor(samples)
    for error in torch.linspace(0.01, 0.2, 20):
        seen = (error + noise).abs().mean().item()
        found = metrics.worth(seen**2, floor**2, samples)
        told = math.sqrt(2 / (math.pi * found))  # the error of so many draws
        if found < samples:
            assert 0.85 * error < told < 1.01 * error


def test_no_method_is_worth_more_than_the_draws():
    assert metrics.worth(0.9, 1.0, 1000) == 1000
    assert metrics.worth(1.01, 1.0, 1000) == 1000
    assert metrics.worth(3.0, 1.0, 1000) == 500


def test_a_check_finds_what_draws_are_worth():
    few = ("few", {"method": "sample", "samples": 40})
    report = check(nn.Linear(6, 500), X, input_variance=0.3, methods=[few], seed=1, classes=None)
    found = report["output"].methods["few"]
    # the draws of the method share a seed with the first draws of the check, which are a 25th of all
    assert found.worth_mean == pytest.approx(40, rel=0.15)
    assert found.worth_std == pytest.approx(40, rel=0.15)


# What is kept of the draws


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


def test_at_most_so_many_units_are_picked_and_always_the_same():
    picker = UnitPicker(10)
    loc = torch.arange(100.0).reshape(4, 25)
    one, other = picker("a", Normal(loc, 1.0))["a"], picker("b", Normal(loc + 0.5, 1.0))["b"]
    assert torch.equal(one.loc + 0.5, other.loc)
    assert len(one.loc.unique()) == 10
    assert picker.shapes == {"a": (4, 25), "b": (4, 25)}
    assert picker("c", Normal(loc[:2, :5], 1.0))["c"].loc.tolist() == loc[:2, :5].flatten().tolist()


def test_picking_units_hardly_changes_the_figures():
    model = nn.Sequential(nn.Linear(6, 2000), nn.ReLU()).eval()
    all_units = check(model, X, input_variance=0.5, units=None, samples=300)["output"]
    some = check(model, X, input_variance=0.5, units=5000, samples=300)["output"]
    assert (all_units.units, some.units, some.total) == (24_000, 5000, 24_000)
    for name in ("ap1", "ap2"):
        assert some.methods[name].eps_mean == pytest.approx(all_units.methods[name].eps_mean, rel=0.05)
    assert some.methods["ap2"].eps_std == pytest.approx(all_units.methods["ap2"].eps_std, rel=0.02)


def test_draws_are_those_of_propagate():
    model = mlp().eval()
    options = {"input_variance": 0.2, "dropout": True, "samples": 200, "seed": 3}
    drawn = propagate(model, X, method="sample", **options)
    shown = check(model, X, **options).examples[1].units[2]
    assert shown.loc == pytest.approx(drawn.loc[1, 2].item(), abs=1e-5)
    assert shown.stddev == pytest.approx(drawn.stddev[1, 2].item(), abs=1e-5)


def test_a_check_is_repeatable_and_leaves_everything_as_it_was():
    model = mlp().eval()
    state = torch.get_rng_state()

    def numbers():
        found = check(model, X, input_variance=0.1, dropout=True, samples=50).to_dict()
        return {name: found[name] for name in ("modules", "posterior", "examples")}

    assert numbers() == numbers()
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(module.training or module._forward_hooks for module in model.modules())


# Units that do not vary


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.relu = nn.ReLU()

    def forward(self, x):
        return self.relu(x * torch.tensor([1.0, 1.0, 0.0]) + torch.tensor([0.0, -100.0, 1.0]))


def test_units_that_do_not_vary_are_counted_and_left_out():
    report = check(Gate(), torch.zeros(4, 3), input_variance=1.0, samples=400, classes=None)
    module = report["relu"]
    assert (module.units, module.zero) == (12, 8)
    ap2 = module.methods["ap2"]
    assert ap2.zero == 0
    assert ap2.eps_std == pytest.approx(1, abs=0.1)
    assert ap2.eps_mean < 0.15
    assert ap2.coverage["50"] == pytest.approx(0.284, abs=0.05)  # P(0.005 < Z < 0.793) of a standard normal variable


def test_units_that_a_method_takes_for_certain_are_counted():
    blind = _changed(lambda y: Normal(y.loc, y.variance * torch.tensor([0.0, 1.0])))
    found = check(nn.Linear(6, 2), X, input_variance=0.1, methods=[("blind", blind)])["output"].methods["blind"]
    assert found.zero == 12
    assert found.eps_std == pytest.approx(1, abs=0.05)
    assert found.coverage["90"] == pytest.approx(0.45, abs=0.02)  # half of the units are covered, half never


def test_nothing_random_is_an_error():
    with pytest.raises(ValueError, match="nothing in the model is random: give an `input_variance`"):
        check(mlp().eval(), X, samples=5)


# Models of all kinds


class Structured(nn.Module):
    """A dictionary with a tuple as the output, a layer that is called twice, and one that is called `output`."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.output = nn.Linear(6, 4)

    def forward(self, x, *, scale):
        hidden = torch.relu(self.layer(torch.relu(self.layer(x))))
        return {"hidden": (hidden, 3), "logits": scale * self.output(hidden)}


def test_structured_outputs_and_repeated_modules_are_named():
    report = check(Structured(), X, input_variance=0.1, samples=50, scale=2.0)
    assert list(report.modules) == ["layer", "layer#2", "output", "(output).hidden[0]", "(output).logits"]
    assert report.output == "(output).logits"
    assert report.posterior.classes == 4
    assert report["layer#2"].type == "Linear"
    assert report["(output).logits"].type == "Structured"


def test_a_container_is_not_shown_beside_the_module_whose_output_it_gives():
    report = check(nn.Sequential(nn.Sequential(nn.Linear(6, 3), nn.ReLU()), nn.Tanh()), X, input_variance=1, samples=20)
    assert report["0"].same_as == "0.1"
    assert list(report.rows) == ["0.0", "0.1", "1", "output"]


def test_a_regression_has_no_class_posterior():
    report = check(nn.Sequential(nn.Linear(6, 1), nn.Flatten(0)), X, input_variance=0.1, samples=50)
    assert report.posterior is None
    assert [len(example.units) for example in report.examples] == [1, 1, 1]
    assert not report.examples[0].probabilities
    assert check(nn.Linear(6, 3), X, input_variance=0.1, samples=50, classes=None).posterior is None


def test_tokens_with_dropout_are_checked():
    model = nn.Sequential(nn.Embedding(10, 8), nn.Dropout(0.3), nn.Linear(8, 5)).eval()
    report = check(model, torch.randint(10, (4, 7)), dropout=True, samples=300, classes=-1)
    assert report["0"].zero == report["0"].units
    assert report["0"].methods["ap2"].eps_mean is None
    assert report.posterior.classes == 5
    assert report["output"].methods["ap2"].eps_mean < 0.07
    assert report.posterior.methods["ap2"]["kl_race"] < 2e-3


def test_a_function_is_checked_at_its_output():
    def model(x):
        return torch.relu(x)

    report = check(model, X, input_variance=0.3, samples=100)
    assert list(report.modules) == ["output"]
    assert (report.model, report["output"].type) == ("model", "function")


class LogProbabilities(nn.Module):
    def __init__(self, softmax):
        super().__init__()
        self.linear, self.softmax = nn.Linear(6, 4), softmax

    def forward(self, x):
        return self.softmax(self.linear(x))


@pytest.mark.parametrize(
    "softmax", [nn.LogSoftmax(-1), momentprop.nn.Softmax(), nn.Softmax(-1)], ids=["log", "posterior", "transform"]
)
def test_a_model_that_ends_in_a_class_posterior_is_compared_with_that_of_the_draws(softmax):
    report = check(LogProbabilities(softmax), X, input_variance=0.5, samples=2000)
    assert report.posterior.methods["ap2"]["kl"] < report.posterior.methods["ap1"]["kl"]
    assert report.posterior.methods["ap2"]["kl"] < 2e-3
    assert report.summary
    assert report.to_html()


def test_a_value_may_be_the_input():
    model = nn.Linear(6, 3)
    by_value = check(model, Normal(X, 0.2), samples=60)
    by_number = check(model, X, input_variance=0.2, samples=60)
    assert by_value["output"] == by_number["output"]


def test_the_posteriors_are_those_of_the_softmax_approximations():
    model = nn.Linear(6, 4)
    report = check(model, X, input_variance=1.0, samples=4000)
    y = propagate(model.double(), X.double(), input_variance=1.0)
    truth = propagate(lambda x: model(x).softmax(-1), X.double(), method="sample", input_variance=1.0, samples=4000).loc
    for method in ("simplified", "logistic", "race"):
        q = momentprop.functional.class_posterior(y, -1, method)
        wanted = F.kl_div(q.logits.log_softmax(-1), truth, reduction="batchmean").item()
        assert report.posterior.methods["ap2"][f"kl_{method}"] == pytest.approx(wanted, rel=0.1, abs=1e-4)
    assert list(report.posterior.methods["ap1"]) == ["kl"]


def test_examples_show_the_inputs_that_were_chosen():
    model = nn.Linear(6, 4)
    x = torch.randn(5, 3, 6)  # five inputs of three positions, of which the first is shown
    report = check(model, x, input_variance=0.5, samples=50, classes=-1, show=(4, 1), class_names=["a", "b", "c", "d"])
    wanted = momentprop.functional.class_posterior(propagate(model, x, input_variance=0.5)).loc
    assert [example.name for example in report.examples] == ["input 4", "input 1"]
    for example, i in zip(report.examples, (4, 1), strict=True):
        assert example.probabilities["ap2"] == pytest.approx(wanted[i, 0].tolist(), abs=1e-5)
        assert example.probabilities["sampled"] == pytest.approx(wanted[i, 0].tolist(), abs=0.1)
        assert [unit.name for unit in example.units] == ["a", "b", "c", "d"]
        assert [unit.moments["ap1"][0] for unit in example.units] == pytest.approx(model(x)[i, 0].tolist(), abs=1e-5)
        assert [sum(unit.counts) for unit in example.units] == [50] * 4


def test_images_of_logits_have_a_posterior_at_every_pixel():
    class Segmenter(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(1, 3, 3)

        def forward(self, x):
            return {"logits": self.conv(x)}

    report = check(Segmenter(), torch.randn(2, 1, 6, 6), input_variance=0.1, samples=200)
    assert report.posterior.classes == 3
    assert report.posterior.methods["ap2"]["kl_race"] < 1e-3
    assert report.examples[1].picture.startswith("data:image/png;base64,")


def test_a_model_of_transformers_is_checked():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, num_labels=3
    )
    model = transformers.BertForSequenceClassification(config).eval()
    ids = torch.randint(50, (3, 5))
    mask = torch.ones_like(ids)
    report = check(model, ids, attention_mask=mask, dropout=True, samples=200)
    assert report.output == "output.logits"
    assert report.posterior.classes == 3
    assert report["output.logits"].methods["ap2"].eps_mean < report["output.logits"].methods["ap1"].eps_mean + 0.02
    assert "bert.encoder.layer.0.attention.self[0]" in report.modules


@pytest.mark.full
def test_a_residual_network_is_checked():
    from tests.architectures import ARCHITECTURES
    from tests.architectures.state import images

    model = next(case for case in ARCHITECTURES if case.name == "ResNet-18").build()
    report = check(model, images(16, 64), input_variance=0.01)
    assert report["output"].methods["ap2"].eps_mean < 0.2 * report["output"].methods["ap1"].eps_mean


# Methods


def test_methods_have_names_options_or_functions():
    def mine(model, x, **options):
        return propagate(model, x, **options)

    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    methods = ["ap1", "ap2", "ap2-logistic", ("fitted", {"family": "fitted"}), ("mine", mine)]
    report = check(model, X, input_variance=0.2, methods=methods, samples=50)
    assert report.methods == ["ap1", "ap2", "ap2-logistic", "fitted", "mine"]
    found = report["output"].methods
    assert found["mine"] == found["ap2"]
    assert found["ap2-logistic"] != found["ap2"] != found["fitted"]
    assert report.cost["mine"].nominal is None
    assert (report.cost["ap1"].nominal, report.cost["ap2"].nominal) == (1, 2)
    assert all(cost.measured > 0.5 for cost in report.cost.values())


def test_options_of_a_method_go_before_those_of_the_check():
    def model(x):
        return torch.special.zeta(x + 3, 2.0)  # which has no rule

    with pytest.raises(momentprop.MissingRule, match="zeta"):
        check(model, X.exp(), input_variance=1e-4, samples=50)
    methods = [("sampled", {"fallback": "monte_carlo"})]
    report = check(model, X.exp(), input_variance=1e-4, samples=200, methods=methods)
    assert report["output"].methods["sampled"].eps_mean < 0.2


def test_a_calibration_is_one_more_method():
    found = functions(("ap1", "ap2"), calibration=object())
    assert list(found) == ["ap1", "ap2", "ap2-calibrated"]
    with pytest.raises(AttributeError, match="'object' object has no attribute 'corrections'"):
        found["ap2-calibrated"](nn.ReLU(), X)


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        (["ap3"], "unknown method 'ap3': choose from 'ap1', 'ap2'"),
        ([], "methods must be one or more"),
        (["ap1", ("ap1", {})], "each with a name of its own"),
    ],
)
def test_bad_methods_are_refused(methods, message):
    with pytest.raises(ValueError, match=message):
        check(nn.Linear(6, 3), X, input_variance=0.1, methods=methods)


def test_a_single_name_is_no_sequence_of_methods():
    with pytest.raises(TypeError, match=r"write `methods=\('ap2',\)`"):
        check(nn.Linear(6, 3), X, input_variance=0.1, methods="ap2")


def test_too_few_draws_and_running_statistics_are_refused():
    with pytest.raises(ValueError, match="at least 2 samples, but samples is 1"):
        check(nn.Linear(6, 3), X, input_variance=0.1, samples=1)
    with pytest.raises(ValueError, match=r"draws would change the running statistics .*call `model.eval\(\)`"):
        check(nn.BatchNorm1d(6), X, input_variance=0.1)
    with pytest.raises(ValueError, match="has no floating-point tensor to check"):
        check(lambda x: {"classes": 3}, X, input_variance=0.1, samples=3)


def test_inputs_are_counted_by_the_first_tensor():
    from momentprop.checking.call import Call

    assert batch_size(Call(mlp(), (), {"x": Normal(X, 1.0)}, {}, 0)) == 12
    assert batch_size(Call(mlp(), (torch.tensor(1.0),), {}, {}, 0)) == 1
    assert [name for name, _ in leaves([Normal(X, 1.0), {"a": X}], "y")] == ["y[0]"]
