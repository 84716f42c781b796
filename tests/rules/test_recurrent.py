"""Recurrent networks and cells: torch's equations, packed sequences, dropout between layers, gradients, compilation."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from momentprop import Mean, Normal, Sample

KINDS: dict[str, tuple[type[nn.RNNBase], dict[str, Any]]] = {
    "rnn_tanh": (nn.RNN, {}),
    "rnn_relu": (nn.RNN, {"nonlinearity": "relu"}),
    "lstm": (nn.LSTM, {}),
    "lstm_projected": (nn.LSTM, {"proj_size": 2}),
    "gru": (nn.GRU, {}),
}
SETTINGS = [
    {"num_layers": layers, "bidirectional": both, "bias": bias, "batch_first": batch_first}
    for layers, both, bias, batch_first in [
        (1, False, True, False),
        (2, True, True, True),
        (2, False, False, True),
        (1, True, False, False),
    ]
]


def _network(kind: str, **settings: Any) -> nn.RNNBase:
    torch.manual_seed(0)
    cls, own = KINDS[kind]
    return cls(3, 4, **own, **settings).double()


def _input(*sizes: int, seed: int = 1) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _states(last: Any) -> tuple[Any, ...]:
    return last if isinstance(last, tuple) else (last,)


@pytest.mark.parametrize("kind", KINDS)
def test_without_variance_a_network_is_the_plain_one(kind: str) -> None:
    for settings in SETTINGS:
        network = _network(kind, **settings)
        for x in (_input(5, 2, 3), _input(5, 3)):  # with and without a batch
            output, last = network(Normal(x, 0.0))
            plain, plain_last = network(x)
            torch.testing.assert_close(output.loc, plain)
            assert not output.variance.any()
            for ours, theirs in zip(_states(last), _states(plain_last), strict=True):
                torch.testing.assert_close(ours.loc, theirs)


@pytest.mark.parametrize("kind", KINDS)
def test_packed_sequences_of_different_length_run_each_to_its_end(kind: str) -> None:
    network = _network(kind, num_layers=2, bidirectional=True)
    x, lengths = _input(5, 4, 3), torch.tensor([3, 5, 1, 5])
    packed = pack_padded_sequence(Normal(x, 0.1), lengths, enforce_sorted=False)
    output, last = network(packed)
    together, found = pad_packed_sequence(output, padding_value=7.0)
    assert torch.equal(found, lengths)
    for i, length in enumerate(lengths.tolist()):
        alone, alone_last = network(Normal(x[:length, i], 0.1))
        for part in ("loc", "variance"):
            torch.testing.assert_close(getattr(together, part)[:length, i], getattr(alone, part))
            for ours, own in zip(_states(last), _states(alone_last), strict=True):
                torch.testing.assert_close(getattr(ours, part)[:, i], getattr(own, part))
        assert (together.loc[length:, i] == 7).all()
        assert not together.variance[length:, i].any()


@pytest.mark.parametrize("kind", KINDS)
def test_an_initial_state_may_be_random_and_the_input_plain(kind: str) -> None:
    network = _network(kind)
    size = 2 if kind == "lstm_projected" else 4
    mean = _input(1, 2, size)

    def run(hidden: Any) -> Any:
        return network(_input(5, 2, 3), (hidden, _input(1, 2, 4)) if kind.startswith("lstm") else hidden)[0]

    output = run(Normal(mean, 0.2))
    assert (output.variance[0] >= 0).all()
    assert output.variance[0].sum() > 0
    torch.testing.assert_close(run(Normal(mean, 0.0)).loc, run(mean))


@pytest.mark.parametrize("kind", ["rnn_tanh", "rnn_relu", "lstm", "gru"])
def test_a_cell_makes_the_step_of_its_network(kind: str) -> None:
    network = _network(kind)
    nonlinearity = {"nonlinearity": kind[4:]} if kind.startswith("rnn") else {}
    cell = {"rnn": nn.RNNCell, "lstm": nn.LSTMCell, "gru": nn.GRUCell}[kind.split("_")[0]](3, 4, **nonlinearity)
    cell = cell.double()
    cell.load_state_dict({name.removesuffix("_l0"): part for name, part in network.state_dict().items()})
    x, state = Normal(_input(2, 3), 0.1), None
    for _ in range(2):
        state = cell(x, state)
    _, last = network(torch.stack([x, x]))
    for ours, theirs in zip(_states(state), _states(last), strict=True):
        torch.testing.assert_close((ours.loc, ours.variance), (theirs.loc[0], theirs.variance[0]))


def test_the_mixture_of_a_gated_unit_has_exact_moments() -> None:
    start, end, weight = (Normal(_input(6, seed=i), _input(6, seed=9 + i) ** 2) for i in range(3))
    y = torch.lerp(start, end, weight)
    square = (
        (start.loc**2 + start.variance) * ((1 - weight.loc) ** 2 + weight.variance)
        + (end.loc**2 + end.variance) * (weight.loc**2 + weight.variance)
        + 2 * start.loc * end.loc * (weight.loc - weight.loc**2 - weight.variance)
    )
    torch.testing.assert_close(y.loc, torch.lerp(start.loc, end.loc, weight.loc))
    torch.testing.assert_close(y.variance, square - y.loc**2)


def test_dropout_between_layers_follows_the_type_of_the_value() -> None:
    network, x = _network("lstm", num_layers=2, dropout=0.5), _input(5, 2, 3)
    certain = network.eval()(x)[0]
    assert not network(Normal(x, 0.0))[0].variance.any()
    network.train()
    noisy = network(Normal(x, 0.0))[0]
    assert (noisy.variance > 0).all()
    torch.testing.assert_close(network(Mean(x))[0].loc, certain)
    packed = pack_padded_sequence(Mean(x).loc, torch.tensor([5, 5]))
    torch.testing.assert_close(network(packed._replace(data=Mean(packed.data)))[0].data.loc, certain.flatten(0, 1))
    torch.manual_seed(3)
    drawn = torch.stack([network(Sample(x))[0].loc for _ in range(600)])
    torch.testing.assert_close(noisy.loc, drawn.mean(0), atol=0.02, rtol=0)
    ratio = (noisy.variance.sum() / drawn.var(0).sum()).sqrt()
    assert 0.85 < ratio < 1.15


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_right_and_finite_without_variance(kind: str) -> None:
    network = _network(kind, num_layers=1, bidirectional=True)
    mean, variance = _input(2, 1, 3).requires_grad_(), (_input(2, 1, 3, seed=2) ** 2).requires_grad_()

    def moments(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        y = network(Normal(mean, variance))[0]
        return y.loc, y.variance

    assert torch.autograd.gradcheck(moments, (mean, variance))
    y = network(Normal(mean, torch.zeros_like(mean)))[0]
    grads = torch.autograd.grad(y.loc.sum() + y.variance.sum(), [mean, *network.parameters()])
    assert all(grad.isfinite().all() for grad in grads)


@pytest.mark.parametrize(
    "kind", [kind if kind == "rnn_relu" else pytest.param(kind, marks=pytest.mark.full) for kind in KINDS]
)
def test_a_network_of_fixed_length_compiles_to_the_same_values(kind: str) -> None:
    torch.compiler.reset()
    network = _network(kind)
    x = Normal(_input(2, 2, 3), 0.1)
    with torch._dynamo.config.patch(allow_rnn=True):  # without it dynamo refuses the plain networks, too
        compiled = torch.compile(network, fullgraph=True, backend="aot_eager")(x)
    for ours, eager in zip(compiled[:1] + _states(compiled[1]), network(x)[:1] + _states(network(x)[1]), strict=True):
        torch.testing.assert_close((ours.loc, ours.variance), (eager.loc, eager.variance))


def test_the_deviation_of_an_lstm_is_near_that_of_draws() -> None:
    network, x = _network("lstm"), _input(6, 1, 3)
    y = network(Normal(x, 0.05))[0]
    noise = torch.randn(6, 20000, 3, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    with torch.no_grad():
        drawn = network(x + 0.05**0.5 * noise)[0]
    ratio = (y.variance.sum() / drawn.var(1).sum()).sqrt()
    assert 0.85 < ratio < 1.15
