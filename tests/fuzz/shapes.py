"""Calls of operations that mix units, with random shapes and arguments."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop import functional


@dataclass(frozen=True)
class Call:
    """A function of one value of a shape."""

    name: str
    function: Callable[[Any], Any]
    shape: tuple[int, ...]
    positive: bool = False
    finite: bool = True  # for means and deviations up to 1e8, in float64
    noisy: bool = False  # the result of a certain value is random
    reach: float = 8.0  # the decades of means and deviations


Maker = Callable[[Random], Call]


def _rows(random: Random) -> tuple[int, ...]:
    """A shape of one to three dimensions; the last one is sometimes long."""
    last = random.choice((1, 2, 3, 5, 8, 17, 64, 300))
    return (*(random.randint(1, 4) for _ in range(random.randint(0, 2))), last)


def _image(random: Random) -> tuple[int, ...]:
    return (random.randint(1, 2), random.choice((2, 4)), random.randint(3, 8), random.randint(3, 8))


def _weights(x: Any, *shape: int) -> Tensor:
    """Weights of a shape, that do not depend on random numbers."""
    count = torch.Size(shape).numel()
    return torch.linspace(-1.0, 1.3, count, dtype=torch.float64, device=x.device).reshape(shape).to(x.dtype)


def along_last(name: str, function: Callable[[Any], Any], **known: Any) -> Maker:
    """An operation on the last dimension of any shape."""
    return lambda random: Call(name, function, _rows(random), **known)


def on_image(name: str, function: Callable[[Any], Any]) -> Maker:
    """An operation on images of any size."""
    return lambda random: Call(name, function, _image(random))


def _other(x: Any) -> Any:
    return x.of(*(getattr(x, name).flip(0) for name in x.components))


def _attention(random: Random) -> Call:
    keys, width, causal = random.randint(1, 9), random.randint(1, 6), random.random() < 0.5
    shape = (random.randint(1, 2), keys, width)
    which = random.randrange(4)  # which of query, key and value are random

    def attention(x: Any) -> Any:
        plain = _weights(x, *shape)
        query, key, value = (
            (x, _other(x), x.roll(1, 1)), (x, plain, plain), (plain, plain, x), (x, plain, _other(x)),
        )[which]  # fmt: skip
        return F.scaled_dot_product_attention(query, key, value, is_causal=causal)

    return Call(f"attention({which}, is_causal={causal})", attention, shape, reach=2.0)


def _cross_entropy(random: Random) -> Call:
    rows, classes = random.randint(1, 4), random.choice((2, 3, 10, 100))
    smoothing = random.choice((0.0, 0.1))

    def cross_entropy(x: Any) -> Any:
        target = torch.arange(rows, device=x.device) * 7 % classes
        return F.cross_entropy(x, target, label_smoothing=smoothing, reduction="none")

    return Call(f"cross_entropy(label_smoothing={smoothing})", cross_entropy, (rows, classes))


def _loss(name: str, loss: Callable[..., Any]) -> Maker:
    return along_last(name, lambda x: loss(x, _weights(x, *x.shape), reduction="none"))


def _pooling(name: str, pool: Callable[..., Any]) -> Maker:
    def make(random: Random) -> Call:
        size, stride = random.randint(1, 3), random.randint(1, 2)
        return Call(f"{name}({size}, {stride})", lambda x: pool(x, size, stride), _image(random))

    return make


def _linear(random: Random) -> Call:
    out = random.randint(1, 5)
    return Call("linear", lambda x: F.linear(x, _weights(x, out, x.shape[-1]), _weights(x, out)), _rows(random))


def _convolution(random: Random) -> Call:
    size, padding = random.randint(1, 3), random.randint(0, 1)
    return Call(
        "conv2d", lambda x: F.conv2d(x, _weights(x, 3, x.shape[1], size, size), padding=padding), _image(random)
    )


SHAPES: list[Maker] = [
    along_last("softmax", lambda x: torch.softmax(x, -1)),
    along_last("log_softmax", lambda x: torch.log_softmax(x, -1)),
    along_last("logsumexp", lambda x: torch.logsumexp(x, -1)),
    along_last("class_posterior", functional.class_posterior),
    along_last("amax", lambda x: x.amax(-1)),
    along_last("amin", lambda x: x.amin(-1)),
    along_last("maximum_of(pairs)", lambda x: functional.maximum_of(x, -1, "pairs")),
    along_last("maximum_of(quadrature)", lambda x: functional.maximum_of(x, -1, "quadrature")),
    along_last("maximum", lambda x: torch.maximum(x, _other(x))),
    along_last("minimum", lambda x: torch.minimum(x, _weights(x, *x.shape))),
    along_last("atan2", lambda x: torch.atan2(x, _weights(x, *x.shape))),
    along_last("layer_norm", lambda x: F.layer_norm(x, x.shape[-1:])),
    along_last("rms_norm", lambda x: F.rms_norm(x, x.shape[-1:])),
    along_last("normalize", lambda x: F.normalize(x, dim=-1)),
    along_last("norm", lambda x: torch.linalg.vector_norm(x, dim=-1)),
    along_last("norm(1)", lambda x: torch.linalg.vector_norm(x, 1, dim=-1)),
    along_last("var", lambda x: x.var(-1, correction=0)),
    along_last("std", lambda x: x.std(-1, correction=0)),
    along_last("sum", lambda x: x.sum(-1)),
    along_last("mean", lambda x: x.mean(-1)),
    along_last("cumsum", lambda x: x.cumsum(-1)),
    along_last("mul", lambda x: x * _other(x)),
    along_last("mul(self)", lambda x: x * x),
    along_last("cosine_similarity", lambda x: F.cosine_similarity(x, _weights(x, *x.shape), dim=-1)),
    along_last("pairwise_distance", lambda x: F.pairwise_distance(x, _weights(x, *x.shape))),
    along_last("dropout", lambda x: F.dropout(x, 0.3), noisy=True),
    along_last("x * sigmoid(x)", lambda x: x * torch.sigmoid(x)),
    on_image("group_norm", lambda x: F.group_norm(x, 2)),
    on_image("instance_norm", F.instance_norm),
    _pooling("max_pool2d", F.max_pool2d),
    _pooling("avg_pool2d", F.avg_pool2d),
    _attention,
    _cross_entropy,
    _loss("mse_loss", F.mse_loss),
    _loss("l1_loss", F.l1_loss),
    _loss("smooth_l1_loss", F.smooth_l1_loss),
    _loss("huber_loss", F.huber_loss),
    _linear,
    _convolution,
]
