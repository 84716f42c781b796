"""Calibration: corrections that make AP2 hold in deep networks, fitted to draws, kept in a file, applied anywhere."""

import copy
import json
import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import momentprop
from momentprop import AsTensors, Calibration, CalibrationWarning, Normal, calibrate, calibrated, check, propagate
from momentprop.calibration import channel_map, corrections, regression
from momentprop.calibration.calibrate import drawn_inputs, together
from momentprop.calibration.fit import PlaceFit
from momentprop.calibration.operations import Place
from momentprop.dispatch.context import Watcher
from momentprop.propagate import Recording, prepared
from tests.networks import ConvNet, TransformerBlock, mlp, trained_looking

X = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
NEW = torch.randn(12, 6, generator=torch.Generator().manual_seed(1))


class Deep(nn.Module):
    """Layers whose weights are positive on average, so that units soon vary together."""

    def __init__(self, depth: int = 6, width: int = 24) -> None:
        super().__init__()
        sizes = [6] + [width] * depth
        self.layers = nn.ModuleList(nn.Linear(sizes[i], sizes[i + 1]) for i in range(depth))
        self.last = nn.Linear(width, 3)
        for layer in self.layers:
            nn.init.normal_(layer.weight, 1.5 / layer.in_features, layer.in_features**-0.5)

    def forward(self, x):
        for layer in self.layers:
            x = F.leaky_relu(layer(x), 0.1)
        return self.last(x)


class Spellings(nn.Module):
    """Mixing operations in many spellings, and one layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.twice = nn.Conv2d(4, 4, 3, padding=1)
        self.weight = nn.Parameter(torch.randn(4, 5))

    def forward(self, x):
        x = self.conv(x).relu()
        y = self.twice(self.twice(x).relu())
        y += x
        y = F.relu(y - F.avg_pool2d(F.pad(x, (1, 1, 1, 1)), 3, 1), inplace=True)
        y = y + torch.tanh(y)  # a function of one value
        return y.mean((2, 3)) @ self.weight + x.sum(dim=(-1, -2), keepdim=True).mean()


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def deep():
    torch.manual_seed(0)
    model = Deep().eval()
    return model, calibrate(model, X, input_variance=0.1, samples=400)


@pytest.fixture(scope="module")
def levels():
    torch.manual_seed(0)
    model = mlp().eval()
    return model, calibrate(model, X, input_variance=[0.5, 0.02], samples=60)


def _components(value):
    return value.loc, value.variance


# What it is for


def test_it_removes_most_of_the_error_in_a_deep_network(deep):
    model, calibration = deep
    report = check(model, torch.randn(100, 6), input_variance=0.1, samples=1000, calibration=calibration)
    plain, corrected = (report["output"].methods[name] for name in ("ap2", "ap2-calibrated"))
    assert plain.eps_std < 0.35
    assert 0.9 < corrected.eps_std < 1.1
    assert corrected.rms_log_std < 0.25 * plain.rms_log_std


def test_check_shows_it_beside_the_other_methods(deep, tmp_path):
    model, calibration = deep
    report = check(model, NEW, input_variance=0.1, samples=50, calibration=calibration)
    assert report.methods == ["ap1", "ap2", "ap2-calibrated"]
    assert "ap2-calibrated" in str(report)
    report.save_html(tmp_path / "report.html")
    assert "ap2-calibrated" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("features", ["all", "state", "variance", "channel"])
def test_a_layer_of_independent_inputs_needs_no_correction(features):
    layer = nn.Linear(6, 16)
    calibration = calibrate(layer, X, input_variance=0.1, samples=500, features=features)
    (found,) = calibration.quality["'linear'"]
    assert found.factors == pytest.approx((1, 1, 1), abs=0.01)
    found = propagate(layer, NEW, input_variance=0.1, calibration=calibration)
    assert (found.variance / layer(Normal(NEW, 0.1)).variance).log().abs().max() < 0.1


# Where corrections are


def test_every_mixing_operation_has_a_place():
    model = Spellings().eval()
    calibration = calibrate(model, torch.randn(8, 2, 5, 5), input_variance=0.1, samples=20)
    found = [(place.path, place.op, place.call, place.dims, place.channels) for place in calibration.places]
    assert found == [
        ("conv", "conv2d", 1, (-3,), 4),
        ("twice", "conv2d", 1, (-3,), 4),
        ("twice", "conv2d", 2, (-3,), 4),
        ("", "add", 1, (-3,), 4),
        ("", "avg_pool2d", 1, (-3,), 4),
        ("", "sub", 1, (-3,), 4),
        ("", "add", 2, (), 1),
        ("", "mean", 1, (-1,), 4),
        ("", "matmul", 1, (-1,), 5),
        ("", "sum", 1, (-3,), 4),
        ("", "mean", 2, (), 1),
        ("", "add", 3, (-1,), 5),
    ]
    assert [place.corrected for place in calibration.places].count(False) == 1
    assert not calibration.places[6].corrected  # `y + tanh(y)` is evaluated as one function, which has no channels


def test_attention_is_corrected_by_head_and_scores_are_left_alone():
    model = TransformerBlock().eval()
    calibration = calibrate(model, torch.randn(6, 5, 8), input_variance=0.1, samples=20)
    found = {(place.path, place.op, place.call): place for place in calibration.places}
    assert found["layer.self_attn", "scaled_dot_product_attention", 1].dims == (-3, -1)
    assert found["layer.self_attn", "linear", 1].channels == 24
    assert not found["", "matmul", 1].corrected
    assert found["", "matmul", 2].corrected
    assert found["", "matmul", 2].dims == (-3, -1)
    assert found["", "matmul", 2].channels == 8
    assert found["layer.norm1", "layer_norm", 1].dims == (-1,)
    longer = propagate(model, torch.randn(2, 9, 8), input_variance=0.1, calibration=calibration)
    assert longer.variance.shape == (2, 9, 8)


def test_a_watcher_sees_operations_and_methods_but_not_what_rules_do_inside():
    class Names(Watcher):
        def __init__(self):
            self.names = []

        def after(self, op, args, kwargs, result):
            self.names.append(op)
            return result

    def model(x):
        return torch.softmax(x.var(-1, keepdim=True) + F.normalize(x), -1).mean()

    names = Names()
    recording = Recording(model, Normal, False)
    with prepared(model, (X,), {}, Normal, recording, 0.1, False, None, None, names) as run:
        run()
    assert names.names == ["var", "normalize", "add", "softmax", "mean"]


def test_a_function_without_modules_can_be_calibrated():
    weight = torch.randn(6, 6)

    def model(x):
        return torch.relu(x @ weight) @ weight

    calibration = calibrate(model, X, input_variance=0.1, samples=50)
    assert [str(place) for place in calibration.places] == ["'matmul'", "'matmul' (call 2)"]
    assert propagate(model, NEW, input_variance=0.1, calibration=calibration).shape == (12, 6)


# Batches


def test_several_batches_fit_as_one_does(deep):
    model, one = deep
    several = calibrate(model, list(X.split(13)), input_variance=0.1, samples=400)
    assert several.about["inputs"] == 40
    assert several.about["batches"] == 4
    together, apart = (propagate(model, NEW, input_variance=0.1, calibration=each) for each in (one, several))
    assert (together.variance / apart.variance).log().abs().mean() < 0.1


def test_batches_may_be_tuples_dictionaries_values_and_of_several_shapes():
    model = ConvNet().eval()
    images, smaller = torch.randn(4, 3, 8, 8), torch.randn(3, 3, 6, 6)
    options = {"samples": 10, "seed": 1}
    wanted = calibrate(model, [images, smaller], input_variance=0.1, **options)
    for given in (
        [(images, torch.zeros(4)), [smaller, torch.zeros(3)]],
        iter([{"x": images}, {"x": smaller}]),
    ):
        assert torch.equal(calibrate(model, given, input_variance=0.1, **options).numbers, wanted.numbers)
    values = calibrate(model, (Normal(batch, 0.1) for batch in (images, smaller)), **options)
    assert torch.equal(values.numbers, wanted.numbers)
    assert values.noise.levels == pytest.approx((0.1,))


def test_the_seed_decides_and_generators_are_left_alone():
    model = mlp().eval()
    before = torch.get_rng_state()
    one, same = (calibrate(model, X, input_variance=0.1, samples=10, seed=3) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one.numbers, same.numbers)
    assert not torch.equal(one.numbers, calibrate(model, X, input_variance=0.1, samples=10, seed=4).numbers)


def test_inputs_can_be_drawn_from_statistics(deep):
    class Statistics:
        loc = torch.tensor([1.0, -2.0])
        variance = torch.tensor([4.0, 0.25])

    drawn = drawn_inputs(Statistics, (2, 16, 16), 200, 0)
    assert drawn.shape == (200, 2, 16, 16)
    torch.testing.assert_close(drawn.mean((0, 2, 3)), Statistics.loc, atol=0.1, rtol=0)
    torch.testing.assert_close(drawn.var((0, 2, 3)), Statistics.variance, rtol=0.1, atol=0)
    model, _ = deep
    free = calibrate(model, None, statistics=Normal(torch.zeros(6), 1.0), shape=(6,), input_variance=0.1, inputs=30)
    report = check(model, NEW, input_variance=0.1, samples=1000, calibration=free)
    assert abs(math.log(report["output"].methods["ap2-calibrated"].eps_std)) < 0.1
    with pytest.raises(ValueError, match="without batches, give `statistics`"):
        calibrate(model, None, input_variance=0.1)


# The regression


def _layer(inputs, channels=12, units=20, differ=0.5):
    """A feature and what it explains in every channel, with errors that the units of an input share."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    slopes, constants = 0.3 + differ * normal(channels), 1 + differ * normal(channels)
    feature = normal(inputs, channels, units)
    error = 0.5 * normal(inputs, channels, 1) + 0.2 * normal(inputs, channels, units)
    y = constants[:, None] + slopes[:, None] * feature + error
    return regression.products([feature, y], torch.ones_like(y).bool()), torch.stack((constants, slopes), 1)


def test_the_regression_finds_the_coefficients_of_every_channel():
    per_row, wanted = _layer(2000)
    torch.testing.assert_close(regression.fit(per_row, lambda x: x).coefficients, wanted, atol=0.05, rtol=0)


def test_channels_that_do_not_differ_get_the_numbers_of_the_layer():
    per_row, wanted = _layer(8, channels=200, differ=0.0)
    found = regression.fit(per_row, lambda x: x).coefficients
    alone = per_row.sum(0)
    naive = alone[:, 0, 2] / alone[:, 0, 0]  # the mean of each channel
    assert (found - wanted).square().mean(0)[0].sqrt() < 0.3 * (naive - 1).square().mean().sqrt()


def test_few_inputs_shrink_by_as_much_as_their_errors_say():
    per_row, wanted = _layer(4, channels=400, differ=0.3)
    found = regression.fit(per_row, lambda x: x).coefficients
    totals = per_row.sum(0)
    naive = (totals[:, 0, 2] / totals[:, 0, 0])[:, None]
    assert (found - wanted)[:, 0].square().mean() < 0.8 * (naive[:, 0] - wanted[:, 0]).square().mean()


def test_one_input_is_one_observation_and_an_empty_channel_gets_those_of_the_layer():
    per_row, _ = _layer(1)
    found = regression.fit(per_row, lambda x: x).coefficients
    assert found.isfinite().all()
    per_row, _ = _layer(50, differ=0.0)
    per_row[:, 3] = 0
    found = regression.fit(per_row, lambda x: x).coefficients
    assert found[3, 0] == pytest.approx(float(found[:, 0].median()), abs=0.1)
    nothing = regression.fit(torch.zeros(3, 2, 3, 3, dtype=torch.float64), lambda x: x)
    assert torch.equal(nothing.coefficients, torch.zeros(2, 2, dtype=torch.float64))


# What other channels tell


def _columns(noise=0.05, channels=20):
    """Units of 24 inputs that follow a map of rank 2 between channels, in two batches, and the map."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(24, channels, 30, generator=generator) - 3
    true = torch.randn(channels, 2, generator=generator) @ torch.randn(2, channels, generator=generator) / channels
    y = torch.einsum("ncp,cd->ndp", x + 3, true) + noise * torch.randn(x.shape, generator=generator)
    valid = torch.rand(x.shape, generator=generator) > 0.05
    return [(x[some], y[some], valid[some]) for some in (slice(10), slice(10, None))], true.double()


def test_a_map_between_channels_is_found_with_its_constant():
    columns, true = _columns()
    found = channel_map.fit(columns, lambda x: x)
    assert len(found.down) == channel_map.RANK
    assert (found.down.T @ found.up - true).norm() < 0.1 * true.norm()
    torch.testing.assert_close(found.constant, 3 * true.sum(0), atol=0.1, rtol=0)


def test_there_is_no_map_where_inputs_held_out_are_not_explained_by_it(monkeypatch):
    columns, _ = _columns()
    unrelated = [
        (x, torch.randn(y.shape, generator=torch.Generator().manual_seed(1)), valid) for x, y, valid in columns
    ]
    assert len(channel_map.fit(unrelated, lambda x: x).down) == 0
    monkeypatch.setattr(channel_map, "MOST", 19)
    assert len(channel_map.fit(columns, lambda x: x).down) == 0


@pytest.mark.parametrize("shape", [(5, 6), (2, 5, 6), (5, 6, 3), (5, 6, 3, 2)])
def test_a_map_acts_on_the_channels_wherever_they_are(shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    down, up = torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(1))
    channel = len(shape) - shape.index(6)
    wanted = (x.movedim(-channel, -1) @ down.T @ up).movedim(-1, -channel)
    torch.testing.assert_close(corrections.mapped(down, up, x, channel), wanted)


def test_a_correction_is_that_of_the_formula_with_the_map_in_it():
    generator = torch.Generator().manual_seed(0)
    loc, variance = torch.randn(2, 3, 4, 5, generator=generator), torch.rand(2, 3, 4, 5, generator=generator)
    numbers = 0.3 * torch.randn(corrections.rows("all", 2), 3, generator=generator)
    numbers[4], numbers[5] = -0.5, 0.5
    a, log_v = (loc / variance.sqrt()).clamp(-6, 6), variance.log()
    c, down, up = numbers[:4, :, None, None], numbers[6:8], numbers[8:10]
    exponent = c[0] + c[1] * log_v + c[2] * a + c[3] * a * a + torch.einsum("rc,rd,ndhw->nchw", up, down, log_v)
    assert (exponent.abs() > 0.5).any()
    wanted = variance * exponent.clamp(-0.5, 0.5).exp()
    torch.testing.assert_close(corrections.corrected("all", numbers[..., None, None], loc, variance), wanted)


def test_maps_of_several_levels_are_at_each_level_those_of_the_level():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(7, 6, generator=generator)
    fits = [
        PlaceFit(torch.zeros(6, 6), *torch.randn(2, rank, 6, generator=generator), (1.0, 1.0, 1.0), 0.0, 0.0)
        for rank in (2, 0, 3)
    ]
    for fit, numbers in zip(fits, together(fits), strict=True):
        down, up = numbers[6:].chunk(2)
        assert len(down) == 5
        torch.testing.assert_close(corrections.mapped(down, up, x, 1), corrections.mapped(fit.down, fit.up, x, 1))


# Levels and noise


def test_levels_are_interpolated_in_the_logarithm(levels):
    _, calibration = levels
    assert calibration.noise.levels == (0.02, 0.5)
    run = calibration.applied(calibration.numbers)
    for variance, share in ((0.02, 0.0), (0.1, 0.5), (0.5, 1.0), (0.6, 1.0), (0.018, 0.0)):
        run.start([Normal(X, variance)])
        wanted = torch.lerp(calibration.numbers[0], calibration.numbers[1], share)
        torch.testing.assert_close(run.numbers, wanted, rtol=1e-5, atol=1e-5)


def test_a_level_outside_the_fitted_range_is_warned_of(levels, deep):
    model, calibration = levels
    with pytest.warns(CalibrationWarning, match="variance is 2, outside the fitted range of 0.02 to 0.5"):
        propagate(model, NEW, input_variance=2.0, calibration=calibration)
    model, calibration = deep
    with pytest.warns(CalibrationWarning, match="outside the fitted range of 0.1 to 0.1"):
        propagate(model, NEW, calibration=calibration)
    with pytest.warns(CalibrationWarning, match="outside the fitted range"):
        calibrated(model, calibration)(Normal(NEW, 0.5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        propagate(model, NEW, input_variance=0.12, calibration=calibration)


def test_dropout_that_differs_from_the_fit_is_warned_of():
    model = mlp().eval()
    calibration = calibrate(model, X, dropout=True, samples=20)
    assert calibration.noise.dropout
    assert calibration.noise.levels == (0.0,)
    with pytest.warns(CalibrationWarning, match="dropout acted when the model was calibrated and does not act here"):
        propagate(model, NEW, calibration=calibration)
    assert propagate(model, NEW, dropout=True, calibration=calibration).variance.sum() > 0
    calibration = calibrate(model, X, input_variance=0.1, samples=20)
    with pytest.warns(CalibrationWarning, match="dropout did not act when the model was calibrated and acts here"):
        calibrated(model, calibration, dropout=True)


def test_other_families_and_methods_are_refused(deep):
    model, calibration = deep
    for options in ({"method": "ap1"}, {"method": "sample"}, {"family": "logistic"}):
        with pytest.raises(ValueError, match="the calibration is for method='ap2' with family='normal'"):
            propagate(model, NEW, input_variance=0.1, calibration=calibration, **options)
    fitted = calibrate(model, X, input_variance=0.1, samples=10, family="fitted")
    assert type(propagate(model, NEW, input_variance=0.1, family="fitted", calibration=fitted)) is momentprop.Fitted


# The model that was calibrated


def test_another_model_is_refused_with_what_differs(deep):
    model, calibration = deep
    for change, message in (
        (lambda m: m.last.register_buffer("more", torch.ones(2)), r"'last.more' has the shape \[2\] and had None"),
        (lambda m: nn.init.zeros_(m.last.weight), "the weights 'last.weight' have changed"),
        (lambda m: m.layers.append(nn.Tanh()), "module 'layers.6' is of class Tanh and was missing"),
        (lambda m: setattr(m, "last", nn.Linear(24, 2)), r"'last.weight' has the shape \[2, 24\] and had \[3, 24\]"),
    ):
        changed = copy.deepcopy(model)
        propagate(changed, NEW, input_variance=0.1, calibration=calibration)
        change(changed)
        with pytest.raises(momentprop.errors.UserError, match=message):
            propagate(changed, NEW, input_variance=0.1, calibration=calibration)


def test_a_model_in_another_precision_counts_as_the_same(deep):
    model, calibration = deep
    wide = copy.deepcopy(model).double()
    found = propagate(wide, NEW.double(), input_variance=0.1, calibration=calibration)
    wanted = propagate(model, NEW, input_variance=0.1, calibration=calibration)
    torch.testing.assert_close(found.variance.float(), wanted.variance, rtol=1e-3, atol=1e-5)
    half = copy.deepcopy(model).bfloat16()
    found = propagate(half, NEW.bfloat16(), input_variance=0.1, calibration=calibration)
    assert found.variance.dtype == torch.bfloat16
    torch.testing.assert_close(found.variance.float(), wanted.variance, rtol=0.2, atol=0.05)


def test_other_operations_than_the_calibrated_ones_are_refused():
    weight = torch.randn(6, 6)
    calibration = calibrate(lambda x: torch.relu(x @ weight) @ weight, X, input_variance=0.1, samples=10)
    for model, message in (
        (lambda x: F.linear(x, weight), "it has 'matmul' with 6 channels .* where the model has 'linear'"),
        (lambda x: x @ weight[:, :4], "with 6 channels .* a result of shape \\(12, 4\\)"),
        (lambda x: x @ weight, r"the model ended before 'matmul' \(call 2\)"),
        (lambda x: (x @ weight @ weight).sum(), "it has no further operation that mixes units, where .* 'sum'"),
    ):
        with pytest.raises(ValueError, match=f"the calibration does not fit: .*{message}"):
            propagate(model, NEW, input_variance=0.1, calibration=calibration)


# Bad arguments


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"samples": 1}, "at least 2 samples, but samples is 1"),
        ({"batches": []}, "there are no batches"),
        ({"batches": [X[:0]]}, "batch 0 is empty"),
        ({"input_variance": None}, "if nothing is random, give an `input_variance`"),
        ({"input_variance": 0.0}, "nothing in the model is random"),
        ({"input_variance": []}, "one or more positive numbers"),
        ({"input_variance": [0.0, 1.0]}, "one or more positive numbers"),
        ({"family": "gauss"}, "unknown family 'gauss'"),
        ({"features": "some"}, "unknown features 'some'"),
        ({"model": nn.BatchNorm1d(6)}, r"running statistics .*call `model.eval\(\)`"),
        ({"model": nn.ReLU()}, "no operation of the model mixes random units"),
    ],
)
def test_bad_arguments_are_refused(change, message):
    given = {"model": mlp().eval(), "batches": X, "input_variance": 0.1, "samples": 5, **change}
    with pytest.raises(ValueError, match=message):
        calibrate(given.pop("model"), given.pop("batches"), **given)


def test_a_batch_must_hold_a_tensor():
    with pytest.raises(TypeError, match=r"a batch must be a tensor, .* but is a str"):
        calibrate(mlp().eval(), ["x"], input_variance=0.1)


def test_moments_that_are_not_finite_are_refused():
    model = mlp().eval()
    model[2].weight.data[0, 0] = float("nan")
    with pytest.raises(ValueError, match="gave NaN or infinite moments at 'linear' in '2'"):
        calibrate(model, X, input_variance=0.1, samples=5)


# Files and words


def test_a_calibration_is_saved_and_loaded(levels, tmp_path):
    model, calibration = levels
    path = tmp_path / "mlp.safetensors"
    calibration.save(path)
    loaded = Calibration.load(path)
    assert loaded.to_dict() == calibration.to_dict() == json.loads((tmp_path / "mlp.json").read_text())
    assert torch.equal(loaded.numbers, calibration.numbers)
    found, wanted = (propagate(model, NEW, input_variance=0.1, calibration=each) for each in (loaded, calibration))
    assert torch.equal(found.variance, wanted.variance)


def test_files_that_hold_no_calibration_are_refused(levels, tmp_path):
    from momentprop.training import checkpoint

    path = tmp_path / "other.safetensors"
    checkpoint.write(path, checkpoint.Checkpoint({}, {"x": torch.ones(1)}))
    with pytest.raises(ValueError, match="does not hold a calibration"):
        Calibration.load(path)
    content = {**levels[1].to_dict(), "format": 99}
    checkpoint.write(path, checkpoint.Checkpoint({"calibration": content}, {"numbers": torch.ones(1)}))
    with pytest.raises(ValueError, match="has format 99, but this version reads"):
        Calibration.load(path)
    path.write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="is damaged or no safetensors file"):
        Calibration.load(path)


def test_it_prints_as_a_table(levels):
    _, calibration = levels
    lines = str(calibration).splitlines()
    assert lines[0] == "Calibration of Sequential: 3 operations, 40 inputs, 60 samples; input variance 0.02, 0.5"
    assert len(lines) == 4 + 3 * 2
    assert lines[-1].startswith("| 5 ")
    assert repr(calibration) == f"<{lines[0]}>"


# As a module, and together with the rest of torch


def test_the_wrapper_gives_what_propagate_does_and_leaves_the_model_alone(deep):
    model, calibration = deep
    before = copy.deepcopy(model.state_dict())
    runs = calibrated(model, calibration)
    wanted = propagate(model, NEW, input_variance=0.1, calibration=calibration)
    for given in (NEW, Normal(NEW, 0.1)):
        torch.testing.assert_close(_components(runs(given)), _components(wanted))
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert set(runs.state_dict()) == {f"model.{name}" for name in before}
    assert runs.double().numbers.dtype == torch.float64  # it moves with the module
    model.float()
    with pytest.raises(ValueError, match="the calibration is of another model"):
        calibrated(nn.Linear(6, 3), calibration)


def test_the_wrapper_takes_the_noise_of_the_fit(levels):
    model, calibration = levels
    with pytest.raises(ValueError, match="the noise of a plain input is unknown"):
        calibrated(model, calibration)(NEW)
    found = calibrated(model, calibration, input_variance=0.1)(NEW)
    assert torch.equal(found.variance, calibrated(model, calibration)(Normal(NEW, 0.1)).variance)
    dropping = calibrate(model, X, dropout=True, samples=20)
    found = calibrated(model, dropping)(NEW)
    assert torch.equal(found.variance, propagate(model, NEW, dropout=True, calibration=dropping).variance)


def test_gradients_reach_parameters_and_inputs(deep):
    model, calibration = deep
    model = copy.deepcopy(model)
    x = NEW.clone().requires_grad_()
    y = calibrated(model, calibration)(x)
    (y.loc.square().sum() + y.variance.log().sum()).backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    assert x.grad.abs().sum() > 0
    assert all(layer.weight.grad.abs().sum() > 0 for layer in model.layers)


@pytest.mark.parametrize("features", ["state", "variance", "channel"])
def test_corrections_are_differentiable_and_zero_variance_stays_zero(features):
    numbers = torch.randn(corrections.rows(features, 0), 4, dtype=torch.float64)
    if features != "channel":
        numbers[-2:] = torch.tensor([[-20.0], [20.0]])
    loc = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    variance = torch.rand(3, 4, dtype=torch.float64).add(0.1).requires_grad_()

    def function(loc, variance):
        return corrections.corrected(features, numbers, loc, variance)

    assert torch.autograd.gradcheck(function, (loc, variance))
    nothing = torch.zeros(3, 4, requires_grad=True)
    result = corrections.corrected(features, numbers.float(), torch.ones(3, 4, requires_grad=True), nothing)
    assert torch.equal(result, torch.zeros(3, 4))
    result.sum().backward()
    assert nothing.grad.isfinite().all()


def test_a_large_result_is_corrected_in_pieces_as_in_one(monkeypatch):
    numbers = torch.randn(6, 5, 1, 1)
    numbers[-2:] = torch.tensor([-2.0, 2.0])[:, None, None, None]
    loc, variance = torch.randn(7, 5, 4, 4), torch.rand(7, 5, 4, 4)
    whole = corrections.corrected("state", numbers, loc, variance)
    monkeypatch.setattr(corrections, "_PIECE", 200)
    assert torch.equal(corrections.corrected("state", numbers, loc, variance), whole)


def test_the_exponent_stays_in_the_range_of_the_fit(deep):
    _, calibration = deep
    place = calibration.places[0]
    count = corrections.rows(calibration.features, place.rank)
    numbers = calibration.numbers[0, : count * place.channels].reshape(count, place.channels)
    wild = corrections.corrected(calibration.features, numbers, torch.randn(5, 24) * 1e6, torch.full((5, 24), 1e-12))
    exponent = (wild / 1e-12).log()
    assert (exponent >= numbers[4] - 1e-4).all()
    assert (exponent <= numbers[5] + 1e-4).all()


def _compiled(function, given):
    torch.compiler.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager")(given)


def test_the_wrapper_compiles_as_a_whole():
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)).eval()
    runs = calibrated(model, calibrate(model, X, input_variance=[0.05, 0.5], samples=10))
    x = Normal(NEW, 0.1)
    torch.testing.assert_close(_components(_compiled(runs, x)), _components(runs(x)), rtol=1e-4, atol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("build", [mlp, ConvNet])
@pytest.mark.parametrize("variance", [0.1, [0.05, 0.5]], ids=["one", "levels"])
def test_propagate_compiles_as_a_whole(build, variance):
    model = trained_looking(build()).eval()
    x = X if build is mlp else torch.randn(4, 3, 8, 8)
    calibration = calibrate(model, x, input_variance=variance, samples=10)

    def run(x):
        return propagate(model, x, input_variance=0.1, calibration=calibration)

    torch.testing.assert_close(_components(_compiled(run, x)), _components(run(x)), rtol=1e-4, atol=1e-5)


@pytest.mark.full
def test_a_transformer_compiles_as_a_whole():
    model, x = TransformerBlock().eval(), torch.randn(4, 5, 8)
    calibration = calibrate(model, x, input_variance=0.1, samples=10)
    runs = calibrated(model, calibration)
    torch.testing.assert_close(_components(_compiled(runs, x)), _components(runs(x)), rtol=1e-3, atol=1e-4)


def test_it_exports_with_tensors_at_the_door_for_any_batch(levels):
    model, calibration = levels
    program = torch.export.export(
        AsTensors(calibrated(model, calibration)),
        (X, torch.full_like(X, 0.1)),
        dynamic_shapes=({0: torch.export.Dim("batch")},) * 2,
        strict=False,
    )
    found = program.module()(NEW, torch.full_like(NEW, 0.1))
    wanted = propagate(model, NEW, input_variance=0.1, calibration=calibration)
    torch.testing.assert_close(found, _components(wanted), rtol=1e-4, atol=1e-5)


def test_a_place_knows_its_channels_in_results_of_any_size():
    place = Place("attention", "matmul", 2, (-3, -1), 6)
    assert place.shape(torch.zeros(4, 2, 7, 3)) == [2, 1, 3]
    assert place.shape(torch.zeros(4, 2, 7, 4)) is None
    assert place.shape(torch.zeros(3)) is None
    x = torch.arange(4 * 2 * 7 * 3).reshape(4, 2, 7, 3)
    units = place.arranged(x, 4)
    assert units.shape == (4, 6, 7)
    assert torch.equal(units[1, 4], x[1, 1, :, 1])
