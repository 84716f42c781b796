"""Statistics of a data set: one pixel through layers, against data that it describes."""

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from momentprop import Kind, MissingRule, Normal, Statistics, rules
from momentprop.dispatch.rule_table import operation_named
from momentprop.nn import GaussianNoise, LogisticBernoulli
from momentprop.rules.statistics.mixing import channels_of
from momentprop.torch_compat import pytrees as pytree
from momentprop.values import Value
from tests.examples import Example, constant, example
from tests.rules.statistics.data import MEAN, VARIANCE, data_of, statistics_of


def _assert_describe(found: Any, output: Tensor, tolerance: float = 0.03) -> None:
    """The statistics are those of a batch of outputs: means relative to the deviation, and variances."""
    mean, variance = channels_of(found)
    others = [0, *range(2, output.ndim)]
    true_variance, true_mean = torch.var_mean(output, others, correction=0)
    assert ((mean - true_mean).abs() < tolerance * true_variance.sqrt() + 1e-4).all(), (mean, true_mean)
    assert ((variance / true_variance - 1).abs() < tolerance + 1e-4).all(), (variance, true_variance)


class Reshape(nn.Module):
    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, x: Any) -> Any:
        return x.view(-1, *self.shape)


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "conv1d": (lambda: nn.Conv1d(4, 3, 3, stride=2), (500, 4, 64)),
    "conv2d": (lambda: nn.Conv2d(4, 3, (3, 2), dilation=2), (200, 4, 16, 16)),
    "conv2d in groups": (lambda: nn.Conv2d(4, 6, 3, groups=2, bias=False), (200, 4, 16, 16)),
    "conv2d by channel": (lambda: nn.Conv2d(4, 4, 3, groups=4), (200, 4, 16, 16)),
    "conv3d": (lambda: nn.Conv3d(4, 3, 2), (100, 4, 8, 8, 8)),
    "conv2d and relu": (lambda: nn.Sequential(nn.Conv2d(4, 3, 3), nn.ReLU(inplace=True)), (300, 4, 16, 16)),
    "linear": (lambda: nn.Linear(4, 3), (40000, 4)),
    "flatten and linear": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(4 * 9, 3)), (20000, 4, 3, 3)),
    "view and linear": (lambda: nn.Sequential(Reshape(4 * 9), nn.Linear(4 * 9, 3)), (20000, 4, 3, 3)),
    "unflatten and relu": (lambda: nn.Sequential(nn.Unflatten(1, (2, 2, 1)), nn.ReLU()), (40000, 4)),
    "avg_pool2d": (lambda: nn.AvgPool2d(2), (200, 4, 32, 32)),
    "max_pool2d": (lambda: nn.MaxPool2d(3), (500, 4, 33, 33)),
    "max_pool1d": (lambda: nn.MaxPool1d(2), (500, 4, 128)),
    "batch_norm in training": (lambda: nn.BatchNorm2d(4), (100, 4, 16, 16)),
    "batch_norm in evaluation": (lambda: _used(nn.BatchNorm2d(4)).eval(), (100, 4, 16, 16)),
    "instance_norm": (lambda: nn.InstanceNorm2d(4, affine=True), (100, 4, 16, 16)),
    "group_norm": (lambda: nn.GroupNorm(2, 4), (100, 4, 16, 16)),
    "layer_norm": (lambda: nn.LayerNorm((4, 16, 16)), (100, 4, 16, 16)),
    "dropout": (lambda: nn.Dropout(0.4), (200, 4, 16, 16)),
    "noise": (lambda: GaussianNoise(0.7), (200, 4, 16, 16)),
    "binary units": (lambda: nn.Sequential(nn.Conv2d(4, 3, 2), LogisticBernoulli()), (400, 4, 16, 16)),
    "pixel_shuffle": (lambda: nn.PixelShuffle(2), (400, 4, 16, 16)),
    "upsample": (lambda: nn.Upsample(scale_factor=2), (100, 4, 16, 16)),
}


def _used(norm: nn.Module) -> nn.Module:
    norm(2 * data_of(50, 4, 8, 8) + 1)
    return norm


@pytest.mark.parametrize("name", LAYERS)
def test_one_pixel_has_the_statistics_of_independent_data(name: str) -> None:
    torch.manual_seed(0)
    make, shape = LAYERS[name]
    layer = make()
    with torch.no_grad():
        pixel = statistics_of().each(lambda part: part.reshape([1, -1] + [1] * (len(shape) - 2)))
        _assert_describe(layer(pixel), layer(data_of(*shape)))


@pytest.mark.parametrize(("size", "stride", "dilation"), [(2, 2, 1), (3, 2, 1), (4, 2, 1), (3, 1, 2), (2, 3, 1)])
def test_a_transposed_convolution_has_the_statistics_of_its_positions(size: int, stride: int, dilation: int) -> None:
    torch.manual_seed(0)
    layer = nn.ConvTranspose2d(4, 6, size, stride, groups=2, dilation=dilation)
    with torch.no_grad():
        start = 4 * stride  # away from the border
        inside = slice(start, start + 6 * stride)
        _assert_describe(layer(statistics_of()), layer(data_of(400, 4, 16, 16))[:, :, inside, inside], 0.04)


def test_an_average_over_all_positions_keeps_the_variance() -> None:
    x = statistics_of()
    for average in (
        nn.AdaptiveAvgPool2d(1),
        lambda v: v.mean((2, 3), keepdim=True),
        lambda v: F.avg_pool2d(v, v.shape[2:]),
    ):
        pixel = x.each(lambda part: part.reshape(1, 4, 1, 1))
        torch.testing.assert_close(channels_of(average(pixel)), (MEAN, VARIANCE))


def test_positions_of_a_plain_tensor_enter_as_a_mixture() -> None:
    positions = torch.linspace(-3.0, 3.0, 16).reshape(1, 1, 4, 4)
    layer = nn.Conv2d(4, 2, 1, bias=False)
    found = layer(statistics_of().each(lambda part: part.reshape(1, 4, 1, 1)) + positions)
    weight = layer.weight.flatten(1)
    torch.testing.assert_close(found.loc.flatten(), weight @ MEAN)
    expected = weight.square() @ (VARIANCE + positions.var(correction=0))
    torch.testing.assert_close(found.variance.flatten(), expected)


class _Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(4, 4)

    def forward(self, x: Any) -> Any:
        return self.cell(x.flatten(1))[0]


class _Mixed(nn.Module):
    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (_Cell(), "'lstm_cell' at module '0.cell'"),
        (
            nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, norm_first=True),
            "scaled_dot_product_attention|multi_head",
        ),
        (_Mixed(lambda x: x @ x.mT), "'matmul'.* at module '0'"),
        (_Mixed(lambda x: x.sum((2, 3))), "'sum' along dimension .*positions"),
        (_Mixed(lambda x: x.amax((2, 3))), "'amax' along dimension .*positions"),
        (_Mixed(lambda x: torch.softmax(x, -1)), "'softmax' along dimension -1"),
        (_Mixed(lambda x: x[:, :, 1:]), "'getitem'"),
        (_Mixed(lambda x: x.view(64, -1)), "'view' from"),
        (_Mixed(lambda x: torch.cat([x, x], 2)), "'cat' along dimension 2"),
        (_Mixed(torch.var), "'var' at module '0'"),
        (_Mixed(torch.fft.fft), "'fft_fft' at module '0'"),
        (nn.AdaptiveMaxPool2d(1), "'adaptive_max_pool2d' at module '0'"),
    ],
)
def test_what_one_pixel_cannot_tell_is_refused_with_the_path(module: nn.Module, words: str) -> None:
    x = statistics_of().each(lambda part: part.reshape(1, 4, 1, 1))
    if isinstance(module, nn.TransformerEncoderLayer):
        x = x.each(lambda part: part.reshape(1, 1, 4))
    with pytest.raises(MissingRule, match=words):
        nn.Sequential(module)(x)


LACKING = [op for op in ("linear_cross_entropy",) if not hasattr(F, op)]  # before torch 2.13

REFUSED = """
    _pack_padded_sequence _pad_packed_sequence adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d
    _grouped_mm addbmm addmv addr as_strided baddbmm bilinear binary_cross_entropy binary_cross_entropy_with_logits
    block_diag bmm class_posterior cosine_embedding_loss cosine_similarity cross_entropy cumsum diag
    diag_embed diagflat diagonal diagonal_scatter dot einsum embedding embedding_bag fold gaussian_nll_loss
    grid_sample gru gru_cell hinge_embedding_loss huber_loss index_add index_copy index_fill index_put inner
    kl_div l1_loss linalg_multi_dot linalg_norm linalg_vector_norm linear_cross_entropy linear_posterior
    lp_pool1d lp_pool2d lp_pool3d lstm lstm_cell margin_ranking_loss masked_scatter masked_select
    max_unpool1d max_unpool2d max_unpool3d mse_loss multi_head_attention_forward multi_margin_loss
    multilabel_margin_loss multilabel_soft_margin_loss mv norm outer pairwise_distance pixel_unshuffle
    poisson_nll_loss resize resize_as rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell rot90 scaled_dot_product_attention
    scatter scatter_add select_scatter setitem slice_scatter smooth_l1_loss soft_margin_loss std std_mean
    take take_along_dim tensordot tril triplet_margin_loss triplet_margin_with_distance_loss triu unfold var
    var_mean vdot
""".split()
"""Operations that relate positions or examples, of which one pixel tells nothing."""

SERVED = """
    add add_noise addcdiv addcmul alias alpha_dropout bfloat16 binary_step broadcast_tensors broadcast_to
    channel_shuffle chunk clone column_stack contiguous copy cpu cuda detach div double dropout dropout1d dropout2d
    dropout3d dsplit dstack empty_like expand expand_as feature_alpha_dropout feature_dropout flip fliplr flipud float
    full_like gather half hsplit hstack index_select isfinite isinf isnan lerp local_response_norm log log10 log1p log2
    log_sigmoid masked_fill max_with_covariance maximum mean minimum movedim mul multiply_noise narrow neg new_empty
    new_empty_strided new_full new_ones new_tensor new_zeros noisy_activation ones_like permute pixel_shuffle positive
    rand_like randint_like randn_like ravel reciprocal repeat repeat_interleave requires_grad_ reshape_as roll row_stack
    rsqrt select split sqrt squeeze stack sub t tensor_split tile to transpose type type_as unbind
    unsqueeze view_as vsplit vstack where zeros_like
    adaptive_max_pool1d_with_indices adaptive_max_pool2d_with_indices adaptive_max_pool3d_with_indices
    max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices
""".split()
"""Operations whose rule for `Normal` is right for one pixel; those with indices refuse it themselves."""

NOT_RUN = {
    *("alias", "cuda", "requires_grad_", "_nested_tensor_from_mask_left_aligned"),
    *("is_complex", "is_floating_point", "is_signed", "numel"),
}
"""Operations that torch has no public function for, that need a GPU, or whose answer is not a value."""

CHOICES = {"argmax", "argmin", "argsort"}
"""Operations by which a model chooses among values; statistics of many inputs have no such choice."""

OPS = sorted({row.op for row in rules.table() if row.function.__module__.startswith("momentprop")})
OWN = {row.op for row in rules.table() if row.on is Statistics}
MORE: dict[str, Example] = {
    "_pack_padded_sequence": Example(lambda x: _packed(x), (3, 4, 2)),
    "_pad_packed_sequence": Example(lambda x: nn.utils.rnn.pad_packed_sequence(_sequence(x))),
    "masked_select": Example(lambda x: x.masked_select(constant(4, 6) > 0)),
}


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _sequence(x: Any) -> Any:
    return nn.utils.rnn.PackedSequence(x, torch.tensor([2, 2]))


def _packed(x: Any) -> Any:
    return nn.utils.rnn.pack_padded_sequence(x, torch.tensor([4, 2, 1]), batch_first=True)


def _example(op: str) -> Example:
    found = example(op, Statistics) or MORE.get(op)
    assert found is not None, f"{op!r} has no example"
    return found


def _run(op: str, on: type[Value]) -> list[Any]:
    """What the example of an operation gives for a type of value, as a list."""
    torch.manual_seed(0)  # for those like `rand_like`
    with default_dtype(torch.float64):
        return pytree.tree_leaves(_example(op).call(_example(op).value(on)), is_leaf=lambda x: isinstance(x, Value))


def _tried(op: str) -> tuple[list[Any], str | None]:
    try:
        return _run(op, Statistics), None
    except MissingRule as error:
        return [], str(error)


def _served_as_normal(op: str) -> bool:
    """Whether the statistics pass, in which case the result is that of `Normal`, or are refused by name."""
    found, error = _tried(op)
    if error is not None:
        assert re.search(rf"no Statistics rule for {op!r} .*at top level", error)
        return False
    if op not in OWN:
        for mine, normal in zip(found, _run(op, Normal), strict=True):
            assert type(mine) is (Statistics if isinstance(normal, Normal) else type(normal))
            parts = normal.components if isinstance(normal, Value) else ()
            for part in parts:  # the kernels for one pixel are those of `Normal` to 1e-6
                torch.testing.assert_close(getattr(mine, part), getattr(normal, part), rtol=1e-6, atol=1e-6)
            if not parts:
                assert torch.equal(mine, normal)
    return True


@pytest.mark.parametrize("op", [op for op in OPS if op not in {*NOT_RUN, *LACKING} and not op.endswith("with_indices")])
def test_every_operation_is_served_or_refused(op: str) -> None:
    _served_as_normal(op)


def test_no_operation_is_left_out() -> None:
    """What the table gained since the lists were written is served, of its own or as `Normal`, or a loss."""
    of_normal = {row.op for row in rules.table() if issubclass(Normal, row.on) and row.op in OPS}
    known = {op for op in of_normal if operation_named(op).kind is not Kind.ELEMENTWISE}
    rest = known - set(REFUSED) - set(SERVED) - OWN - NOT_RUN - CHOICES
    assert set(REFUSED) | set(SERVED) <= set(OPS)
    assert all(_served_as_normal(op) for op in rest if operation_named(op).kind is not Kind.LOSS)


@pytest.mark.parametrize("op", [op for op in REFUSED if op not in LACKING])
def test_what_relates_positions_is_refused(op: str) -> None:
    with pytest.raises(MissingRule, match=f"no Statistics rule for {op!r} at .*relates positions or examples"):
        _run(op, Statistics)


@pytest.mark.parametrize("op", sorted(CHOICES))
def test_choices_are_refused(op: str) -> None:
    with pytest.raises(MissingRule, match=f"no Statistics rule for {op!r}"):
        _run(op, Statistics)


@pytest.mark.parametrize("op", [op for op in SERVED if op not in NOT_RUN and not op.endswith("with_indices")])
def test_what_acts_on_each_element_is_served(op: str) -> None:
    assert _served_as_normal(op)


@pytest.mark.parametrize("op", [op for op in SERVED if op.endswith("with_indices")])
def test_indices_of_random_maxima_are_refused(op: str) -> None:
    function = getattr(F, op)
    x = statistics_of().each(lambda part: part.reshape([1, 4] + [1] * int(op.split("pool")[1][0])))
    with pytest.raises(ValueError, match="cannot return the indices of random maxima"):
        function(x, 1)


def test_gradients_flow_through_the_pass() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3, groups=1), nn.BatchNorm2d(3), nn.LeakyReLU(0.1), nn.MaxPool2d(2), nn.Dropout(0.3),
        nn.ConvTranspose2d(3, 4, 3, stride=2, groups=1), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(16, 2),
    ).double()  # fmt: skip
    names = [name for name, _ in model.named_parameters()]

    def run(loc: Tensor, variance: Tensor, *parameters: Tensor) -> tuple[Tensor, Tensor]:
        pixel = Statistics.of(loc.reshape(1, 2, 1, 1), variance.reshape(1, 2, 1, 1))
        output: Any = torch.func.functional_call(model, dict(zip(names, parameters, strict=True)), (pixel,))
        return output.loc, output.variance

    inputs = [MEAN[:2].double(), VARIANCE[:2].double(), *(p.detach().clone() for p in model.parameters())]
    assert torch.autograd.gradcheck(run, [x.requires_grad_() for x in inputs], fast_mode=True)


def test_a_channel_that_becomes_constant_gives_finite_gradients() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    nn.init.zeros_(model[0].weight)
    output = model(statistics_of())
    (output.loc.sum() + output.variance.sum()).backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())
