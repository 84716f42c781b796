"""The demo runs, and its results are those that its texts promise."""

import shutil
import subprocess
import sys

import pytest

from momentprop.data import load
from momentprop_experiments import demo
from momentprop_experiments.runs import trained_networks

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """Return the folder of the reports, and their contents."""
    out = tmp_path_factory.mktemp("demo")
    return out, demo.main(out, images=32, draws=200)


def test_an_overview_links_to_a_report_for_every_network(shown):
    out, entries = shown
    assert sorted(path.name for path in out.iterdir()) == sorted(
        ["index.html", *(f"{case.name}.html" for case in demo.CASES)]
    )
    overview = (out / "index.html").read_text(encoding="utf-8")
    for entry in entries:
        assert f'href="{entry.link}"' in overview
        assert entry.report.model in (out / entry.link).read_text(encoding="utf-8")


def test_ap2_tells_means_and_classes_better_than_ap1(shown):
    for entry in shown[1]:
        ap1, ap2 = (entry.report.at_output(name) for name in ("ap1", "ap2"))
        assert ap2.eps_mean < 0.8 * ap1.eps_mean
        divergences = entry.report.posterior.methods
        assert divergences["ap2"]["kl_race"] < 0.8 * divergences["ap1"]["kl"]


def test_deviations_are_as_the_introduction_says(shown):
    noisy, dropout, bernoulli = (entry.report.at_output("ap2").eps_std for entry in shown[1])
    assert noisy < 0.75
    assert dropout == pytest.approx(1, abs=0.15)
    assert bernoulli == pytest.approx(1, abs=0.15)


def test_calibration_repairs_the_deviations_of_noisy_pixels(shown):
    for entry in shown[1]:
        plain, calibrated = (entry.report.at_output(name) for name in ("ap2", "ap2-calibrated"))
        assert calibrated.eps_std == pytest.approx(1, abs=0.06)
        assert calibrated.eps_mean < plain.eps_mean + 0.01
        assert "ap2-calibrated" in entry.report.summary


def test_joint_deviations_and_classes_are_right_without_data(shown):
    for entry in shown[1]:
        report = entry.report
        assert report.methods == ["ap1", "ap2", "joint", "ap2-calibrated", "joint-calibrated"]
        for name in ("joint", "joint-calibrated"):
            found = report.at_output(name)
            assert found.eps_std == pytest.approx(1, abs=0.03)
            assert found.rms_log_std < 1.2 * report.floor_at_output.rms_log_std
            assert found.correlation_error < 0.5 * report.at_output("ap2").correlation_error
            assert report.posterior.methods[name]["kl_joint"] < 0.5 * report.posterior.methods["ap2"]["kl_race"]
    overview = (shown[0] / "index.html").read_text(encoding="utf-8")
    assert overview.count(">joint</th>") == overview.count(">joint-calibrated</th>") == 3


def test_the_overview_shows_a_digit_with_its_noise_and_what_is_read_in_it(shown):
    overview = (shown[0] / "index.html").read_text(encoding="utf-8")
    noisy = shown[1][0].report.examples[0]
    assert overview.index(noisy.picture) < overview.index(noisy.noisy) < overview.index("the plain network</span>")
    assert overview.count("draws on average</span>") == overview.count("joint, without drawing</span>") == 3
    assert overview.index("What is compared") < overview.index(">ap1</dt>") < overview.index("Noisy pixels")


def test_the_least_certain_digits_are_shown_first(shown):
    for entry in shown[1]:
        certainties = [max(example.probabilities["ap2"]) for example in entry.report.examples]
        assert len(certainties) == 3
        assert certainties == sorted(certainties)
        assert all(example.picture.startswith("data:image/png") for example in entry.report.examples)


def test_without_trained_networks_the_demo_trains_its_own(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(trained_networks, "find_results", lambda: None)
    demo.main(tmp_path / "demo", images=4, draws=20, training=300)
    printed = capsys.readouterr().out
    assert printed.count("Training a LeNet on 300 embedded digits.") == 3
    assert f"Open {tmp_path / 'demo' / 'index.html'} in a browser" in printed
    assert "Random binary units. Every hidden unit" in printed
    assert printed.count("| joint-calibrated |") == 3
    assert max(len(line) for line in printed.splitlines() if "Open" not in line) <= 80


def test_without_safetensors_a_network_is_trained(monkeypatch):
    def fail(_):
        raise ImportError("no safetensors")

    monkeypatch.setattr(trained_networks, "load", fail)
    _, images, _, origin = demo.network(demo.CASES[0], load("digits"), count=3, training=64)
    assert images.shape == (3, 1, 28, 28)
    assert origin == "# trained by the demo"


@pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium on the PATH")
def test_a_browser_shows_the_overview_without_an_error(shown):
    path = shown[0] / "index.html"
    arguments = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={path.parent / 'profile'}"]
    arguments += ["--enable-logging=stderr", "--v=0", "--dump-dom", path.as_uri()]
    done = subprocess.run([CHROMIUM, *arguments], capture_output=True, text=True, check=True, timeout=60)
    assert "CONSOLE" not in done.stderr
    assert done.stdout.count('class="chart"') == 24  # three networks, two outputs, four methods


@pytest.mark.parametrize("command", [["momentprop", "demo"], ["momentprop_experiments.demo"]], ids=" ".join)
def test_the_demo_is_a_command_and_a_module(command, tmp_path):
    options = ["--out", str(tmp_path), "--images", "3", "--draws", "5"]
    done = subprocess.run(
        [sys.executable, "-m", *command, *options], capture_output=True, text=True, check=True, timeout=120
    )
    assert "Three LeNets on 3 embedded test digits, against 5 draws of their noise." in done.stdout
    assert (tmp_path / "index.html").exists()
