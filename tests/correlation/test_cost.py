"""What following correlations costs, counted in runs of kernels and in sizes of passes."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from momentprop import Normal, joint_outputs, propagate
from momentprop.codegen import programs
from momentprop.correlation.draws import Draws
from momentprop.kernels import attention, autograd

OUTPUTS = 5


@pytest.fixture(autouse=True)
def _by_formula() -> Iterator[None]:
    before = programs.mode()
    programs.set_mode("eager")
    with torch.no_grad():
        yield
    programs.set_mode(before)


def _network() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, OUTPUTS)
    return nn.Sequential(*layers).double()


def _inputs(items: int = 6) -> Tensor:
    return torch.randn(items, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def _sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list of the numbers of items that probes will travel beside."""
    found: list[int] = []
    start = Draws.start

    def noted(self: Draws, items: int | None) -> None:
        if items is not None:
            found.append(items)
        start(self, items)

    monkeypatch.setattr(Draws, "start", noted)
    return found


def test_the_derivative_of_an_elementwise_kernel_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    backward = autograd.Fused.backward
    monkeypatch.setattr(autograd.Fused, "backward", staticmethod(lambda *args: runs.append(1) or backward(*args)))
    propagate(_network(), _inputs(), input_variance=0.1).covariance  # noqa: B018
    assert len(runs) == 2  # one for each activation, whatever the number of outputs


def test_slopes_that_are_kept_are_those_of_a_tracked_pass() -> None:
    x, model = _inputs(), _network()
    with torch.enable_grad():
        wanted = propagate(model, x, input_variance=0.1).covariance
    torch.testing.assert_close(propagate(model, x, input_variance=0.1).covariance, wanted.detach())


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True).double()

    def forward(self, x: Any) -> Any:
        """Attend from each token to all, and average."""
        return self.attention(x, x, x, need_weights=False)[0].mean(1)


def test_attention_runs_once_if_there_is_room_for_its_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[int] = []
    mixture = attention.mixture
    monkeypatch.setattr(attention, "mixture", lambda *args: runs.append(1) or mixture(*args))
    x, model = torch.stack([_inputs(3), 1 - _inputs(3)]), _Attention().eval()
    kept = propagate(model, x, input_variance=0.1).covariance
    assert len(runs) == 1
    monkeypatch.setattr(joint_outputs, "KEPT", 0)
    again = propagate(model, x, input_variance=0.1).covariance
    assert len(runs) > 2 + 4  # in the pass, and in each backward pass
    torch.testing.assert_close(kept, again)


def test_probes_travel_in_pieces_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = _network(), _inputs()
    noise: dict[str, Any] = {"input_variance": 0.1, "probes": 4}
    whole = propagate(model, x, **noise)
    expected, crossed = whole.covariance, whole.cross_covariance()
    monkeypatch.setattr(joint_outputs, "PIECE", 2 * 4 * 16 * 8)  # probes of two items of the widest layer
    sizes = _sizes(monkeypatch)
    pieces = propagate(model, x, **noise)
    assert sizes == [6, 1, 2, 2, 2]  # the first one stops at the first layer
    torch.testing.assert_close(pieces.loc, whole.loc)
    torch.testing.assert_close(pieces.covariance, expected)
    torch.testing.assert_close(pieces.cross_covariance(), crossed)


def test_records_of_pieces_are_corrected(monkeypatch: pytest.MonkeyPatch) -> None:
    noise: dict[str, Any] = {"input_variance": 0.1, "probes": 4, "record": True}
    whole, inside = propagate(_network(), _inputs(), **noise)
    expected = whole.covariance
    monkeypatch.setattr(joint_outputs, "PIECE", 1024)
    pieces, again = propagate(_network(), _inputs(), **noise)
    torch.testing.assert_close(pieces.covariance, expected)
    torch.testing.assert_close(again["2"].variance, inside["2"].variance)


def _with_many(x: Any) -> Any:
    return _network()(x), x.repeat(1, 50) * x.repeat(1, 50).roll(1, 1)


def _with_a_mean(x: Any) -> Any:
    y = _network()(x)
    return y, y.mean(0)


def _with_a_random_weight(x: Any) -> Any:
    weight = Normal(torch.ones(OUTPUTS, OUTPUTS, dtype=torch.float64), 0.1)
    return _network()(x) @ weight


@pytest.mark.filterwarnings("ignore::momentprop.CorrelationWarning")
@pytest.mark.parametrize("model", [_with_many, _with_a_mean, _with_a_random_weight])
def test_outputs_that_pieces_cannot_tell_are_those_of_the_batch(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    noise: dict[str, Any] = {"input_variance": 0.1, "probes": 4}

    def moments() -> list[Tensor]:
        found = propagate(model, _inputs(), **noise)
        return [part for y in (found if isinstance(found, tuple) else (found,)) for part in (y.loc, y.variance)]

    whole = moments()
    monkeypatch.setattr(joint_outputs, "PIECE", 1024)
    for ours, theirs in zip(moments(), whole, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_pieces_refuse_items_that_interact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint_outputs, "PIECE", 1024)
    model = _network()
    with pytest.raises(RuntimeError, match="an item alone gives another result than in its batch"):
        propagate(lambda x: model(x - x[-1:]), _inputs(), input_variance=0.1, probes=4)


def test_a_derivative_of_the_mean_of_attention_leaves_its_largest_product_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes, contraction = [], attention.along_contraction

    def noted(*args: Any) -> Tensor:
        found = contraction(*args)
        nodes.append(found.grad_fn)
        return found

    monkeypatch.setattr(attention, "along_contraction", noted)
    parts = [torch.rand(1, 2, 3, 4, dtype=torch.float64, requires_grad=True) for _ in range(6)]
    with torch.enable_grad():
        loc, variance = attention.mixture(
            attention.scores(parts[0] @ parts[2].mT, *parts[:4], gain=None), None, parts[4], parts[5]
        )
    assert nodes
    assert not _behind(loc) & {*nodes}
    assert _behind(variance) >= {*nodes}


def _behind(tensor: Tensor) -> set[Any]:
    """Return the nodes of the graph of a tensor."""
    waiting, seen = [tensor.grad_fn], set[Any]()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
    return seen
