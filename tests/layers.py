"""All layers of `torch.nn`, with what each does to a `Normal`; `tests/stack/test_torch_nn.py` walks the table.

`python -m tests.layers > docs/layers.md` measures every layer against Monte Carlo and writes the page.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from momentprop import Normal

VARIANCE = 0.02  # of every random input, whose means are standard normal


@dataclasses.dataclass(frozen=True)
class Shape:
    """A random argument of this shape."""

    sizes: tuple[int, ...]
    around: float = 0.0  # added to the means

    def mean(self, generator: torch.Generator) -> Tensor:
        return torch.randn(self.sizes, generator=generator, dtype=torch.float64) + self.around


@dataclasses.dataclass(frozen=True)
class Case:
    """One configuration of a layer and its arguments."""

    name: str
    args: tuple[Any, ...] = ()  # modules among them as functions that make them
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    inputs: tuple[Any, ...] = ()
    call: Callable[..., Any] = lambda layer, *inputs: layer(*inputs)
    status: str = "works"
    note: str = ""
    training: bool = False
    # Whether the layer's own result, a loss, is the expected one: its mean over draws of the input.
    expected: bool = True
    # How far the deviation may lie from that of Monte Carlo, as a ratio, and the means, in deviations.
    apart: float = 0.1
    mean_apart: float = 0.2
    variance: float = VARIANCE
    reaches_parameters: bool = True
    compiles: bool = True  # False where the plain layer does not, or only by a setting that `test_recurrent` makes

    @property
    def id(self) -> str:
        return f"{self.name}({self.settings})" if self.args or self.kwargs else self.name

    @property
    def settings(self) -> str:
        given = [str(argument) for argument in self.args if not callable(argument)]
        named = ((name, "..." if isinstance(value, Tensor) else value) for name, value in self.kwargs.items())
        return ", ".join(given + [f"{name}={value}" for name, value in named])

    def layer(self) -> nn.Module:
        """The layer, the same at each call; a lazy one is materialized by a value."""
        torch.manual_seed(0)
        args = [make() if callable(make) else make for make in self.args]
        layer = getattr(nn, self.name)(*args, **self.kwargs).double().train(self.training)
        if self.name.startswith("Lazy"):
            self.run(layer, self.values())
        return layer

    def means(self) -> list[Any]:
        generator = torch.Generator().manual_seed(1)
        return [given.mean(generator) if isinstance(given, Shape) else given for given in self.inputs]

    def values(self, variance: float | None = None) -> list[Any]:
        spread = self.variance if variance is None else variance
        pairs = zip(self.inputs, self.means(), strict=True)
        return [Normal(mean, spread) if isinstance(given, Shape) else mean for given, mean in pairs]

    def run(self, layer: nn.Module, arguments: list[Any]) -> Any:
        """The layer's result; of several, the first."""
        result = self.call(layer, *arguments)
        return result[0] if isinstance(result, tuple) else result


def works(name: str, inputs: Any, *args: Any, **options: Any) -> Case:
    fields = {field.name for field in dataclasses.fields(Case)}
    given = {key: options.pop(key) for key in list(options) if key in fields}
    return Case(name, args, options, inputs if isinstance(inputs, tuple) else (inputs,), **given)


def missing(name: str, inputs: Any, *args: Any, note: str, **options: Any) -> Case:
    return dataclasses.replace(works(name, inputs, *args, **options), status="MissingRule", note=note)


def not_applicable(name: str, note: str) -> Case:
    return Case(name, status="not applicable", note=note)


def shape(*sizes: int, around: float = 0.0) -> Shape:
    return Shape(sizes, around)


def classes(*sizes: int, of: int) -> Tensor:
    return torch.randint(of, sizes, generator=torch.Generator().manual_seed(2))


def uniform(*sizes: int) -> Tensor:
    return torch.rand(sizes, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def signs(*sizes: int) -> Tensor:
    return torch.where(uniform(*sizes) > 0.5, 1.0, -1.0).double()


SIZES = {1: (7,), 2: (6, 7), 3: (4, 5, 6)}
SMALL = {1: (4,), 2: (4, 4), 3: (4, 4, 4)}


def images(dims: int, channels: int = 4, **options: Any) -> Shape:
    return shape(2, channels, *SIZES[dims], **options)


def _convolutions() -> list[Case]:
    found = []
    for dims in (1, 2, 3):
        x = images(dims)
        for mode in ("zeros", "reflect", "replicate", "circular"):
            found.append(works(f"Conv{dims}d", x, 4, 6, 3, padding=1, padding_mode=mode))
        found.append(works(f"Conv{dims}d", x, 4, 6, 3, padding="same", groups=2, bias=False))
        found.append(works(f"Conv{dims}d", x, 4, 8, 2, stride=2, dilation=2, groups=4, padding=1))
        settings: dict[str, Any] = {"stride": 2, "padding": 1}
        found.append(works(f"ConvTranspose{dims}d", x, 4, 6, 3, **settings, output_padding=1, groups=2))
        found.append(works(f"ConvTranspose{dims}d", x, 4, 6, 2, dilation=2, bias=False))
        found.append(works(f"LazyConv{dims}d", x, 6, 3))
        found.append(works(f"LazyConvTranspose{dims}d", x, 6, 3))
    return found


def _paddings() -> list[Case]:
    found = []
    for dims in (1, 2, 3):
        for kind in ("Zero", "Reflection", "Replication", "Circular"):
            found.append(works(f"{kind}Pad{dims}d", images(dims), (1, 2) * dims))
        found.append(works(f"ConstantPad{dims}d", images(dims), (1, 2) * dims, 3.0))
    return found


def _normalizations() -> list[Case]:
    found = []
    for dims in (1, 2, 3):
        x = images(dims)
        found.append(works(f"BatchNorm{dims}d", x, 4))
        found.append(works(f"BatchNorm{dims}d", x, 4, training=True, apart=0.2))
        found.append(works(f"LazyBatchNorm{dims}d", x))
        found.append(works(f"InstanceNorm{dims}d", x, 4, affine=True))
        found.append(works(f"InstanceNorm{dims}d", x, 4, track_running_stats=True))
        found.append(works(f"LazyInstanceNorm{dims}d", x))
    return [
        *found,
        works("SyncBatchNorm", images(2), 4, note="in eval mode, and in training within one process"),
        works("LayerNorm", shape(3, 8), 8),
        works("LayerNorm", images(2), (4, 6, 7), bias=False),
        works("RMSNorm", shape(3, 8), 8),
        works("GroupNorm", images(2), 2, 4),
        works("LocalResponseNorm", images(2), 3, alpha=0.1),
        missing("CrossMapLRN2d", images(2), 3, note="a custom autograd function; `LocalResponseNorm` has a rule"),
    ]


def _poolings() -> list[Case]:
    found = []
    for dims in (1, 2, 3):
        x = images(dims)
        found.append(works(f"AvgPool{dims}d", x, 3, 2, 1, ceil_mode=True, count_include_pad=False))
        found.append(works(f"AdaptiveAvgPool{dims}d", x, 3))
        found.append(works(f"MaxPool{dims}d", x, 3, 2, 1))
        found.append(works(f"MaxPool{dims}d", x, 2, dilation=2, ceil_mode=True))
        found.append(works(f"AdaptiveMaxPool{dims}d", x, 3))
        found.append(works(f"LPPool{dims}d", images(dims, around=4.0), 2, 2))
        found.append(_unpool(dims))
    return [
        *found,
        missing("FractionalMaxPool2d", images(2), 2, output_size=3, note="it draws its windows at random"),
        missing("FractionalMaxPool3d", images(3), 2, output_size=2, note="it draws its windows at random"),
    ]


def _unpool(dims: int) -> Case:
    small = SMALL[dims]
    places = (torch.arange(math.prod(small)) * 2**dims).reshape(1, 1, *small)
    return works(f"MaxUnpool{dims}d", (shape(1, 1, *small), places), 2)


def _activations() -> list[Case]:
    x = shape(3, 8)
    plain = """CELU ELU GELU Hardshrink Hardsigmoid Hardswish Hardtanh LeakyReLU LogSigmoid Mish PReLU RReLU ReLU ReLU6
        SELU SiLU Sigmoid Softplus Softshrink Softsign Tanh Tanhshrink Identity""".split()
    return [
        *(works(name, x) for name in plain),
        works("GELU", x, approximate="tanh"),
        works("ReLU", x, inplace=True, call=lambda layer, x: layer(x.clone())),
        works("RReLU", x, training=True, note="its slopes are noise in training"),
        works("Threshold", x, 0.1, 20.0),
        works("GLU", x),
        works("Softmax", x, -1),
        works("Softmin", x, -1),
        works("Softmax2d", images(2)),
        works("LogSoftmax", x, -1, note="gives a `Categorical`", expected=False),
        works("AdaptiveLogSoftmaxWithLoss", (shape(6, 8), classes(6, of=20)), 8, 20, [4, 10], div_value=2.0,
              expected=False, reaches_parameters=False, compiles=False,
              note="log-probabilities of the targets, and their loss"),
    ]  # fmt: skip


def _dropouts() -> list[Case]:
    found = []
    for name in ("Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "FeatureAlphaDropout"):
        dims = int(name[-2]) if name[-1] == "d" else 2
        found += [works(name, images(dims), 0.3, training=training) for training in (False, True)]
    return found


def _weight(layer: nn.Module, weight: Any, *arguments: Any) -> Any:
    """The layer with a random weight in place of its parameter."""
    del layer.weight
    layer.weight = weight
    return layer(*arguments)


def _linear() -> list[Case]:
    indices = classes(3, 4, of=10)
    return [
        works("Linear", shape(3, 8), 8, 5),
        works("Linear", (shape(5, 8), shape(3, 8)), 8, 5, call=_weight, reaches_parameters=False,
              note="with a random weight"),
        works("LazyLinear", shape(3, 8), 5),
        works("Bilinear", (shape(3, 4), shape(3, 5)), 4, 5, 6),
        works("Bilinear", shape(3, 4), 4, 4, 6, call=lambda layer, x: layer(x, x), note="of one value with itself"),
        works("Embedding", (shape(10, 4), indices), 10, 4, call=_weight, reaches_parameters=False,
              note="plain for plain indices; with a random weight, a value"),
        works("EmbeddingBag", (shape(10, 4), torch.arange(9).reshape(3, 3)), 10, 4, call=_weight,
              reaches_parameters=False, note="as `Embedding`; `mode='max'` has no rule"),
        works("EmbeddingBag", (torch.arange(9).reshape(3, 3), None, shape(3, 3)), 10, 4, mode="sum",
              note="with random sample weights"),
        works("CosineSimilarity", (shape(3, 8), shape(3, 8))),
        works("PairwiseDistance", (shape(3, 8), shape(3, 8))),
    ]  # fmt: skip


def _shapes() -> list[Case]:
    return [
        works("Flatten", images(2)),
        works("Unflatten", shape(3, 8), 1, (2, 4)),
        works("PixelShuffle", images(2), 2),
        works("PixelUnshuffle", shape(2, 3, 4, 6), 2),
        works("ChannelShuffle", images(2), 2),
        works("Fold", shape(2, 12, 12), (4, 5), 2),
        works("Unfold", images(2), 3, padding=1),
        works("Upsample", images(2), scale_factor=2),
        works("Upsample", images(1), scale_factor=1.7, mode="linear"),
        works("Upsample", images(2), scale_factor=1.7, mode="bicubic", align_corners=True),
        works("Upsample", images(3), size=(3, 7, 6), mode="trilinear"),
        works("UpsamplingNearest2d", images(2), scale_factor=2),
        works("UpsamplingBilinear2d", images(2), size=(9, 10)),
    ]


def _recurrent() -> list[Case]:
    x, note = shape(4, 2, 3), "treats gates and states as independent"
    networks = [
        works("RNN", x, 3, 5, note=note, apart=0.15),
        works("RNN", x, 3, 5, 2, nonlinearity="relu", bidirectional=True, note=note, apart=0.35),
        works("LSTM", x, 3, 5, note=note, apart=0.25),
        works("LSTM", x, 3, 5, 2, bidirectional=True, proj_size=2, batch_first=True, note=note, apart=0.35),
        works("GRU", x, 3, 5, note=note, apart=0.25),
        works("GRU", x, 3, 5, 2, bias=False, dropout=0.2, training=True, note=note, apart=0.35),
    ]
    return [
        *(dataclasses.replace(case, compiles=False) for case in networks),
        works("RNNCell", (shape(2, 3), shape(2, 5)), 3, 5),
        works("LSTMCell", shape(2, 3), 3, 5, note=note, apart=0.2),
        works("GRUCell", (shape(2, 3), shape(2, 5)), 3, 5, note=note, apart=0.2),
    ]


def _attention() -> list[Case]:
    x, memory = shape(2, 4, 8), shape(2, 3, 8)
    note = "treats queries, keys and values as independent"
    sizes: dict[str, Any] = {"dim_feedforward": 16, "batch_first": True, "dropout": 0.0, "note": note, "apart": 0.35}
    return [
        works("MultiheadAttention", x, 8, 2, batch_first=True, call=lambda layer, x: layer(x, x, x, need_weights=False),
              note=note, apart=0.35),
        works("TransformerEncoderLayer", x, 8, 2, **sizes),
        works("TransformerDecoderLayer", (x, memory), 8, 2, **sizes),
        works("TransformerEncoder", x, lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), 2,
              enable_nested_tensor=False, note=note, apart=0.5),
        works("TransformerDecoder", (x, memory), lambda: nn.TransformerDecoderLayer(8, 2, 16, 0.0, batch_first=True), 2,
              note=note, apart=0.5),
        works("Transformer", (memory, x), 8, 2, 1, 1, **sizes | {"apart": 0.5}),
    ]  # fmt: skip


def _posterior(layer: nn.Module, scores: Any, *arguments: Any) -> Any:
    """The loss of a class posterior; `CTCLoss` has its classes in the last dimension, the others in the second."""
    return layer(F.log_softmax(scores, -1 if isinstance(layer, nn.CTCLoss) else 1), *arguments)


def _losses() -> list[Case]:
    x, marginal, risk = shape(6, 5), "the loss $-\\log q(y)$", "the expected risk"
    labels, images_of_scores = classes(6, of=5), shape(2, 5, 3, 4)
    weight = torch.tensor([1.0, 2.0, 0.5, 1.0, 3.0]).double()
    likelihood: dict[str, Any] = {"note": marginal, "expected": False}
    return [
        works("CrossEntropyLoss", (x, labels), weight=weight, ignore_index=2, label_smoothing=0.1, **likelihood),
        works("CrossEntropyLoss", (x, uniform(6, 5)), reduction="sum", note="class probabilities as targets",
              expected=False),
        works("CrossEntropyLoss", (images_of_scores, classes(2, 3, 4, of=5)), reduction="none", **likelihood),
        works("LinearCrossEntropyLoss", (shape(6, 8), labels), 8, 5, **likelihood),
        works("NLLLoss", (x, labels), weight=weight, call=_posterior, **likelihood),
        works("NLLLoss2d", (images_of_scores, classes(2, 3, 4, of=5)), call=_posterior, **likelihood),
        works("CTCLoss", (shape(8, 2, 5), classes(2, 3, of=4) + 1, torch.tensor([8, 7]), torch.tensor([3, 2])),
              call=_posterior, compiles=False, **likelihood),
        works("BCELoss", (x, uniform(6, 5)), call=lambda layer, x, y: layer(torch.sigmoid(x), y), **likelihood),
        works("BCEWithLogitsLoss", (x, uniform(6, 5)), pos_weight=weight, **likelihood),
        works("SoftMarginLoss", (x, signs(6, 5)), **likelihood),
        works("MultiLabelSoftMarginLoss", (x, uniform(6, 5).round()), **likelihood),
        works("GaussianNLLLoss", (x, uniform(6, 5), uniform(6, 5)), **likelihood),
        works("MSELoss", (x, uniform(6, 5)), note=risk),
        works("L1Loss", (x, uniform(6, 5)), note=risk),
        works("SmoothL1Loss", (x, uniform(6, 5)), beta=0.5, note=risk),
        works("HuberLoss", (x, uniform(6, 5)), delta=0.7, note=risk),
        works("PoissonNLLLoss", (x, classes(6, 5, of=4).double()), full=True, note=risk),
        works("KLDivLoss", (x, uniform(6, 5).softmax(1)), reduction="batchmean",
              call=lambda layer, x, y: layer(F.log_softmax(x, 1), y), note="of a class posterior", expected=False),
        works("HingeEmbeddingLoss", (x, signs(6, 5)), note=risk),
        works("MarginRankingLoss", (x, shape(6, 5), signs(6, 5)), margin=0.2, note=risk),
        works("MultiMarginLoss", (x, labels), p=2, weight=weight, note=risk),
        works("MultiLabelMarginLoss", (x, torch.tensor([[3, 0, -1, 1, 1]] * 6)), note=risk),
        works("CosineEmbeddingLoss", (x, shape(6, 5), signs(6)), note=risk),
        works("TripletMarginLoss", (x, shape(6, 5), shape(6, 5)), swap=True, note=risk),
        works("TripletMarginWithDistanceLoss", (x, shape(6, 5), shape(6, 5)), note=risk),
    ]  # fmt: skip


_ALL = [
    *_linear(),
    *_convolutions(),
    *_paddings(),
    *_activations(),
    *_poolings(),
    *_normalizations(),
    *_dropouts(),
    *_shapes(),
    *_recurrent(),
    *_attention(),
    *_losses(),
    works("Sequential", shape(3, 8), lambda: nn.Linear(8, 4), nn.ReLU, lambda: nn.Linear(4, 2), apart=0.25),
    works("DataParallel", shape(3, 8), lambda: nn.Linear(8, 4), note="without GPUs; it scatters tensors, not values"),
    not_applicable("Module", "the base of all"),
    not_applicable("Container", "an old name of `Module`"),
    not_applicable("ModuleList", "a container without `forward`"),
    not_applicable("ModuleDict", "a container without `forward`"),
    not_applicable("ParameterList", "a container without `forward`"),
    not_applicable("ParameterDict", "a container without `forward`"),
    not_applicable("RNNBase", "the base of RNN, LSTM and GRU"),
    not_applicable("RNNCellBase", "the base of the cells"),
]


CASES = [case for case in _ALL if hasattr(nn, case.name)]  # older torch has no `LinearCrossEntropyLoss`


def all_layers() -> set[str]:
    """The names of the modules that `torch.nn` offers."""
    return {name for name, item in vars(nn).items() if isinstance(item, type) and issubclass(item, nn.Module)}


def draws(case: Case, count: int) -> Tensor:
    """Plain results for draws of the input, stacked; a module in training draws its own noise as well."""
    layer, values = case.layer(), case.values()
    generator = torch.Generator().manual_seed(4)
    torch.manual_seed(5)
    with torch.no_grad():
        results = []
        for _ in range(count):
            drawn = [x.sample(generator=generator) if isinstance(x, Normal) else x for x in values]
            results.append(case.run(layer, drawn))
        return torch.stack(results)


def against_monte_carlo(case: Case, count: int) -> tuple[float, float]:
    """The error of the means over the deviation, both as roots of mean squares, and the ratio of the deviations."""
    drawn = draws(case, count)
    with torch.no_grad():
        result = case.run(case.layer(), case.values())
    mean, variance = drawn.mean(0), drawn.var(0)
    loc = result if isinstance(result, Tensor) else result.loc
    error = ((loc - mean).square().mean() / variance.mean()).sqrt()
    ratio = float("nan") if isinstance(result, Tensor) else (result.variance.sum() / variance.sum()).sqrt()
    return float(error), float(ratio)


def is_measured(case: Case) -> bool:
    """Whether draws of the input have the moments that the rule is to give."""
    return case.status == "works" and case.expected


def main() -> None:
    """Measure every layer and print the page."""
    print("# Layers of torch.nn\n")
    print("Every module of `torch.nn`, measured by `python -m tests.layers > docs/layers.md`. Inputs have standard")
    print(f"normal means and a variance of {VARIANCE}. *Deviation* is the ratio of the propagated deviation to that of")
    print("1000 draws through the plain layer; *mean* is the error of the means in deviations, of which the draws")
    print("alone cause 0.03. Both are root mean squares over the elements of the result. Losses are plain tensors")
    print("and have no deviation.\n")
    print("| layer | configuration | status | deviation | mean | note |\n|---|---|---|---|---|---|")
    for case in CASES:
        measured = ("", "")
        if is_measured(case):
            error, ratio = against_monte_carlo(case, 1000)
            measured = ("" if math.isnan(ratio) else f"{ratio:.2f}", f"{error:.2f}")
        mode = "training" if case.training else ""
        settings = ", ".join(part for part in (f"`{case.settings}`" if case.settings else "", mode) if part)
        print(f"| `{case.name}` | {settings} | {case.status} | {' | '.join(measured)} | {case.note} |")
    print(f"\n{len(all_layers())} modules:", ", ".join(_counts()) + ".")


def _counts() -> list[str]:
    found: dict[str, set[str]] = {}
    for case in CASES:
        found.setdefault(case.status, set()).add(case.name)
    return [f"{len(names)} {status}" for status, names in found.items()]


if __name__ == "__main__":
    main()
