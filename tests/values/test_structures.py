"""What models return, as structures of tensors and values: everything that may hold a tensor is opened."""

from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from momentprop import Estimate, Mean, Normal, check, propagate
from momentprop.values.structures import leaves_of, mapped

Pair = namedtuple("Pair", "first second")


class Typed(NamedTuple):
    first: Any
    second: Any = None


@dataclass
class Plain:
    first: Any
    second: Any = None


@dataclass(frozen=True, slots=True)
class Frozen:
    first: Any
    second: Any = None


@dataclass
class Peculiar:
    """Its constructor does not take what it keeps."""

    doubled: Any = field(init=False)

    def __init__(self, half: Any) -> None:
        self.doubled = half + half


class Custom:
    def __init__(self, first: Any) -> None:
        self.first = first
        self.nothing = None
        self.owner: Any = self


class Slots:
    __slots__ = ("first", "unset")

    def __init__(self, first: Any) -> None:
        self.first = first


class Iterating(OrderedDict):  # type: ignore[type-arg]
    """As the outputs of Hugging Face: its constructor iterates, and items are attributes too."""

    def __init__(self, first: Any) -> None:
        super().__init__(first=next(iter([first])))
        self.first = first

    def __delitem__(self, key: Any) -> None:
        raise AssertionError("an output keeps its items")

    def update(self, *_: Any, **__: Any) -> None:
        raise AssertionError("an output keeps its items")


class Uncopied(Slots):
    def __copy__(self) -> Any:
        raise RuntimeError("no copies")


class Cache:
    """As `transformers.DynamicCache`: a list of objects that hold tensors."""

    def __init__(self, *tensors: Any) -> None:
        self.layers = [Custom(tensor) for tensor in tensors]


def _default(x: Any) -> Any:
    made = defaultdict(list)
    made["a"] = [x]
    return made


STRUCTURES: dict[str, Callable[[Any], Any]] = {
    "alone": lambda x: x,
    "list": lambda x: [x, 3],
    "tuple": lambda x: (x, "name"),
    "nested": lambda x: {"a": [(x,), {"b": None}], "c": 1.5},
    "dict": lambda x: {"a": x, 3: "b"},
    "ordered": lambda x: OrderedDict(a=x, b=None),
    "default": _default,
    "deque": lambda x: deque([x, 2]),
    "named": lambda x: Pair(x, 2),
    "typed": lambda x: Typed(x),
    "sorted": lambda x: torch.return_types.sort((x, torch.tensor([0, 1]))),  # type: ignore[operator]
    "dataclass": lambda x: Plain(x),
    "frozen": lambda x: Frozen(x, [x]),
    "peculiar": lambda x: Peculiar(x),
    "custom": lambda x: Custom(x),
    "slots": lambda x: Slots(x),
    "iterating": lambda x: Iterating(x),
    "cache": lambda x: Plain(x, Cache(x + 1, x * 2)),
}


@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.parametrize("method", ["ap1", "ap2", "sample"])
def test_every_draw_in_an_output_becomes_an_estimate(name: str, method: Any) -> None:
    wanted = {"ap1": Mean, "ap2": Normal, "sample": Estimate}[method]
    x = torch.tensor([1.0, 2.0])
    found = propagate(STRUCTURES[name], x, input_variance=0.1, method=method, samples=50, seed=0, covariance=False)
    plain = STRUCTURES[name](x)
    assert type(found) is (wanted if name == "alone" else type(plain))
    before, after = leaves_of(plain), leaves_of(found)
    assert len(before) == len(after) > 0
    for tensor, value in zip(before, after, strict=True):
        if tensor.is_floating_point():
            assert type(value) is wanted
            assert torch.allclose(value.loc, tensor, atol=0.5)
        else:
            assert torch.equal(value, tensor)


def test_the_structure_stays_what_it_is() -> None:
    x = torch.ones(2)
    default = mapped(lambda leaf: leaf + 1, _default(x))
    assert default.default_factory is list
    assert default["new"] == []
    output = Iterating(x)
    copied = mapped(lambda leaf: leaf + 1, output)
    assert list(copied) == ["first"]
    assert copied["first"] is copied.first
    assert torch.equal(copied.first, x + 1)
    assert output.first is output["first"] is x
    frozen = Frozen(x, "kept")
    assert mapped(lambda leaf: leaf + 1, frozen).second == "kept"
    assert frozen.first is x


def test_what_holds_no_tensor_is_not_copied() -> None:
    uncopied = Uncopied("text")
    whole = [uncopied, {"a": object()}, nn.Linear(2, 2), torch.float32, torch.Size([2]), Plain(None), len, int]
    assert mapped(lambda leaf: leaf + 1, whole) is whole
    assert leaves_of(whole) == []  # a module is code, not an output


def test_tensors_in_what_cannot_be_copied_are_refused() -> None:
    with pytest.raises(TypeError, match=r"attributes first that cannot be copied.*return the tensors in a tuple"):
        propagate(Uncopied, torch.ones(2), input_variance=0.1, method="sample", samples=3)


def test_one_tensor_in_two_places_stays_one() -> None:
    x = torch.ones(2)
    calls: list[Tensor] = []

    def doubled(leaf: Tensor) -> Tensor:
        calls.append(leaf)
        return leaf * 2

    first, second = mapped(doubled, (x, Plain(x)))
    assert first is second.first
    assert len(calls) == 1


def test_an_object_that_holds_itself_is_opened_once() -> None:
    ring: list[Any] = [torch.ones(1)]
    ring.append(ring)
    assert len(leaves_of(ring)) == 1
    assert torch.equal(mapped(lambda leaf: leaf + 1, Custom(torch.ones(1))).first, torch.full((1,), 2.0))


class Returns(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, x: Any) -> Any:
        return Plain(torch.relu(self.inner(x).first))


class Inner(nn.Module):
    def forward(self, x: Any) -> Any:
        return Plain(2 * x)


def test_recordings_and_checks_open_outputs_too() -> None:
    x = torch.tensor([[1.0, 2.0]])
    for method, kind in (("ap2", Normal), ("sample", Estimate)):
        output, inside = propagate(
            Returns(), x, input_variance=0.1, method=method, samples=20, record=True, covariance=False
        )
        assert type(output.first) is type(inside["inner"].first) is kind
    report = check(Returns(), x, input_variance=0.1, samples=200, seed=0)
    assert "inner[0]" in str(report)


def test_outputs_of_hugging_face_hold_estimates() -> None:
    outputs = pytest.importorskip("transformers.modeling_outputs")
    cache = pytest.importorskip("transformers").DynamicCache

    def one_field(x: Any) -> Any:
        return outputs.BaseModelOutput(last_hidden_state=2 * x)

    def with_cache(x: Any) -> Any:
        kept = cache()
        kept.update(x[:, None], 2 * x[:, None], 0)
        return outputs.BaseModelOutputWithPast(last_hidden_state=x, past_key_values=kept)

    x = torch.ones(2, 3, 4)
    found = propagate(one_field, x, input_variance=1.0, method="sample", samples=400, seed=0)
    assert type(found) is outputs.BaseModelOutput
    assert found.last_hidden_state is found["last_hidden_state"] is found[0]
    assert float(found.last_hidden_state.variance.mean()) == pytest.approx(4.0, rel=0.1)
    cached = propagate(with_cache, x, input_variance=1.0, method="sample", samples=400, seed=0).past_key_values
    assert type(cached) is cache
    assert type(cached.layers[0].values) is Estimate
    assert float(cached.layers[0].values.variance.mean()) == pytest.approx(4.0, rel=0.1)
    assert type(propagate(with_cache, x, input_variance=1.0, covariance=False).past_key_values.layers[0].keys) is Normal
