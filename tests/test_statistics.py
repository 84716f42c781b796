"""Statistics of a data set: one pixel through layers and networks, against data that it describes, and bad input."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import momentprop
from momentprop import MissingRule, Normal, Statistics, dataset_statistics, input_statistics, rules
from momentprop.nn import GaussianNoise, LogisticBernoulli
from momentprop.rules.statistics.mixing import channels_of
from momentprop.values.statistics import TrainingStatistics
from momentprop_experiments.networks import SEQUENTIAL
from tests.architectures.vision import VGG, BasicBlock, Bottleneck, ResNet, UNet, VisionTransformer
from tests.cases import CASES

MEAN, VARIANCE = torch.tensor([0.5, -1.0, 0.2, 1.5]), torch.tensor([0.5, 1.0, 2.0, 0.1])


def _statistics(channels: int = 4) -> Statistics:
    return Statistics(MEAN[:channels].clone(), VARIANCE[:channels].clone())


def _data(*shape: int) -> Tensor:
    """Independent pixels with these statistics."""
    generator = torch.Generator().manual_seed(7)
    per_channel = [-1] + [1] * (len(shape) - 2)
    noise = torch.randn(shape, generator=generator)
    return MEAN[: shape[1]].reshape(per_channel) + VARIANCE[: shape[1]].sqrt().reshape(per_channel) * noise


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
    norm(2 * _data(50, 4, 8, 8) + 1)
    return norm


@pytest.mark.parametrize("name", LAYERS)
def test_one_pixel_has_the_statistics_of_independent_data(name: str) -> None:
    torch.manual_seed(0)
    make, shape = LAYERS[name]
    layer = make()
    with torch.no_grad():
        pixel = _statistics().each(lambda part: part.reshape([1, -1] + [1] * (len(shape) - 2)))
        _assert_describe(layer(pixel), layer(_data(*shape)))


@pytest.mark.parametrize(("size", "stride", "dilation"), [(2, 2, 1), (3, 2, 1), (4, 2, 1), (3, 1, 2), (2, 3, 1)])
def test_a_transposed_convolution_has_the_statistics_of_its_positions(size: int, stride: int, dilation: int) -> None:
    torch.manual_seed(0)
    layer = nn.ConvTranspose2d(4, 6, size, stride, groups=2, dilation=dilation)
    with torch.no_grad():
        start = 4 * stride  # away from the border
        inside = slice(start, start + 6 * stride)
        _assert_describe(layer(_statistics()), layer(_data(400, 4, 16, 16))[:, :, inside, inside], 0.04)


def test_the_means_of_a_shallow_network_are_exact_and_its_deviations_close() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(4, 16, 3, stride=3), nn.LeakyReLU(0.1), nn.Flatten(), nn.Linear(64, 8))
    with torch.no_grad():
        inside = dataset_statistics(model, _statistics())
        output = model(_data(20000, 4, 6, 6))
    error = (inside["3"].loc - output.mean(0)).abs() / output.std(0)
    assert error.max() < 0.03
    factor = inside["3"].variance.sqrt() / output.std(0)
    assert ((factor > 0.75) & (factor < 1.35)).all(), factor  # channels of one position are correlated


def test_an_average_over_all_positions_keeps_the_variance() -> None:
    x = _statistics()
    for average in (
        nn.AdaptiveAvgPool2d(1),
        lambda v: v.mean((2, 3), keepdim=True),
        lambda v: F.avg_pool2d(v, v.shape[2:]),
    ):
        pixel = x.each(lambda part: part.reshape(1, 4, 1, 1))
        torch.testing.assert_close(channels_of(average(pixel)), (MEAN, VARIANCE))


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(lambda: ResNet(BasicBlock, [2, 2, 2, 2], width=8), id="ResNet-18"),
        pytest.param(lambda: ResNet(Bottleneck, [3, 4, 6, 3], width=4), id="ResNet-50"),
        pytest.param(lambda: VGG(width=4, hidden=16), id="VGG"),
        pytest.param(lambda: VGG(width=4, hidden=16, batch_norm=False), id="VGG without BN"),
        pytest.param(lambda: UNet(width=4), id="U-Net"),
    ],
)
@pytest.mark.parametrize("training", [True, False])
def test_architectures_take_one_pixel_and_stay_as_they_were(model: Callable[[], nn.Module], training: bool) -> None:
    torch.manual_seed(0)
    network = model().train(training)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    inside = dataset_statistics(network, _statistics(3))
    assert inside[""].loc.ndim == 1
    assert all(torch.isfinite(s.variance).all() and (s.variance >= 0).all() for s in inside.values())
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


@pytest.mark.parametrize("activation", ["lrelu", "bernoulli", "logistic"])
@pytest.mark.parametrize("name", ["mlp", "lenet", "cifar"])
def test_the_papers_networks_take_one_pixel(name: str, activation: str) -> None:
    channels = 3 if name == "cifar" else 1
    shape = (3, 32, 32) if name == "cifar" else (1, 28, 28)
    model = SEQUENTIAL[name](activation, dropout=0.2, shape=shape)
    output = model(_statistics(channels))  # of shape (channels,), as it is
    assert output.shape == (1, 10)
    assert (output.variance > 0).all()


def test_a_record_has_a_row_for_every_call_of_a_module() -> None:
    layer = nn.Linear(4, 4)
    model = nn.Sequential(layer, nn.ReLU(), layer)
    inside = dataset_statistics(model, _statistics())
    assert list(inside) == ["0", "1", "0#2", ""]
    torch.testing.assert_close(inside["0#2"].loc, inside[""].loc)


def test_dropout_acts_in_training_and_by_the_type_for_it_always() -> None:
    x = TrainingStatistics(MEAN, VARIANCE)
    for p, layer in ((0.5, nn.Dropout(0.5)), (0.5, nn.Dropout2d(0.5))):
        layer.eval()
        torch.testing.assert_close(layer(_statistics()).variance, VARIANCE)
        torch.testing.assert_close(layer(x).variance, (VARIANCE + p * MEAN**2) / (1 - p))


def test_positions_of_a_plain_tensor_enter_as_a_mixture() -> None:
    positions = torch.linspace(-3.0, 3.0, 16).reshape(1, 1, 4, 4)
    layer = nn.Conv2d(4, 2, 1, bias=False)
    found = layer(_statistics().each(lambda part: part.reshape(1, 4, 1, 1)) + positions)
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
    x = _statistics().each(lambda part: part.reshape(1, 4, 1, 1))
    if isinstance(module, nn.TransformerEncoderLayer):
        x = x.each(lambda part: part.reshape(1, 1, 4))
    with pytest.raises(MissingRule, match=words):
        nn.Sequential(module)(x)


def test_a_transformer_is_refused() -> None:
    with pytest.raises(MissingRule, match="no Statistics rule for 'cat'"):
        dataset_statistics(VisionTransformer(), _statistics(3))


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


def test_every_operation_was_looked_at() -> None:
    of_normal = {
        row.op for row in rules.table() if row.on is Normal and row.function.__module__.startswith("momentprop")
    }
    own = {row.op for row in rules.table() if row.on is Statistics}
    elementwise = {case.op for case in CASES}
    assert not Statistics.refused & own
    assert Statistics.refused <= of_normal
    assert of_normal == Statistics.refused | own | set(SERVED) | elementwise


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


ACTIVATIONS = {
    "kinks": (9e-4, "abs hardsigmoid hardswish hardtanh relu6 selu".split()),
    "smooth": (1.1e-4, "celu elu gelu mish sigmoid silu softplus softsign tanh".split()),
}


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_activations_are_those_of_a_normal_value(kind: str) -> None:
    tolerance, ops = ACTIVATIONS[kind]
    a = torch.linspace(-6.0, 6.0, 1001, dtype=torch.float64)
    for op in ops:
        function = getattr(torch, op, None) or getattr(F, op)
        for deviation in (0.1, 1.0, 3.0, 10.0):
            variance = torch.full_like(a, deviation**2)
            found, wanted = (function(kind.of(a * deviation, variance)) for kind in (Statistics, Normal))
            assert ((found.loc - wanted.loc).abs() < tolerance * deviation).all(), op
            assert ((found.stddev - wanted.stddev).abs() < tolerance * deviation).all(), op


def test_rectifiers_and_binary_units_are_those_of_a_normal_value() -> None:
    a = torch.linspace(-9.0, 9.0, 1001)
    for unit, tolerance in ((torch.relu, 3e-6), (nn.LeakyReLU(0.1), 3e-6), (LogisticBernoulli(), 1e-6)):
        for deviation in (0.1, 1.0, 10.0):
            variance = torch.full_like(a, deviation**2)
            found, wanted = (unit(kind.of(a * deviation, variance)) for kind in (Statistics, Normal))
            assert ((found.loc - wanted.loc).abs() < tolerance * max(deviation, 1)).all()
            assert ((found.variance - wanted.variance).abs() < tolerance * max(deviation**2, 1)).all()


@pytest.mark.parametrize("slope", [0.0, 0.1, -0.3, 2.0])
def test_the_derivatives_of_rectifiers_are_right_and_finite_without_variance(slope: float) -> None:
    mean = torch.linspace(-2.0, 2.0, 9, dtype=torch.float64).requires_grad_()
    variance = torch.linspace(0.1, 2.0, 9, dtype=torch.float64).requires_grad_()

    def run(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        value = F.leaky_relu(Statistics.of(mean, variance), slope)
        return value.loc, value.variance

    assert torch.autograd.gradcheck(run, (mean, variance))
    nothing = torch.zeros_like(mean).requires_grad_()
    gradients = torch.autograd.grad(sum(part.sum() for part in run(mean, nothing)), (mean, nothing))
    assert all((gradient.abs() < 10).all() for gradient in gradients)


def test_a_channel_that_becomes_constant_gives_finite_gradients() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    nn.init.zeros_(model[0].weight)
    output = model(_statistics())
    (output.loc.sum() + output.variance.sum()).backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


# statistics of inputs


@pytest.mark.parametrize("shape", [(700, 4), (70, 4, 5), (70, 4, 5, 6), (7, 4, 3, 4, 5)])
def test_input_statistics_are_those_of_channels(shape: tuple[int, ...]) -> None:
    x = _data(*shape)
    found = input_statistics(x)
    others = [0, *range(2, x.ndim)]
    torch.testing.assert_close(found.loc, x.double().mean(others).float())
    torch.testing.assert_close(found.variance, x.double().var(others, correction=0).float())


def test_input_statistics_of_batches_are_those_of_all() -> None:
    x = 1000 + _data(2500, 4, 3, 3).double() * 1e-3
    whole = input_statistics(x)
    data = torch.utils.data.TensorDataset(x, torch.zeros(len(x)))
    for given in (x.split(77), [(part, 0) for part in x.split(300)], torch.utils.data.DataLoader(data, batch_size=512)):
        found = input_statistics(given)
        torch.testing.assert_close(found.loc, whole.loc)
        torch.testing.assert_close(found.variance, whole.variance, rtol=1e-9, atol=0)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        (torch.zeros(0, 3), ValueError, "no inputs"),
        ([], ValueError, "no inputs"),
        (torch.ones(3), ValueError, r"\(examples, channels, ...\)"),
        (torch.ones(3, 2, dtype=torch.uint8), TypeError, "floating-point"),
        ([{"x": torch.ones(3, 2)}], TypeError, "this is a dict"),
        ([torch.rand(3, 2), torch.rand(3, 3)], ValueError, "3 channels, but those before it have 2"),
        (torch.tensor([[1.0, math.nan], [2.0, 0.0]]), ValueError, "channel 1 is not finite"),
        (torch.tensor([[1.0, 3.0], [2.0, 3.0]]), ValueError, "channel 1 is of zero variance"),
    ],
)
def test_inputs_without_statistics_are_refused(given: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        input_statistics(given)


@pytest.mark.parametrize(
    ("loc", "variance", "words"),
    [
        (torch.zeros(3), torch.tensor([1.0, 0.0, 0.0]), "channels 1, 2 are of zero variance"),
        (torch.zeros(3), torch.tensor([1.0, math.nan, 1.0]), "variance must be finite"),
        (torch.zeros(3), -torch.ones(3), "variance must be non-negative"),
        (torch.zeros(1, 3, 1, 1), torch.ones(1, 3, 1, 1), r"a shape like \(3,\), but loc has \(1, 3, 1, 1\)"),
    ],
)
def test_statistics_that_are_none_are_refused(loc: Tensor, variance: Tensor, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Statistics(loc, variance)


@pytest.mark.parametrize("given", [None, torch.zeros(1, 3, 4, 4), Normal(torch.zeros(3), 1.0)])
def test_unknown_statistics_are_refused(given: Any) -> None:
    model = nn.Conv2d(3, 2, 3)
    for use in (dataset_statistics, momentprop.initialize, momentprop.normalize):
        with pytest.raises(TypeError, match="the statistics of the inputs are unknown"):
            use(model, given)


def test_other_numbers_of_channels_are_refused_with_the_path() -> None:
    model = nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(5, 1))
    with pytest.raises(ValueError, match="takes 3 channels, but the statistics have 4") as caught:
        dataset_statistics(model, _statistics())
    assert "module '0' (Conv2d)" in caught.value.__notes__[0]
    with pytest.raises(ValueError, match="takes 5 features, which are no multiple of the 2 channels"):
        dataset_statistics(model, _statistics(3))
