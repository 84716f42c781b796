"""Images with noisy and missing pixels: how they are corrupted, and how every method does on them."""

import json

import matplotlib.colors
import matplotlib.figure
import pytest
import torch

from momentprop import Normal
from momentprop_experiments.options import Options
from momentprop_experiments.repository import results_folder
from momentprop_experiments.reproduction.noisy_inputs import noisy_inputs
from momentprop_experiments.reproduction.noisy_inputs.noisy_inputs_report import _gains, _picture, discussion
from momentprop_experiments.reproduction.posterior_scores import KEPT

RESULTS = results_folder() / "paper"
METHODS = ["AP1", "AP2", "calibrated AP2", *(f"Monte Carlo, {count}" for count in noisy_inputs.COUNTS)]


@pytest.fixture
def images():
    return torch.randn(50, 3, 8, 10, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def typical():
    return Normal(torch.full((3, 8, 10), 0.5), 2.0)


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


def test_noise_has_the_variance_that_is_told(images, typical, generator):
    known = noisy_inputs.noise(0.3)(images, typical, generator)
    torch.testing.assert_close(known.variance, torch.full_like(images, 0.3))
    assert (known.loc - images).var().item() == pytest.approx(0.3, rel=0.03)


def test_uneven_noise_differs_by_pixel_and_not_by_channel(images, typical, generator):
    known = noisy_inputs.uneven(0.01, 100)(images, typical, generator)
    assert (known.variance == known.variance[:, :1]).all()
    assert 0.01 <= known.variance.min() < 0.02
    assert 50 < known.variance.max() <= 100
    assert known.variance.log10().mean().item() == pytest.approx(0, abs=0.06)
    assert ((known.loc - images) / known.stddev).std().item() == pytest.approx(1, rel=0.03)


def test_a_prior_leaves_of_a_noisy_pixel_what_bayes_rule_says(images, typical, generator):
    seen = noisy_inputs.noise(1.0)(images, typical, generator)
    known = noisy_inputs.with_prior(noisy_inputs.noise(1.0))(images, typical, generator.manual_seed(0))
    torch.testing.assert_close(known.variance, torch.full_like(images, 2 / 3))  # 1 / (1/2 + 1/1)
    torch.testing.assert_close(known.loc, (0.5 / 2 + seen.loc) * 2 / 3)
    nearly_missing = noisy_inputs.with_prior(noisy_inputs.noise(1e8))(images, typical, generator)
    torch.testing.assert_close(nearly_missing.variance, torch.full_like(images, 2.0))
    assert (nearly_missing.loc - 0.5).abs().max() < 1e-2


def test_missing_pixels_are_as_in_the_training_images(images, typical, generator):
    known = noisy_inputs.missing(0.25)(images, typical, generator)
    gone = known.variance > 0
    assert gone.double().mean().item() == pytest.approx(0.25, abs=0.02)
    assert (gone == gone[:, :1]).all()
    assert (known.loc[gone] == 0.5).all()
    assert (known.variance[gone] == 2).all()
    assert (known.loc[~gone] == images[~gone]).all()


def test_a_missing_block_is_a_square_anywhere(images, typical, generator):
    gone = noisy_inputs.block(0.5)(images, typical, generator).variance[:, 0] > 0
    assert (gone.sum((1, 2)) == 4 * 5).all()
    assert (gone.any(2).sum(1) == 4).all()
    assert (gone.any(1).sum(1) == 5).all()
    assert gone.any(0).double().mean() > 0.9


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    out = tmp_path_factory.mktemp("noisy")
    result = noisy_inputs.run(out, Options(quick=True, device="cpu"))
    assert [file.suffix for file in result.save(out, noisy_inputs.NAME)] == [".json", ".md", ".png", ".svg"]
    return result


def test_every_method_has_its_figures_for_every_corruption(quick):
    for network in quick.data["networks"].values():
        assert len(network["corruptions"]) == 4
        for methods in network["corruptions"].values():
            assert list(methods) == METHODS
            assert all(
                len(each["kept"]) == len(KEPT) and each["kept"][-1] == each["accuracy"] for each in methods.values()
            )
            assert methods["AP1"]["nll_gain"] == 0
    assert "**LeNet (MNIST), 40 test images**" in quick.markdown


def test_a_calibration_brings_ap2_to_what_many_draws_say(quick):
    for methods in quick.data["networks"]["lenet"]["corruptions"].values():
        many = methods["Monte Carlo, 128"]["nll"]
        assert abs(methods["calibrated AP2"]["nll"] - many) < abs(methods["AP2"]["nll"] - many)
        assert many < methods["Monte Carlo, 8"]["nll"]


def test_a_network_trained_with_noise_bears_it_best(quick):
    plain, noisy = (quick.data["networks"][name]["corruptions"] for name in ("lenet", "lenet-noisy"))
    for corruption in ("noise 3", "uneven noise", "missing 50 %"):
        assert noisy[corruption]["AP2"]["accuracy"] > plain[corruption]["AP2"]["accuracy"] + 0.1
        assert noisy[corruption]["AP2"]["nll"] < plain[corruption]["AP2"]["nll"] / 2


def test_the_discussion_says_where_a_method_is_surely_better():
    def found(gain):
        each = {"accuracy": 0.5, "accuracy_error": 0.01, "nll": 1.0 - gain, "ece": 0.1}
        each |= {"nll_gain": gain, "nll_gain_error": 0.1}
        return dict.fromkeys(METHODS, each) | {"AP1": each | {"nll": 1.0, "accuracy": 0.53}}

    corruptions = {"noise": found(0.5), "block": found(-0.5), "gap": found(0.1)}
    text = discussion({"corruptions": corruptions})
    assert "AP2 is better in 1 and worse in 1; calibrated AP2 is better in 1 and worse in 1;" in text
    assert "AP1 is more accurate than AP2 by more than two standard errors in 3." in text
    assert "for AP2 in 3, 3, 3, and for calibrated AP2 in 3, 3, 3 kinds of images." in text
    rows = [line.split("|")[2].strip() for line in _gains(corruptions).splitlines()[2:]]
    assert rows == ["**+0.50 ± 0.1**", "-0.50 ± 0.1", "+0.10 ± 0.1"]


def test_missing_pixels_of_a_coloured_image_are_drawn():
    axes = matplotlib.figure.Figure().subplots(1, 2)
    for axis, channels in zip(axes, (1, 3), strict=True):
        picture = torch.full((2, 2, channels), 0.5)
        picture[0, 0] = float("nan")
        _picture(axis, picture.numpy(), "x")
    grey, coloured = (axis.images[0].to_rgba(axis.images[0].get_array())[0, 0, :3] for axis in axes)
    for drawn in (grey, coloured):
        assert list(drawn) == pytest.approx(matplotlib.colors.to_rgb("#e8a0a0"))


def test_published_results_say_that_training_with_noise_helps():
    networks = json.loads((RESULTS / "noisy-inputs.json").read_text())["networks"]
    for network in ("lenet", "lenet-noisy"):
        assert networks[network]["test_images"] >= 2000
        for methods in networks[network]["corruptions"].values():
            many = methods["Monte Carlo, 128"]
            assert abs(methods["calibrated AP2"]["nll"] - many["nll"]) < 0.15 * many["nll"] + 0.05
    plain, noisy = (networks[name]["corruptions"] for name in ("lenet", "lenet-noisy"))
    for corruption in ("noise 1", "noise 3", "uneven noise"):
        for method in METHODS:
            assert noisy[corruption][method]["accuracy"] > plain[corruption][method]["accuracy"] + 0.05
            assert noisy[corruption][method]["nll"] < plain[corruption][method]["nll"] / 2
    for corruption in ("missing 25 %", "missing 50 %", "missing block"):
        assert noisy[corruption]["AP2"]["accuracy"] > plain[corruption]["AP2"]["accuracy"] + 0.05
    for network in (plain, noisy):
        for method in METHODS:
            weighed, trusted = (network[name][method]["accuracy"] for name in ("uneven, prior", "uneven noise"))
            assert weighed > trusted + 0.1
