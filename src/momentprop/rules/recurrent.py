r"""Recurrent networks by their cell equations: RNN, LSTM and GRU, as whole networks and single cells.

A network is unrolled in time, and each cell applies the other rules: affine maps, sigmoid and tanh units, and products
of independent factors. Like every chain of rules, this ignores that gates and states share their inputs and that one
weight acts at every step. The input or the state can be plain.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from momentprop.dispatch import Call, rule, where
from momentprop.dispatch.registry import composite, moves
from momentprop.values import Mean, Normal
from momentprop.values.base import Value

Random = Any  # a value or a plain tensor
State = tuple[Random, ...]  # the hidden state and, for an LSTM, the cell


class _Weights(NamedTuple):
    """The parameters of one cell."""

    input: Random
    hidden: Random
    input_bias: Random = None
    hidden_bias: Random = None
    projection: Random = None

    def of_hidden(self, state: State) -> Random:
        return F.linear(state[0], self.hidden, self.hidden_bias)


Step = Callable[[Random, State, _Weights], State]
"""Computes the next state from the projected input, the state and the weights."""


def _rnn_step(nonlinearity: Callable[[Random], Random]) -> Step:
    return lambda projected, state, weights: (nonlinearity(projected + weights.of_hidden(state)),)


def _lstm_step(projected: Random, state: State, weights: _Weights) -> State:
    enter, forget, new, leave = (projected + weights.of_hidden(state)).chunk(4, -1)
    enter, forget, leave = torch.sigmoid(torch.cat([enter, forget, leave], -1)).chunk(3, -1)
    cell = forget * state[1] + enter * torch.tanh(new)
    hidden = leave * torch.tanh(cell)
    return hidden if weights.projection is None else F.linear(hidden, weights.projection), cell


def _gru_step(projected: Random, state: State, weights: _Weights) -> State:
    size = state[0].shape[-1]
    hidden = weights.of_hidden(state)
    reset, keep = torch.sigmoid(projected[..., : 2 * size] + hidden[..., : 2 * size]).chunk(2, -1)
    candidate = torch.tanh(projected[..., 2 * size :] + reset * hidden[..., 2 * size :])
    return (torch.lerp(candidate, state[0], keep),)


_STEPS: dict[str, Step] = {
    "lstm": _lstm_step,
    "gru": _gru_step,
    "rnn_tanh": _rnn_step(torch.tanh),
    "rnn_relu": _rnn_step(torch.relu),
}


class _Network(NamedTuple):
    """The arguments that torch passes to a recurrent network after the input and the initial state."""

    params: Sequence[Random]
    has_biases: bool
    num_layers: int
    dropout: float
    train: bool
    bidirectional: bool

    def weights(self, with_projection: bool) -> list[_Weights]:
        """Return the parameters cell by cell: layer after layer, each in both directions."""
        count = (4 if self.has_biases else 2) + with_projection
        cells = [self.params[i : i + count] for i in range(0, len(self.params), count)]
        without_biases = [] if self.has_biases else [None, None]
        return [_Weights(*cell[:2], *without_biases, *cell[2:]) for cell in cells]

    def run(self, step: Step, inputs: Random, lengths: list[int], first: State) -> tuple[Random, list[State]]:
        """Return the outputs and the last states; the inputs hold the rows of step 1, then step 2, and so on."""
        cells = self.weights(with_projection=len(first) == 2 and first[0].shape[-1] != first[1].shape[-1])
        directions = 2 if self.bidirectional else 1
        last = []
        for layer in range(self.num_layers):
            if layer > 0:
                inputs = F.dropout(inputs, self.dropout, self.train)
            outputs = []
            for cell in range(layer * directions, (layer + 1) * directions):
                state = tuple(part[cell] for part in first)
                backward = cell % directions == 1
                output, state = _unrolled(step, inputs, lengths, state, cells[cell], backward)
                outputs.append(output)
                last.append(state)
            inputs = torch.cat(outputs, -1) if self.bidirectional else outputs[0]
        return inputs, last


def _unrolled(
    step: Step, inputs: Random, lengths: list[int], state: State, weights: _Weights, backward: bool
) -> tuple[Random, State]:
    """Run one cell over all steps; step `t` takes the first `lengths[t]` rows of the batch."""
    projected = F.linear(inputs, weights.input, weights.input_bias).split(lengths)
    outputs = [None] * len(lengths)
    for t in range(len(lengths))[:: -1 if backward else 1]:
        rows = lengths[t]
        if rows == state[0].shape[0]:
            state = step(projected[t], state, weights)
            outputs[t] = state[0]
        else:  # sequences of different lengths: finished ones keep their state
            running = step(projected[t], tuple(part[:rows] for part in state), weights)
            outputs[t] = running[0]
            state = tuple(torch.cat([new, old[rows:]]) for new, old in zip(running, state, strict=True))
    return torch.cat(outputs), state  # type: ignore[arg-type]


def _propagated(op: str, input: Random, *args: Any) -> tuple[Random, ...]:
    packed = isinstance(args[0], Tensor) and not args[0].is_floating_point()
    hx, network = (args[1], _Network(*args[2:])) if packed else (args[0], _Network(*args[1:-1]))
    first = tuple(hx) if op == "lstm" else (hx,)
    if packed:
        outputs, last = network.run(_STEPS[op], input, args[0].tolist(), first)
    else:
        by_time = input.transpose(0, 1) if args[-1] else input
        steps, batch = by_time.shape[:2]
        if steps == 0:
            raise RuntimeError(f"Expected sequence length to be larger than 0 in RNN, at {where()}")
        outputs, last = network.run(_STEPS[op], by_time.flatten(0, 1), [batch] * steps, first)
        outputs = outputs.unflatten(0, (steps, batch))
        outputs = outputs.transpose(0, 1) if args[-1] else outputs
    return outputs, *(torch.stack(list(parts)) for parts in zip(*last, strict=True))


_CELL = {
    "lstm": r"$c' = S(f)c + S(i)\tanh g$ and $h' = S(o)\tanh c'$",
    "gru": r"$h' = n + Z(h - n)$ with $n = \tanh(x_n + S(r)h_n)$ and $Z = S(z)$",
    "rnn_tanh": r"$h' = \tanh(Wx + Uh + b)$",
    "rnn_relu": r"$h' = \max(0, Wx + Uh + b)$",
}


def _drops_out(call: Call) -> bool:
    """Return whether dropout acts between the layers; the batch sizes of a packed sequence shift the arguments."""
    sizes = call.args[1]
    packed = isinstance(sizes, Tensor) and not sizes.is_floating_point()
    dropout, train = call.args[6:8] if packed else call.args[5:7]
    return bool(train and dropout > 0)


def _register(op: str) -> None:
    def network(input: Random, *args: Any) -> Any:
        return _propagated(op, input, *args)

    network.__name__ = op
    network.__doc__ = rf"""Moments of the network with the cell {_CELL[op]}, unrolled in time.

    Layers, both directions, projections, dropout between layers (as noise, in training) and packed sequences work as in
    torch.

    Error: as the cell's units, with gates and states treated as independent
    Source: definition of the cell
    """
    composite(op, on=Value, positional=True, by_acting=_drops_out)(network)

    def network_mean(input: Any, *args: Any) -> Any:
        is_packed = isinstance(args[0], Tensor) and not args[0].is_floating_point()
        train = 6 if is_packed else 5
        return Mean.without_rule(getattr(torch, op), (input, *args[:train], False, *args[train + 1 :]), {})

    network_mean.__name__ = f"{op}_mean"
    network_mean.__doc__ = "The network without dropout.\n\nError: exact\nSource: paper, AP1"
    rule(op, on=Mean)(network_mean)

    def cell(input: Random, hx: Random, w_ih: Random, w_hh: Random, b_ih: Random = None, b_hh: Random = None) -> Any:
        weights = _Weights(w_ih, w_hh, b_ih, b_hh)
        state = _STEPS[op](F.linear(input, w_ih, b_ih), tuple(hx) if op == "lstm" else (hx,), weights)
        return state if op == "lstm" else state[0]

    cell.__name__ = f"{op}_cell"
    cell.__doc__ = rf"""Moments of one step: {_CELL[op]}.

    Error: as the cell's units, with gates and states treated as independent
    Source: definition of the cell
    """
    composite(f"{op}_cell", on=Value, positional=True)(cell)


for _op in _STEPS:
    _register(_op)


def _packed(input: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
    data, sizes, *_ = pack_padded_sequence(input, lengths, batch_first)
    return data, sizes


def _padded(data: Tensor, batch_sizes: Tensor, batch_first: bool, padding_value: float, total_length: int) -> Any:
    return pad_packed_sequence(PackedSequence(data, batch_sizes), batch_first, padding_value, total_length)


moves("_pack_padded_sequence", on=Normal, plain=_packed, positional=True)
moves(
    "_pad_packed_sequence", on=Normal, plain=_padded, positional=True,
    parameters="data batch_sizes batch_first padding_value total_length", summands=("padding_value",),
)  # fmt: skip
