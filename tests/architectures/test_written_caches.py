"""Models of `transformers` that write values into plain caches and buffers."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from momentprop import propagate
from tests.architectures import ARCHITECTURES

transformers = pytest.importorskip("transformers", reason="the models of `transformers` are not installed")
SMALL: dict[str, Any] = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2}
SETTINGS: dict[str, dict[str, Any]] = {
    "Mamba": {"state_size": 4},
    "Mamba2": {"state_size": 4, "num_heads": 4, "head_dim": 8, "n_groups": 1, "chunk_size": 4},
    "Rwkv": {"context_length": 16, "attention_hidden_size": 16, "intermediate_size": 32},
    "Longformer": {
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "attention_window": [4, 4],
        "max_position_embeddings": 64,
    },
}
assert not set(SETTINGS) & set(ARCHITECTURES)


@pytest.fixture(params=SETTINGS)
def model(request: pytest.FixtureRequest) -> nn.Module:
    torch.manual_seed(0)
    config = getattr(transformers, f"{request.param}Config")(**SMALL, **SETTINGS[request.param])
    made: nn.Module = getattr(transformers, f"{request.param}Model")(config).eval().requires_grad_(False)
    return made


def _input() -> Tensor:
    return torch.randn(1, 8, 16, generator=torch.Generator().manual_seed(1))


def test_means_are_those_of_the_network_and_deviations_near_those_of_draws(model: nn.Module) -> None:
    def states(x: Tensor) -> Any:
        return model(inputs_embeds=x)[0]

    x = _input()
    plain = states(x)
    torch.testing.assert_close(propagate(states, x, method="ap1").loc, plain, rtol=0.0, atol=0.0)
    nearly_certain = propagate(states, x, input_variance=1e-10, covariance=False)
    torch.testing.assert_close(nearly_certain.loc, plain, rtol=1e-4, atol=1e-5)
    found = propagate(states, x, input_variance=1e-3, covariance=False)
    drawn = propagate(states, x, input_variance=1e-3, method="sample", samples=400, seed=0)
    ratio = found.stddev.mean() / drawn.stddev.mean()
    assert 0.7 < ratio < 1.4
    assert ((found.loc - drawn.loc).abs() / drawn.stddev).mean() < 0.15
    torch.testing.assert_close(states(x), plain, rtol=0.0, atol=0.0)  # nothing is left behind
