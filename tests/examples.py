r"""One example call for every operation that has a rule; `tests/stack/test_compile.py` walks the rule table with it.

An example takes a value of the shape it names, signed unless it is `positive` (well away from zero, for logarithms and
roots). Every type of value that has a rule for the operation makes the same call, unless `OTHERWISE` has another one.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Laplace

from momentprop import Categorical, Joint, Mean, Normal, Statistics, functional
from momentprop.values import Certain, Independent, Value
from tests.cases import CASES


class Example(NamedTuple):
    call: Callable[[Any], Any]
    shape: tuple[int, ...] = (4, 6)
    positive: bool = False

    def value(self, on: type[Value]) -> Any:
        """A value in float64, of a type that rules are given for, whose components require gradients."""
        generator = torch.Generator().manual_seed(0)
        mean, spread = (torch.rand(self.shape, generator=generator, dtype=torch.float64) for _ in range(2))
        loc, variance = (0.55 + 0.4 * mean, 0.002 + 0.004 * spread) if self.positive else (2 * mean - 1, 0.1 + spread)
        kind = Normal if issubclass(Normal, on) else on
        if issubclass(kind, Independent):
            return kind.of(loc.requires_grad_(), variance.requires_grad_())
        if issubclass(kind, Joint):
            shared = torch.stack([loc.sin(), loc.cos()]) / 4
            return kind.of(loc.requires_grad_(), variance.requires_grad_(), shared.requires_grad_(), batch_dim=0)
        kind = Mean if kind is Certain else kind
        return kind.of((loc.log_softmax(-1) if kind is Categorical else loc).requires_grad_())


def constant(*shape: int) -> Tensor:
    """Weights of a given shape, in the default type: the same at every call, of operations that compilers trace."""
    count = 1
    for size in shape:
        count *= size
    return torch.linspace(-1.0, 1.3, count, dtype=torch.float64).reshape(shape).to(torch.get_default_dtype())


def other(x: Any) -> Any:
    """Another value of the same type and shape, independent of the first."""
    return x.of(*(getattr(x, name).detach().flip(0) for name in x.components))


def index(*shape: int, below: int) -> Tensor:
    """Some indices below a bound, different ones along the first dimension."""
    count = 1
    for size in shape:
        count *= size
    return (torch.arange(count) * 5 % below).reshape(shape)


def labels(classes: int, *shape: int) -> Tensor:
    return index(*shape, below=classes)


LINE, IMAGE, VOLUME = (2, 3, 8), (2, 3, 6, 6), (1, 2, 4, 4, 4)
HEADS = (2, 2, 3, 4)  # batch, heads, length, features


def _attention(x: Any) -> Any:
    projection, width = constant(12, 4), 4
    return F.multi_head_attention_forward(
        x, x, x, width, 2, projection, constant(12), None, None, False, 0.0, constant(4, 4), constant(4), training=False
    )


def _grouped(x: Any) -> Any:
    """Two groups of rows, with a matrix each."""
    return F.grouped_mm(x, constant(2, 4, 4), offs=torch.tensor([2, 6], dtype=torch.int32))


def _recurrent(gates: int) -> list[Tensor]:
    return [constant(gates * 3, 6), constant(gates * 3, 3), constant(gates * 3), constant(gates * 3)]


def _sequence(op: Callable[..., Any], gates: int, states: int) -> Callable[[Any], Any]:
    def call(x: Any) -> Any:
        state = torch.zeros(1, 2, 3, dtype=x.dtype)
        hidden = [state] * states if states > 1 else state
        return op(x, hidden, _recurrent(gates), True, 1, 0.0, False, False, False)

    return call


def _cell(op: Callable[..., Any], gates: int, states: int) -> Callable[[Any], Any]:
    def call(x: Any) -> Any:
        state = torch.zeros(4, 3, dtype=x.dtype)
        return op(x, [state] * states if states > 1 else state, *_recurrent(gates))

    return call


EXAMPLES: dict[str, Example] = {
    # arithmetic
    "add": Example(lambda x: [x + other(x), x + 2, torch.add(x, constant(6), alpha=0.5), x + x]),
    "sub": Example(lambda x: [x - other(x), 2 - x]),
    "neg": Example(lambda x: -x),
    "positive": Example(torch.positive),
    "mul": Example(lambda x: [x * other(x), x * constant(6)]),
    "div": Example(lambda x: [x / constant(6), other(x) / x], positive=True),
    "lerp": Example(lambda x: torch.lerp(x, other(x), 0.3)),
    "addcmul": Example(lambda x: torch.addcmul(x, other(x), constant(4, 6), value=0.5)),
    "addcdiv": Example(lambda x: torch.addcdiv(x, other(x), 2 + constant(4, 6), value=0.5)),
    "sum": Example(lambda x: [x.sum(1), x.sum()]),
    "mean": Example(lambda x: [x.mean(0, keepdim=True), x.mean()]),
    "cumsum": Example(lambda x: x.cumsum(1)),
    # products
    "linear": Example(lambda x: F.linear(x, constant(3, 6), constant(3))),
    "bilinear": Example(lambda x: F.bilinear(x, other(x), constant(2, 6, 6), constant(2))),
    "matmul": Example(lambda x: [x @ constant(6, 2), x @ other(x).T]),
    "mm": Example(lambda x: torch.mm(x, constant(6, 2))),
    "mv": Example(lambda x: torch.mv(x, constant(6))),
    "dot": Example(lambda x: torch.dot(x, constant(5)), (5,)),
    "vdot": Example(lambda x: torch.vdot(x, other(x)), (5,)),
    "inner": Example(lambda x: torch.inner(x, constant(2, 6))),
    "outer": Example(lambda x: torch.outer(x, constant(3)), (5,)),
    "bmm": Example(lambda x: torch.bmm(x, constant(2, 8, 2)), LINE),
    "addmm": Example(lambda x: torch.addmm(constant(2), x, constant(6, 2), beta=0.5, alpha=2.0)),
    "addmv": Example(lambda x: torch.addmv(constant(4), x, constant(6))),
    "addr": Example(lambda x: torch.addr(constant(5, 2), x, constant(2)), (5,)),
    "addbmm": Example(lambda x: torch.addbmm(constant(3, 2), x, constant(2, 8, 2)), LINE),
    "_grouped_mm": Example(_grouped, (6, 4)),
    "baddbmm": Example(lambda x: torch.baddbmm(constant(3, 2), x, constant(2, 8, 2)), LINE),
    "einsum": Example(lambda x: torch.einsum("ij,kj->ik", x, constant(3, 6))),
    "tensordot": Example(lambda x: torch.tensordot(x, constant(6, 2), 1)),
    "linalg_multi_dot": Example(lambda x: torch.linalg.multi_dot([x, constant(6, 3), constant(3, 2)])),
    "conv1d": Example(lambda x: F.conv1d(x, constant(2, 3, 3), constant(2), padding=1), LINE),
    "conv2d": Example(lambda x: F.conv2d(x, constant(3, 1, 3, 3), stride=2, groups=3), IMAGE),
    "conv3d": Example(lambda x: F.conv3d(x, constant(2, 2, 2, 2, 2)), VOLUME),
    "conv_transpose1d": Example(lambda x: F.conv_transpose1d(x, constant(3, 2, 3), stride=2), LINE),
    "conv_transpose2d": Example(lambda x: F.conv_transpose2d(x, constant(3, 2, 3, 3)), IMAGE),
    "conv_transpose3d": Example(lambda x: F.conv_transpose3d(x, constant(2, 2, 2, 2, 2)), VOLUME),
    "embedding": Example(lambda x: F.embedding(index(2, 3, below=4), x)),
    "embedding_bag": Example(lambda x: F.embedding_bag(index(2, 3, below=4), x)),
    # averages, maxima, resampling
    "avg_pool1d": Example(lambda x: F.avg_pool1d(x, 3, 2, 1), LINE),
    "avg_pool2d": Example(lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), IMAGE),
    "avg_pool3d": Example(lambda x: F.avg_pool3d(x, 2), VOLUME),
    "adaptive_avg_pool1d": Example(lambda x: F.adaptive_avg_pool1d(x, 3), LINE),
    "adaptive_avg_pool2d": Example(lambda x: F.adaptive_avg_pool2d(x, (4, 1)), IMAGE),
    "adaptive_avg_pool3d": Example(lambda x: F.adaptive_avg_pool3d(x, 1), VOLUME),
    "max_pool1d": Example(lambda x: F.max_pool1d(x, 2), LINE),
    "max_pool2d": Example(lambda x: F.max_pool2d(x, 3, 2, 1), IMAGE),
    "max_pool3d": Example(lambda x: F.max_pool3d(x, 2), VOLUME),
    "adaptive_max_pool1d": Example(lambda x: F.adaptive_max_pool1d(x, 4), LINE),
    "adaptive_max_pool2d": Example(lambda x: F.adaptive_max_pool2d(x, 3), IMAGE),
    "adaptive_max_pool3d": Example(lambda x: F.adaptive_max_pool3d(x, 2), VOLUME),
    "lp_pool1d": Example(lambda x: F.lp_pool1d(x, 2.0, 2), LINE, positive=True),
    "lp_pool2d": Example(lambda x: F.lp_pool2d(x, 2.0, 2), IMAGE, positive=True),
    "lp_pool3d": Example(lambda x: F.lp_pool3d(x, 2.0, 2), VOLUME, positive=True),
    "max_unpool1d": Example(lambda x: F.max_unpool1d(x, torch.arange(8).mul(2).expand(2, 3, 8), 2), LINE),
    "max_unpool2d": Example(lambda x: F.max_unpool2d(x, _unpooled(x, 2), 2), (1, 1, 3, 3)),
    "max_unpool3d": Example(lambda x: F.max_unpool3d(x, _unpooled(x, 3), 2), (1, 1, 2, 2, 2)),
    "atan2": Example(lambda x: [torch.atan2(x, other(x)), torch.atan2(x, constant(6)), torch.atan2(constant(6), x)]),
    "maximum": Example(lambda x: [torch.maximum(x, other(x)), torch.maximum(x, constant(6))]),
    "minimum": Example(lambda x: torch.minimum(x, other(x))),
    "max": Example(lambda x: torch.max(x, other(x))),
    "min": Example(lambda x: torch.min(x, other(x))),
    "amax": Example(lambda x: x.amax(1)),
    "amin": Example(lambda x: x.amin(1)),
    "maximum_of": Example(lambda x: functional.maximum_of(x, 1, "pairs")),
    "max_with_covariance": Example(lambda x: functional.max_with_covariance(x, other(x), 0.01)),
    "interpolate": Example(lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"), IMAGE),
    "grid_sample": Example(lambda x: F.grid_sample(x, constant(2, 2, 2, 2), align_corners=False), IMAGE),
    # normalizations and dispersion
    "batch_norm": Example(lambda x: F.batch_norm(x, constant(3), 2 + constant(3), constant(3), constant(3)), IMAGE),
    "layer_norm": Example(lambda x: F.layer_norm(x, (6,), constant(6), constant(6))),
    "rms_norm": Example(lambda x: F.rms_norm(x, (6,), constant(6))),
    "group_norm": Example(lambda x: F.group_norm(x, 3, constant(3), constant(3)), IMAGE),
    "instance_norm": Example(lambda x: F.instance_norm(x), IMAGE),
    "local_response_norm": Example(lambda x: F.local_response_norm(x, 2), IMAGE),
    "normalize": Example(lambda x: F.normalize(x)),
    "norm": Example(lambda x: torch.norm(x, dim=1)),
    "linalg_norm": Example(lambda x: torch.linalg.norm(x, dim=1)),
    "linalg_vector_norm": Example(lambda x: torch.linalg.vector_norm(x, dim=1)),
    "cosine_similarity": Example(lambda x: F.cosine_similarity(x, other(x))),
    "pairwise_distance": Example(lambda x: F.pairwise_distance(x, other(x))),
    "var": Example(lambda x: torch.var(x, 1)),
    "std": Example(lambda x: torch.std(x, 1)),
    "var_mean": Example(lambda x: torch.var_mean(x, 1)),
    "std_mean": Example(lambda x: torch.std_mean(x, 1)),
    # attention and recurrence
    "scaled_dot_product_attention": Example(
        lambda x: F.scaled_dot_product_attention(x, other(x), other(x), is_causal=True), HEADS
    ),
    "multi_head_attention_forward": Example(_attention, (3, 2, 4)),
    "rnn_tanh": Example(_sequence(torch.rnn_tanh, 1, 1), (3, 2, 6)),
    "rnn_relu": Example(_sequence(torch.rnn_relu, 1, 1), (3, 2, 6)),
    "gru": Example(_sequence(torch.gru, 3, 1), (2, 2, 6)),
    "lstm": Example(_sequence(torch.lstm, 4, 2), (2, 2, 6)),
    "rnn_tanh_cell": Example(_cell(torch.rnn_tanh_cell, 1, 1)),
    "rnn_relu_cell": Example(_cell(torch.rnn_relu_cell, 1, 1)),
    "gru_cell": Example(_cell(torch.gru_cell, 3, 1)),
    "lstm_cell": Example(_cell(torch.lstm_cell, 4, 2)),
    "glu": Example(F.glu),
    # softmax and class posteriors
    "softmax": Example(lambda x: torch.softmax(x, -1)),
    "softmin": Example(lambda x: F.softmin(x, -1)),
    "log_softmax": Example(lambda x: torch.log_softmax(x, -1)),
    "logsumexp": Example(lambda x: torch.logsumexp(x, 1)),
    "class_posterior": Example(functional.class_posterior),
    # choices
    "argmax": Example(lambda x: Label()(x)),
    "argmin": Example(lambda x: x.argmin(-1)),
    "argsort": Example(lambda x: x.argsort(-1)),
    "sort": Example(lambda x: list(x.sort(-1))),
    "topk": Example(lambda x: list(x.topk(2))),
    # losses
    "cross_entropy": Example(lambda x: F.cross_entropy(x, labels(6, 4), label_smoothing=0.1)),
    "nll_loss": Example(lambda x: F.nll_loss(x, labels(6, 4))),
    "linear_cross_entropy": Example(lambda x: F.linear_cross_entropy(x, constant(5, 6), labels(5, 4))),
    "mse_loss": Example(lambda x: F.mse_loss(x, constant(4, 6))),
    "l1_loss": Example(lambda x: F.l1_loss(x, constant(4, 6))),
    "smooth_l1_loss": Example(lambda x: F.smooth_l1_loss(x, constant(4, 6))),
    "huber_loss": Example(lambda x: F.huber_loss(x, constant(4, 6))),
    "gaussian_nll_loss": Example(lambda x: F.gaussian_nll_loss(x, constant(4, 6), 2 + constant(4, 6))),
    "poisson_nll_loss": Example(lambda x: F.poisson_nll_loss(x, constant(4, 6).abs())),
    "kl_div": Example(lambda x: F.kl_div(x, constant(4, 6).softmax(-1), reduction="batchmean")),
    "binary_cross_entropy": Example(lambda x: F.binary_cross_entropy(x, constant(4, 6).sigmoid()), positive=True),
    "binary_cross_entropy_with_logits": Example(
        lambda x: F.binary_cross_entropy_with_logits(x, constant(4, 6).sigmoid())
    ),
    "soft_margin_loss": Example(lambda x: F.soft_margin_loss(x, constant(4, 6).sign())),
    "multi_margin_loss": Example(lambda x: F.multi_margin_loss(x, labels(6, 4))),
    "multilabel_margin_loss": Example(lambda x: F.multilabel_margin_loss(x, index(4, 6, below=6))),
    "multilabel_soft_margin_loss": Example(
        lambda x: F.multilabel_soft_margin_loss(x, (constant(4, 6) > 0).to(x.dtype))
    ),
    "hinge_embedding_loss": Example(lambda x: F.hinge_embedding_loss(x, constant(4, 6).sign())),
    "margin_ranking_loss": Example(lambda x: F.margin_ranking_loss(x, other(x), constant(6).sign())),
    "cosine_embedding_loss": Example(lambda x: F.cosine_embedding_loss(x, other(x), constant(4).sign())),
    "triplet_margin_loss": Example(lambda x: F.triplet_margin_loss(x, other(x), constant(4, 6))),
    "triplet_margin_with_distance_loss": Example(
        lambda x: F.triplet_margin_with_distance_loss(x, other(x), constant(4, 6))
    ),
    "ctc_loss": Example(
        lambda x: F.ctc_loss(x, 1 + index(2, 2, below=4), torch.tensor([5, 5]), torch.tensor([2, 2])), (5, 2, 6)
    ),
    # noise and stochastic units
    "add_noise": Example(lambda x: functional.add_noise(x, Laplace(0.5, 0.1, validate_args=False))),
    "multiply_noise": Example(lambda x: functional.multiply_noise(x, Laplace(1.0, 0.1, validate_args=False))),
    "stochastic_binary": Example(
        lambda x: [functional.stochastic_binary(x, n, low=-1.0) for n in ("logistic", Laplace(0.5, 2.0), "gumbel")]
    ),
    "binary_step": Example(lambda x: functional.binary_step(x, low=-1.0)),
    "noisy_activation": Example(
        lambda x: [functional.noisy_activation(x, torch.relu, noise) for noise in ("normal", "logistic", "laplace")]
    ),
    "gumbel_argmax": Example(functional.gumbel_argmax),
    "linear_posterior": Example(lambda x: functional.linear_posterior(x, constant(5, 6), constant(5))),
    "dropout": Example(lambda x: F.dropout(x, 0.3)),
    "stochastic_depth": Example(lambda x: functional.stochastic_depth(x, 0.3), IMAGE),
    "dropout1d": Example(lambda x: F.dropout1d(x, 0.3), LINE),
    "dropout2d": Example(lambda x: F.dropout2d(x, 0.3), IMAGE),
    "dropout3d": Example(lambda x: F.dropout3d(x, 0.3), VOLUME),
    "alpha_dropout": Example(lambda x: F.alpha_dropout(x, 0.3, training=True)),
    "feature_alpha_dropout": Example(lambda x: F.feature_alpha_dropout(x, 0.3, training=True), IMAGE),
    "feature_dropout": Example(lambda x: torch.feature_dropout(x, 0.3, True), IMAGE),
    # elements moved
    "as_strided": Example(lambda x: x.as_strided((2, 3), (6, 1))),
    "block_diag": Example(lambda x: torch.block_diag(x, constant(2, 2))),
    "broadcast_tensors": Example(lambda x: torch.broadcast_tensors(x, constant(1))),
    "broadcast_to": Example(lambda x: x.broadcast_to(2, 4, 6)),
    "cat": Example(lambda x: [torch.cat([x, other(x)], 1), torch.cat([constant(1, 6), x])]),
    "channel_shuffle": Example(lambda x: F.channel_shuffle(x, 3), IMAGE),
    "chunk": Example(lambda x: x.chunk(2)),
    "clone": Example(lambda x: x.clone()),
    "column_stack": Example(lambda x: torch.column_stack([x, other(x)])),
    "contiguous": Example(lambda x: x.contiguous()),
    "copy": Example(lambda x: x.clone().copy_(other(x))),
    "detach": Example(lambda x: x.detach()),
    "diag": Example(lambda x: torch.diag(x), (4, 4)),
    "diag_embed": Example(lambda x: torch.diag_embed(x)),
    "diagflat": Example(lambda x: torch.diagflat(x), (3,)),
    "diagonal": Example(lambda x: x.diagonal()),
    "diagonal_scatter": Example(lambda x: torch.diagonal_scatter(x, constant(4))),
    "dsplit": Example(lambda x: torch.dsplit(x, 2), LINE),
    "dstack": Example(lambda x: torch.dstack([x, other(x)])),
    "expand": Example(lambda x: x.expand(2, 4, 6)),
    "expand_as": Example(lambda x: x.expand_as(constant(2, 4, 6))),
    "flatten": Example(lambda x: x.flatten(1), IMAGE),
    "flip": Example(lambda x: x.flip(0)),
    "fliplr": Example(lambda x: x.fliplr()),
    "flipud": Example(lambda x: x.flipud()),
    "fold": Example(lambda x: F.fold(x, 3, 2), (2, 8, 4)),
    "gather": Example(lambda x: x.gather(1, index(4, 2, below=6))),
    "getitem": Example(lambda x: [x[1:], x[0], x[..., None, 2]]),
    "hsplit": Example(lambda x: torch.hsplit(x, 2)),
    "hstack": Example(lambda x: torch.hstack([x, other(x)])),
    "index_add": Example(lambda x: x.index_add(0, index(2, below=4), constant(2, 6))),
    "fill": Example(lambda x: x.clone().fill_(0.5)),
    "index_copy": Example(lambda x: x.index_copy(0, index(2, below=4), constant(2, 6))),
    "index_fill": Example(lambda x: x.index_fill(0, index(2, below=4), 0.5)),
    "index_put": Example(lambda x: x.index_put((index(2, below=4),), constant(6))),
    "index_select": Example(lambda x: x.index_select(1, index(2, below=6))),
    "masked_fill": Example(lambda x: x.masked_fill(constant(4, 6) > 0, 0.5)),
    "masked_scatter": Example(lambda x: x.masked_scatter(constant(4, 6) > 0, constant(24))),
    "movedim": Example(lambda x: x.movedim(0, 1)),
    "narrow": Example(lambda x: x.narrow(1, 2, 3)),
    "pad": Example(lambda x: [F.pad(x, (1, 2), value=0.5), F.pad(x, (1, 1), "reflect")], LINE),
    "permute": Example(lambda x: x.permute(2, 0, 1), LINE),
    "pixel_shuffle": Example(lambda x: F.pixel_shuffle(x, 2), (1, 4, 2, 2)),
    "pixel_unshuffle": Example(lambda x: F.pixel_unshuffle(x, 2), IMAGE),
    "ravel": Example(lambda x: x.ravel()),
    "repeat": Example(lambda x: x.repeat(2, 1)),
    "repeat_interleave": Example(lambda x: x.repeat_interleave(2, 1)),
    "reshape": Example(lambda x: x.reshape(3, 8)),
    "reshape_as": Example(lambda x: x.reshape_as(constant(3, 8))),
    "roll": Example(lambda x: x.roll(1, 0)),
    "rot90": Example(lambda x: x.rot90()),
    "row_stack": Example(lambda x: torch.row_stack([x, other(x)])),
    "scatter": Example(lambda x: x.scatter(1, index(4, 2, below=6), constant(4, 2))),
    "scatter_add": Example(lambda x: x.scatter_add(1, index(4, 2, below=6), constant(4, 2))),
    "select": Example(lambda x: x.select(1, 2)),
    "select_scatter": Example(lambda x: torch.select_scatter(x, constant(4), 1, 2)),
    "setitem": Example(lambda x: _written(x.clone())),
    "slice_scatter": Example(lambda x: torch.slice_scatter(x, constant(4, 2), 1, 1, 3)),
    "split": Example(lambda x: x.split([2, 4], 1)),
    "squeeze": Example(lambda x: x.squeeze(1), (4, 1, 3)),
    "stack": Example(lambda x: torch.stack([x, other(x), constant(4, 6)], 1)),
    "t": Example(lambda x: x.t()),
    "take": Example(lambda x: x.take(index(5, below=24))),
    "take_along_dim": Example(lambda x: x.take_along_dim(index(4, 2, below=6), 1)),
    "tensor_split": Example(lambda x: x.tensor_split(3, 1)),
    "tile": Example(lambda x: x.tile(2, 1)),
    "transpose": Example(lambda x: x.transpose(0, 1)),
    "tril": Example(lambda x: x.tril()),
    "triu": Example(lambda x: x.triu()),
    "unbind": Example(lambda x: x.unbind(1)),
    "unflatten": Example(lambda x: x.unflatten(1, (2, 3))),
    "resize": Example(lambda x: x.clone().resize_(3, 8)),
    "resize_as": Example(lambda x: x.clone().resize_as_(constant(8, 3))),
    "zero": Example(lambda x: x.clone().zero_()),
    "unfold": Example(lambda x: [x.unfold(2, 3, 2), F.unfold(x, 2)], IMAGE),
    "unsqueeze": Example(lambda x: x.unsqueeze(1)),
    "view": Example(lambda x: x.view(3, 8)),
    "view_as": Example(lambda x: x.view_as(constant(3, 8))),
    "vsplit": Example(lambda x: torch.vsplit(x, 2)),
    "vstack": Example(lambda x: torch.vstack([x, other(x)])),
    "where": Example(lambda x: torch.where(constant(4, 6) > 0, x, other(x))),
    # conversions
    "bfloat16": Example(lambda x: x.bfloat16()),
    "cpu": Example(lambda x: x.cpu()),
    "double": Example(lambda x: x.double()),
    "float": Example(lambda x: x.float()),
    "half": Example(lambda x: x.half()),
    "to": Example(lambda x: [x.to(torch.float32), x.to("cpu")]),
    "type": Example(lambda x: x.type(torch.float32)),
    "type_as": Example(lambda x: x.type_as(constant(2).float())),
    # plain tensors made after a value
    "is_complex": Example(torch.is_complex),
    "is_floating_point": Example(torch.is_floating_point),
    "is_signed": Example(torch.is_signed),
    "numel": Example(torch.numel),
    "isfinite": Example(torch.isfinite),
    "isinf": Example(torch.isinf),
    "isnan": Example(torch.isnan),
    "empty_like": Example(lambda x: torch.empty_like(x).zero_()),
    "full_like": Example(lambda x: torch.full_like(x, 0.5)),
    "ones_like": Example(torch.ones_like),
    "zeros_like": Example(torch.zeros_like),
    "rand_like": Example(torch.rand_like),
    "randn_like": Example(torch.randn_like),
    "randint_like": Example(lambda x: torch.randint_like(x, 5)),
    "new_empty": Example(lambda x: x.new_empty(2).zero_()),
    "new_empty_strided": Example(lambda x: x.new_empty_strided((2,), (1,)).zero_()),
    "new_full": Example(lambda x: x.new_full((2,), 0.5)),
    "new_ones": Example(lambda x: x.new_ones(2)),
    "new_tensor": Example(lambda x: x.new_tensor([1.0, 2.0])),
    "new_zeros": Example(lambda x: x.new_zeros(2)),
    # elementwise operations that are not in the table of cases
    "log": Example(torch.log, positive=True),
    "log2": Example(torch.log2, positive=True),
    "log10": Example(torch.log10, positive=True),
    "log1p": Example(torch.log1p, positive=True),
    "sqrt": Example(torch.sqrt, positive=True),
    "rsqrt": Example(torch.rsqrt, positive=True),
    "reciprocal": Example(torch.reciprocal, positive=True),
    "log_sigmoid": Example(F.logsigmoid),
}
for _case in CASES:
    EXAMPLES.setdefault(_case.op, Example(_case))


def _unpooled(x: Any, dims: int) -> Tensor:
    size = x.shape[-1]
    corner = torch.arange(size) * 2
    place = corner
    for _ in range(dims - 1):
        place = place[..., None] * (2 * size) + corner
    return place.expand(x.shape)


def _written(x: Any) -> Any:
    x[0] = 0.5
    x[1:3, 2] = x[2:, 0]
    return x


OTHERWISE: dict[tuple[str, type], Example] = {
    ("prelu", Independent): Example(lambda x: F.prelu(x, x.of(*(part[0] for part in (x.loc, x.variance))))),
    ("argmax", Statistics): Example(lambda x: x.argmax(-1)),
    ("tensordot", Value): Example(lambda x: torch.tensordot(x[:, :1], constant(6, 2), 1)),
    ("exp", Categorical): Example(torch.exp),
    ("gather", Categorical): Example(lambda x: x.gather(-1, labels(6, 4, 1))),
    ("getitem", Categorical): Example(lambda x: [x[1:], x[..., 2]]),
    ("to", Categorical): Example(lambda x: x.to(torch.float32)),
    ("cat", Statistics): Example(lambda x: [torch.cat([x, other(x)], 1), torch.cat([constant(4, 1), x], 1)]),
    ("matmul", Statistics): Example(lambda x: x @ constant(6, 2)),
    ("reshape", Statistics): Example(lambda x: [x.reshape(-1, 12), x.reshape(1, 3, 4)], (1, 3, 1, 1)),
    ("view", Statistics): Example(lambda x: [x.view(1, -1), x.view(-1, 6)], (1, 3, 1, 1)),
}

NOT_TRACED = {
    "_grouped_mm": "torch traces it for tensors only",
    "is_signed": "torch does not trace it, not even for tensors",
    "_nested_tensor_from_mask_left_aligned": "torch traces it for tensors only",
    "alias": "torch has no public function of this name",
    "_pack_padded_sequence": "its lengths are data",
    "_pad_packed_sequence": "its lengths are data",
    "ctc_loss": "torch does not trace it for tensors either",
    "cuda": "needs a GPU",
    "masked_select": "the size of its result is data",
    "rand_like": "torch traces it for tensors only",
    "randint_like": "torch traces it for tensors only",
    "randn_like": "torch traces it for tensors only",
    "requires_grad_": "changes what is traced",
}
"""Operations whose rules are not compiled, and why."""
if not hasattr(F, "linear_cross_entropy"):
    NOT_TRACED["linear_cross_entropy"] = "torch has none before 2.13"

REFUSED = {f"{kind}max_pool{dims}d_with_indices" for kind in ("", "adaptive_") for dims in (1, 2, 3)}
"""Operations whose rule is a refusal."""


class Label(nn.Module):
    """Chooses inside a model, by the means."""

    def forward(self, x: Any) -> Any:
        return x.argmax(-1)


def example(op: str, on: type) -> Example | None:
    """The example for a row of the rule table."""
    return OTHERWISE.get((op, on)) or EXAMPLES.get(op)
