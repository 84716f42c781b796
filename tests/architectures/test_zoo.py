"""Many architectures of `transformers`, tiny: they run by all methods, and AP2 comes roughly close to draws."""

import pytest
import torch

from momentprop import Estimate, MissingRule, propagate
from tests.architectures.__main__ import PAGE
from tests.architectures.zoo import REFUSED, ZOO, Tiny, first, measured

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of choices by the means, and of draws kept

QUICK = {"Mamba", "Longformer", "Mixtral", "Gemma 3", "ModernBERT", "T5", "Swin V2", "WavLM", "PatchTST", "Informer"}
"""Those that every test run takes."""

_CASES = [pytest.param(tiny, id=tiny.name, marks=[] if tiny.name in QUICK else [pytest.mark.full]) for tiny in ZOO]
_REFUSED = [pytest.param(tiny, words, id=tiny.name) for words, several in REFUSED.items() for tiny in several]


@pytest.fixture(autouse=True)
def _needs_transformers() -> None:
    pytest.importorskip("transformers")


@pytest.mark.parametrize("tiny", _CASES)
def test_it_runs_and_comes_roughly_close_to_draws(tiny: Tiny) -> None:
    found = measured(tiny)
    assert found.ap1 < 1e-6
    assert found.tiny < 3e-6
    assert found.mean < 0.25
    assert 0.4 < found.std < 1.6


@pytest.mark.full
@pytest.mark.parametrize(("tiny", "words"), _REFUSED)
def test_what_does_not_run_is_refused_clearly_and_can_be_sampled(tiny: Tiny, words: str) -> None:
    model, inputs = tiny.build(), tiny.inputs()
    with torch.no_grad():
        with pytest.raises(MissingRule, match=words):
            propagate(model, **inputs, input_variance=0.01, covariance=False)
        drawn = propagate(model, **inputs, input_variance=0.01, method="sample", samples=3, seed=0)
    assert type(first(drawn)) is Estimate


def test_the_page_shows_the_whole_zoo() -> None:
    page = PAGE.read_text()
    for tiny in ZOO:
        assert f"| {tiny} |" in page, tiny
    for several in REFUSED.values():
        for tiny in several:
            assert tiny.name in page, tiny
