"""The page in Chromium: its numbers are Python's, its console is silent, and it fits a phone."""

import pytest
import torch
from page import browser
from page.build import build, shelf
from page.networks import Reader

from momentprop import propagate
from tests.page.truth import noisy, truth

Settings = tuple[float, float, float]
SLIDERS = ("noise", "missing", "dropout")
SETTINGS = [(0.2, 0.0, 0.0), (0.1, 0.3, 0.2), (0.0, 0.0, 0.4), (0.0, 0.5, 0.0), (0.0, 0.0, 0.0)]
PLACES = [0, 5, 12, 17, 3]  # of the digits on the shelf
DRAWS = 4000

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(browser.lacking() is not None, reason=f"{browser.lacking()} is not installed"),
]


def test_the_page_says_what_python_says_without_errors_on_desktop_and_phone():
    shots = [
        {"digit": place, "settings": dict(zip(SLIDERS, given, strict=True)), "draws": DRAWS if all(given) else 0}
        for place, given in zip(PLACES, SETTINGS, strict=True)
    ]
    phone = [{"width": 390, "height": 844, "scheme": scheme, "draws": 100} for scheme in ("light", "dark")]
    stroke = {"width": 390, "stroke": [[0.55, 0.1], [0.45, 0.9]], "draws": 100}
    played = browser.play(build(), [*shots, *phone, stroke])
    assert played["errors"] == []
    assert [found["overflow"] for found in played["found"]] == [0] * len(played["found"])
    assert played["found"][-1]["verdict"].startswith("The plain network reads a 1")

    reader = Reader()
    for place, given, found in zip(PLACES, SETTINGS, played["found"], strict=False):
        _require_pythons_numbers(reader, shelf(reader)[place], given, found)
        if all(given):
            _require_true_draws(reader, shelf(reader)[place], given, found["draws"])


def _require_pythons_numbers(reader: Reader, digit: int, given: Settings, found: dict) -> None:
    wanted = truth(reader, digit, *given)
    del wanted["joint"]["covariance"]
    said = {
        method: {name: torch.tensor([found[method][name]], dtype=torch.float32) for name in numbers}
        for method, numbers in wanted.items()
    }
    torch.testing.assert_close(said, wanted, rtol=1e-4, atol=1e-4)


def _require_true_draws(reader: Reader, digit: int, given: Settings, draws: dict) -> None:
    network, x = noisy(reader, digit, *given)
    wanted = propagate(network, x, method="sample", dropout=True, samples=DRAWS, seed=0)
    assert draws["count"] >= DRAWS
    for name, value, error in (
        ("mean", wanted.loc, wanted.loc_error),
        ("variance", wanted.variance, wanted.variance_error),
    ):
        z = (torch.tensor(draws[name]) - value) / (2**0.5 * error)
        assert z.abs().max() < 5, (name, z)
