r"""The table keeps its word: linear operations against their matrices, kinds that depend on arguments, shared draws.

The truth is the matrix $J$ of an operation, built column by column from torch's own function.
"""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from momentprop import Kind, Normal, functional
from momentprop.dispatch import Call, MissingRule, kind_of
from momentprop.dispatch.kinds import Bilinear, Elementwise, Linear, Noise
from momentprop.dispatch.rule_table import operation_named, operations, table
from tests.dispatch.probing import caught, example_calls, flat, matrices
from tests.dispatch.settings import SETTINGS
from tests.examples import EXAMPLES

pytestmark = [
    pytest.mark.filterwarnings("ignore:Using padding='same'"),
    pytest.mark.filterwarnings("ignore:dropout2d. Received a 3D input"),
]

LINEAR = [row.name for row in operations() if isinstance(row, Linear)]
EXAMPLE_CALLS = [op for op in LINEAR if op in EXAMPLES and op not in ("bilinear", "div")]
CALLS = [*EXAMPLE_CALLS, *SETTINGS]
NOT_CALLED = {"alias": "torch has no public function of this name", "cuda": "needs a GPU"}
SHORT = {"bfloat16": 1e-2, "half": 1e-3, "float": 1e-6, "to": 1e-6, "type": 1e-6}


@functools.cache
def _calls(name: str) -> list[tuple[Kind, Call, list[Tensor]]]:
    """The linear calls under a name, with their matrices."""
    if name in SETTINGS:
        op, function, shape = SETTINGS[name]
        calls = [(kind, call) for kind, call in caught(function, *shape) if call.op == op]
    else:
        calls = example_calls(name)
    assert calls, f"{name!r} makes no linear call"
    return [(kind, call, matrices(call)) for kind, call in calls if kind is not Kind.BILINEAR]


def _random(call: Call) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.rand(value.shape, generator=generator, dtype=value.dtype) for value in call.values]


def _product(matrices: list[Tensor], tensors: list[Tensor]) -> Tensor:
    return torch.stack([m @ x.flatten() for m, x in zip(matrices, tensors, strict=True)]).sum(0)


def _assert_close(found: Tensor, expected: Tensor, name: str) -> None:
    tolerance = SHORT.get(name, 1e-12)
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=10 * tolerance)


def test_every_linear_operation_is_called_here() -> None:
    called = {call.op for name in CALLS for _, call, _ in _calls(name)}
    both_random = {"vdot"}  # see the bilinear ones below
    assert set(LINEAR) - set(NOT_CALLED) - both_random == called


@pytest.mark.parametrize("name", CALLS)
def test_it_is_linear(name: str) -> None:
    for _, call, matrix in _calls(name):
        more, locs = _random(call), [value.loc for value in call.values]
        step = [a + b for a, b in zip(locs, more, strict=True)]
        tolerance = 100 if name in SHORT else 1  # a difference of rounded numbers
        torch.testing.assert_close(
            flat(call.on(*step)) - flat(call.on(*locs)),
            _product(matrix, more),
            rtol=0.0,
            atol=tolerance * SHORT.get(name, 1e-12),
        )
        _assert_close(flat(call.operation.homogeneous(call).on(*locs)), _product(matrix, locs), name)


@pytest.mark.parametrize("name", CALLS)
def test_squares_are_those_of_the_weights(name: str) -> None:
    for _, call, matrix in _calls(name):
        variances = _random(call)
        found = call.operation.squares(call, *variances)
        _assert_close(flat(found), _product([m * m for m in matrix], variances), name)


@pytest.mark.parametrize("name", CALLS)
def test_the_transpose_is_one_of_forward_operations(name: str) -> None:
    for _, call, matrix in _calls(name):
        gradient = _like(call.on(*(value.loc for value in call.values)))
        found = call.operation.transpose(call, gradient)
        assert [part.shape for part in found] == [value.shape for value in call.values]
        for part, m in zip(found, matrix, strict=True):
            _assert_close(part.flatten(), m.T @ flat(gradient), name)

        graph = make_fx(_transposed(call))(gradient)
        assert not [node.target for node in graph.graph.nodes if "backward" in str(node.target)]


def _transposed(call: Call) -> Callable[[Any], Any]:
    def transposed(gradient: Any) -> Any:
        return call.operation.transpose(call, gradient)

    return transposed


def _like(result: Any) -> Any:
    generator = torch.Generator().manual_seed(2)
    if isinstance(result, Tensor):
        if not result.is_floating_point():
            return result
        return torch.rand(result.shape, generator=generator, dtype=torch.float64).to(result.dtype)
    return type(result)(_like(part) for part in result)


@pytest.mark.parametrize("name", CALLS)
def test_a_move_takes_one_element_or_none(name: str) -> None:
    for kind, call, matrix in _calls(name):
        if kind is Kind.MOVES:
            joined = torch.cat(matrix, 1)
            assert set(joined.unique().tolist()) <= {0.0, 1.0}
            assert int(joined.sum(1).max()) <= 1
            if _copies(call, matrix):
                assert call.operation.copying(call)


def _copies(call: Call, matrix: list[Tensor]) -> bool:
    """Whether a column has two ones; the columns of a value that is given twice are added."""
    columns: dict[int, Tensor] = {}
    for value, m in zip(call.values, matrix, strict=True):
        columns[id(value)] = columns.get(id(value), torch.zeros(())) + m.sum(0)
    return any(int(total.max()) > 1 for total in columns.values())


@pytest.mark.parametrize(
    "name",
    ["permute", "view", "transpose", "flip", "roll", "reshape", "getitem, indices", "getitem, a mask", "split",
     "setitem", "where", "interpolate {'size': (3, 4)}", "masked_fill", "gather", "unbind", "pad, cropped"],
)  # fmt: skip
def test_a_permutation_or_selection_copies_nothing(name: str) -> None:
    for kind, call, _ in _calls(name):
        assert kind is Kind.MOVES
        assert not call.operation.copying(call)


@pytest.mark.parametrize(
    "name",
    ["expand", "repeat", "repeat_interleave", "tile", "pad, replicate", "pad, reflect in 2d", "pad, circular",
     "getitem, repeated", "getitem, a list", "getitem, counted from both ends", "gather, repeated",
     "index_select, repeated", "take, repeated", "cat with itself", "stack with itself", "where, one for several",
     "masked_fill, one for several", "masked_fill, a random filling", "setitem, one for several",
     "copy, one for several", "index_put, a value", "embedding", "unfold, overlapping", "as_strided, overlapping",
     "interpolate {'scale_factor': 2}", "grid_sample of a volume, nearest"],
)  # fmt: skip
def test_repeated_elements_are_copies(name: str) -> None:
    last = [call for kind, call, _ in _calls(name) if kind is Kind.MOVES][-1]
    assert last.operation.copying(last)


# kinds that depend on the arguments


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
        ("grid_sample", (IMAGE, _normal(2, 1, 1, 2)), {}, "at random places"),
        ("grid_sample", (IMAGE.loc, _normal(2, 1, 1, 2)), {}, "at random places"),
        ("embedding", (torch.zeros(2, dtype=torch.long), X), {"max_norm": 1.0}, "max_norm"),
        ("embedding_bag", (torch.zeros(1, 2, dtype=torch.long), X), {"mode": "max"}, "mode='max'"),
        ("batch_norm", (IMAGE, torch.zeros(3), torch.ones(3), _normal(3)), {}, "random weight, bias or statistic"),
        ("batch_norm", (IMAGE.loc, torch.zeros(3), torch.ones(3), None, _normal(3)), {}, "random weight, bias"),
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


# two random factors


def _factor(*shape: int) -> Normal:
    generator = torch.Generator().manual_seed(sum(shape))
    mean, variance = (torch.rand(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    return Normal(2 * mean - 1, variance)


BILINEAR: dict[str, tuple[Any, tuple[Normal, ...]]] = {
    "linear": (F.linear, (_factor(2, 3), _factor(4, 3), _factor(4))),
    "mul": (torch.mul, (_factor(2, 3), _factor(3))),
    "matmul": (torch.matmul, (_factor(2, 3), _factor(2, 3, 4))),
    "inner": (torch.inner, (_factor(2, 3), _factor(4, 3))),
    "mm": (torch.mm, (_factor(2, 3), _factor(3, 4))),
    "bmm": (torch.bmm, (_factor(2, 2, 3), _factor(2, 3, 2))),
    "mv": (torch.mv, (_factor(2, 3), _factor(3))),
    "dot": (torch.dot, (_factor(3), _factor(3).flip(0))),
    "vdot": (torch.vdot, (_factor(3), _factor(3).flip(0))),
    "outer": (torch.outer, (_factor(3), _factor(2))),
    "tensordot": (lambda a, b: torch.tensordot(a, b, dims=([1, 0], [0, 1])), (_factor(2, 3), _factor(3, 2, 2))),
    "addmm": (
        lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=-2),
        (_factor(2, 4), _factor(2, 3), _factor(3, 4)),
    ),
    "addmv": (lambda c, a, b: torch.addmv(c, a, b, beta=2), (_factor(2), _factor(2, 3), _factor(3))),
    "addr": (lambda c, a, b: torch.addr(c, a, b, alpha=3), (_factor(3, 2), _factor(3), _factor(2))),
    "addbmm": (
        lambda c, a, b: torch.addbmm(c, a, b, beta=2, alpha=0.5),
        (_factor(2, 2), _factor(2, 2, 3), _factor(2, 3, 2)),
    ),
    "baddbmm": (
        lambda c, a, b: torch.baddbmm(c, a, b, beta=2, alpha=0.5),
        (_factor(2, 2, 2), _factor(2, 2, 3), _factor(2, 3, 2)),
    ),
    "addcmul": (lambda c, a, b: torch.addcmul(c, a, b, value=-3), (_factor(3), _factor(2, 3), _factor(2, 1))),
    "conv1d": (lambda x, w, b: F.conv1d(x, w, b, 2, 1), (_factor(1, 2, 5), _factor(2, 2, 3), _factor(2))),
    "conv2d": (lambda x, w: F.conv2d(x, w, groups=2, padding="same"), (_factor(1, 2, 3, 3), _factor(2, 1, 3, 3))),
    "conv3d": (F.conv3d, (_factor(1, 1, 3, 2, 2), _factor(2, 1, 2, 2, 1))),
    "conv_transpose1d": (lambda x, w: F.conv_transpose1d(x, w, stride=2), (_factor(1, 2, 3), _factor(2, 1, 3))),
    "conv_transpose2d": (F.conv_transpose2d, (_factor(1, 1, 2, 2), _factor(1, 2, 2, 2))),
    "conv_transpose3d": (F.conv_transpose3d, (_factor(1, 1, 2, 1, 2), _factor(1, 1, 2, 2, 1))),
}


def test_every_bilinear_operation_is_multiplied_here() -> None:
    assert set(BILINEAR) == {row.name for row in operations() if isinstance(row, Bilinear)}


@pytest.mark.parametrize("op", BILINEAR)
def test_independent_factors_multiply_exactly(op: str) -> None:
    r"""By algebra: for a multilinear $y$ the variance is a sum over sets of variables of squared derivatives.

    With every variable two-valued, $\mu \pm \sigma$, the moments are those of any distribution; for a form of two
    factors and summands they follow from the first derivatives and the mixed second ones.
    """
    function, factors = BILINEAR[op]
    found = function(*factors)
    locs = tuple(factor.loc for factor in factors)
    spread = torch.cat([factor.variance.flatten() for factor in factors])
    sizes = [loc.numel() for loc in locs]

    def of_all(flat: Tensor) -> Tensor:
        parts = [part.reshape(loc.shape) for part, loc in zip(flat.split(sizes), locs, strict=True)]
        return function(*parts).flatten()

    point = torch.cat([loc.flatten() for loc in locs])
    first = torch.func.jacrev(of_all)(point)
    mixed = torch.func.jacfwd(torch.func.jacrev(of_all))(point)
    by_pairs = torch.einsum("kij,i,j->k", mixed.square(), spread, spread) / 2
    torch.testing.assert_close(found.loc.flatten(), of_all(point))
    torch.testing.assert_close(found.variance.flatten(), first.square() @ spread + by_pairs)


def test_a_value_times_itself_is_squared() -> None:
    x = _factor(3)
    for product in (x * x, torch.mul(x, x)):
        torch.testing.assert_close(product.variance, 4 * x.loc**2 * x.variance + 2 * x.variance**2)
    torch.testing.assert_close(torch.dot(x, x).loc, (x.loc**2 + x.variance).sum())


def test_a_module_with_a_random_bias_is_linear_in_it() -> None:
    layer = nn.Linear(3, 2)
    bias = Normal(torch.zeros(2), 1.0)
    result: Any = F.linear(torch.ones(4, 3), layer.weight, bias)
    torch.testing.assert_close(result.variance, torch.ones(4, 2))
