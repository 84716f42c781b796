"""Kinds that depend on the arguments, noise that acts and is shared, and the table as a whole."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from momentprop import Kind, Mean, Normal, functional
from momentprop.dispatch import Call, MissingRule, kind_of
from momentprop.dispatch.kinds import Bilinear, Elementwise, Linear, Noise
from momentprop.dispatch.rule_table import operation_named, operations, table

pytestmark = pytest.mark.filterwarnings("ignore:dropout2d. Received a 3D input")


def _normal(*shape: int) -> Normal:
    generator = torch.Generator().manual_seed(3)
    return Normal(torch.rand(shape, generator=generator), 0.5)


X, Y, W = _normal(4, 6), _normal(4, 6), torch.ones(4, 6)
IMAGE = _normal(2, 3, 4, 4)
CASES = [
    ("mul", (X, W), Kind.LINEAR), ("mul", (W, X), Kind.LINEAR), ("mul", (X, Y), Kind.BILINEAR),
    ("mul", (X, 2), Kind.LINEAR), ("__rmul__", (X, 2), Kind.LINEAR), ("mul", (X, X), Kind.BILINEAR),
    ("matmul", (X, W.T), Kind.LINEAR), ("matmul", (W.T, X), Kind.LINEAR), ("matmul", (X, Y.T), Kind.BILINEAR),
    ("div", (X, W), Kind.LINEAR), ("div", (X, 2.0), Kind.LINEAR), ("div", (X, Y), Kind.COMPOSITE),
    ("div", (W, Y), Kind.COMPOSITE), ("add", (X, Y), Kind.LINEAR), ("add", (X, X), Kind.LINEAR),
    ("linear", (X, W), Kind.LINEAR), ("linear", (W, X), Kind.LINEAR), ("linear", (X, Y), Kind.BILINEAR),
    ("linear", (W, W, X[0, :4]), Kind.LINEAR), ("linear", (X, W, Y[:, 0]), Kind.LINEAR),
    ("addmm", (X, W, W), Kind.LINEAR), ("addmm", (W, X, Y), Kind.BILINEAR), ("addmm", (X, Y, W), Kind.LINEAR),
    ("lerp", (X, Y, 0.3), Kind.LINEAR), ("lerp", (W, X, W), Kind.LINEAR), ("lerp", (W, W, X), Kind.MIXING),
    ("lerp", (X, Y, Normal(W, 1.0)), Kind.MIXING), ("einsum", ("ij,ij->i", X, W), Kind.LINEAR),
    ("einsum", ("ij,ij->i", X, Y), Kind.MIXING), ("bilinear", (X, W, W), Kind.LINEAR),
    ("bilinear", (X, Y, W), Kind.MIXING), ("bilinear", (W, W, X), Kind.LINEAR),
    ("batch_norm", (IMAGE, torch.zeros(3), torch.ones(3)), Kind.LINEAR),
    ("batch_norm", (IMAGE, torch.zeros(3), torch.ones(3), None, None, True), Kind.MIXING),
    ("batch_norm", (IMAGE, None, None), Kind.MIXING), ("relu_", (X,), Kind.ELEMENTWISE),
    ("type", (X, torch.float64), Kind.MOVES), ("type", (X,), Kind.PLAIN),
    ("to", (X, torch.float64), Kind.MOVES), ("to", (X, Y), Kind.COMPOSITE),
    ("scatter", (X, 1, torch.zeros(4, 1, dtype=torch.long), Y), Kind.MOVES),
]  # fmt: skip


@pytest.mark.parametrize(("op", "args", "kind"), CASES)
def test_the_kind_depends_on_what_is_random(op: str, args: Any, kind: Kind) -> None:
    assert kind_of(op, *args) is kind


@pytest.mark.parametrize(
    ("op", "args", "kwargs", "kind"),
    [
        ("interpolate", (IMAGE,), {"size": 2}, Kind.MOVES),
        ("interpolate", (IMAGE,), {"size": 2, "mode": "nearest-exact"}, Kind.MOVES),
        ("interpolate", (IMAGE,), {"size": 2, "mode": "bilinear"}, Kind.LINEAR),
        ("interpolate", (IMAGE, 2, None, "bicubic"), {}, Kind.LINEAR),
        ("batch_norm", (IMAGE, torch.zeros(3), torch.ones(3)), {"training": True}, Kind.MIXING),
        ("scatter", (X, 1, torch.zeros(4, 1, dtype=torch.long), Y), {"reduce": "add"}, Kind.LINEAR),
        ("index_put", (X, (torch.tensor([0, 0]),), Y[0]), {}, Kind.MOVES),
        ("index_put", (X, (torch.tensor([0, 0]),), Y[0]), {"accumulate": True}, Kind.LINEAR),
        ("grid_sample", (IMAGE, torch.zeros(2, 1, 1, 2)), {"mode": "nearest"}, Kind.MOVES),
        ("grid_sample", (IMAGE, torch.zeros(2, 1, 1, 2)), {}, Kind.LINEAR),
        ("div", (X, W), {"rounding_mode": "floor"}, Kind.MIXING),
        ("embedding_bag", (torch.zeros(1, 2, dtype=torch.long), X), {}, Kind.LINEAR),
        (
            "embedding_bag",
            (torch.zeros(4, 6, dtype=torch.long), X),
            {"mode": "sum", "per_sample_weights": Y},
            Kind.MIXING,
        ),
    ],
)
def test_the_kind_depends_on_flags(op: str, args: Any, kwargs: Any, kind: Kind) -> None:
    assert kind_of(op, *args, **kwargs) is kind


@pytest.mark.parametrize(
    ("op", "args", "kwargs", "words"),
    [
        ("scatter", (X, 1, torch.zeros(4, 1, dtype=torch.long), Y), {"reduce": "multiply"}, "reduce='multiply'"),
        ("grid_sample", (IMAGE, _normal(2, 1, 1, 2)), {}, "with a random grid"),
        ("grid_sample", (IMAGE.loc, _normal(2, 1, 1, 2)), {}, "with a random grid"),
        ("embedding", (torch.zeros(2, dtype=torch.long), X), {"max_norm": 1.0}, "max_norm"),
        ("embedding_bag", (torch.zeros(1, 2, dtype=torch.long), X), {"mode": "max"}, "mode='max'"),
        ("batch_norm", (IMAGE, _normal(3), torch.ones(3)), {}, "random running statistics"),
        ("batch_norm", (IMAGE.loc, torch.zeros(3), _normal(3)), {}, "random running statistics"),
    ],
)
def test_what_has_no_kind_is_refused(op: str, args: Any, kwargs: Any, words: str) -> None:
    with pytest.raises(MissingRule, match=words):
        kind_of(op, *args, **kwargs)


def test_rounded_quotients_are_refused_for_every_type() -> None:
    with pytest.raises(ValueError, match="rounding_mode='floor'"):
        torch.div(X, W, rounding_mode="floor")
    with pytest.raises(ValueError, match="rounding_mode='trunc'"):
        torch.div(X, Y, rounding_mode="trunc")


# noise


def _acts(op: str, *args: Any, **kwargs: Any) -> bool:
    operation = operation_named(op)
    return operation.acts(Call(operation, args, kwargs))


@pytest.mark.parametrize("op", ["dropout", "dropout1d", "dropout2d", "dropout3d", "feature_dropout"])
def test_dropout_acts_in_training_only(op: str) -> None:
    assert _acts(op, W)
    assert _acts(op, W, 0.3, True)
    assert _acts(op, W, p=0.3, training=True)
    assert not _acts(op, W, 0.3, False)
    assert not _acts(op, W, 0.0, True)
    assert not _acts(op, W, training=False)


@pytest.mark.parametrize("op", ["alpha_dropout", "feature_alpha_dropout"])
def test_alpha_dropout_acts_when_told_to(op: str) -> None:
    assert not _acts(op, W, 0.3)
    assert _acts(op, W, 0.3, True)
    assert not _acts(op, W, 0.0, training=True)


def test_noise_inside_other_operations_acts() -> None:
    heads = torch.ones(1, 2, 3, 4)
    assert not _acts("scaled_dot_product_attention", heads, heads, heads)
    assert _acts("scaled_dot_product_attention", heads, heads, heads, dropout_p=0.1)
    assert _acts("scaled_dot_product_attention", heads, heads, heads, None, 0.1)
    assert not _acts("rrelu", W)
    assert _acts("rrelu", W, training=True)
    assert _acts("rrelu", W, 0.1, 0.3, True)
    for op in ("relu", "linear", "softmax", "cross_entropy", "an operation that nobody knows"):
        assert not _acts(op, W)
    for op in ("stochastic_binary", "gumbel_argmax", "add_noise"):
        assert _acts(op, W)


SHARED = [
    ("dropout", F.dropout, (50, 4, 3)), ("alpha_dropout", F.alpha_dropout, (50, 4, 3)),
    ("dropout1d", F.dropout1d, (50, 4, 3)), ("dropout1d", F.dropout1d, (50, 3)),
    ("dropout2d", F.dropout2d, (50, 4, 3, 2)), ("dropout2d", F.dropout2d, (50, 3, 2)),
    ("dropout3d", F.dropout3d, (50, 4, 3, 2, 2)), ("dropout3d", F.dropout3d, (50, 3, 2, 2)),
    ("feature_dropout", torch.feature_dropout, (50, 4, 3, 2)), ("feature_dropout", torch.feature_dropout, (50, 4)),
    ("feature_alpha_dropout", F.feature_alpha_dropout, (50, 4, 3, 2)),
]  # fmt: skip


@pytest.mark.parametrize(("op", "function", "shape"), SHARED)
def test_units_that_share_a_draw_are_equal(op: str, function: Any, shape: tuple[int, ...]) -> None:
    operation = operation_named(op)
    assert isinstance(operation, Noise)
    ones = torch.ones(shape)
    shared = operation.shared(Call(operation, (ones, 0.5, True), {}, ()))
    torch.manual_seed(0)
    drawn = function(ones, 0.5, True)
    for dim in range(len(shape)):
        is_shared = bool((drawn == drawn.narrow(dim, 0, 1)).all())
        assert is_shared is (dim in shared)


def test_a_chosen_class_is_one_draw_for_all_classes() -> None:
    operation = operation_named("gumbel_argmax")
    assert isinstance(operation, Noise)
    assert operation.shared(Call(operation, (W,), {}, ())) == (1,)
    torch.manual_seed(0)
    assert (functional.gumbel_argmax(W).sum(-1) == 1).all()  # the classes of an example depend on each other


# the table as a whole


def test_every_row_has_a_kind() -> None:
    for row in table():
        assert isinstance(row.kind, Kind)
    for operation in operations():
        assert isinstance(operation.kind, Kind)
        if operation.kind in (Kind.MOVES, Kind.LINEAR):
            assert isinstance(operation, Linear)
        if operation.kind is Kind.BILINEAR:
            assert isinstance(operation, Bilinear)
        assert (operation.kind is Kind.ELEMENTWISE) == isinstance(operation, Elementwise)
        assert (operation.kind is Kind.NOISE) == isinstance(operation, Noise)


def test_every_operation_with_a_rule_was_classified() -> None:
    """None has the kind of an operation that the table does not know."""
    for row in table():
        if row.on is Normal and row.function.__module__.startswith("momentprop"):
            operation = operation_named(row.op)
            assert operation.kind is not Kind.MIXING or "plain" in vars(operation), row.op


def test_an_unknown_operation_is_mixing() -> None:
    assert kind_of("lgamma", X) is Kind.MIXING


def test_a_row_refuses_a_fact_that_it_does_not_know() -> None:
    with pytest.raises(TypeError, match="a Linear row has no fact 'alonk'"):
        Linear("nothing", Kind.LINEAR, alonk="dim")


def test_a_function_without_a_kernel_for_a_type_says_so() -> None:
    call = Call(operation_named("relu"), (Normal(torch.zeros(2), 1.0),), {})
    with pytest.raises(MissingRule, match="no kernel of 'relu' for Mean at top level"):
        call.operation.transform(call, (Mean,))
