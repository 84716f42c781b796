"""Networks that people use, with random weights: each runs unmodified on random values.

`python -m tests.architectures` measures all of them and writes the table of `docs/architectures.md`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tests.architectures import hub
from tests.architectures.state import embeddings, images, with_statistics_of, with_variance_of_trained_weights
from tests.architectures.vision import VGG, BasicBlock, Bottleneck, ResNet, UNet, VisionTransformer


class Architecture(NamedTuple):
    """A network, an input for it, and how the two are put together."""

    name: str
    build: Callable[[], nn.Module]
    input: Callable[[], Tensor]
    keyword: str = "x"  # the argument that the input is
    output: str = ""  # the name of the output among several
    further: Callable[[Any], dict[str, Tensor]] = lambda _: {}

    def arguments(self, x: Any) -> dict[str, Any]:
        return {self.keyword: x, **self.further(x)}

    def of(self, outputs: Any) -> Any:
        return getattr(outputs, self.output) if self.output else outputs

    def call(self, model: nn.Module, x: Any) -> Any:
        return self.of(model(**self.arguments(x)))

    @property
    def needs_transformers(self) -> bool:
        return self.build.__module__ == hub.__name__

    def __str__(self) -> str:
        return self.name


def _seeded(build: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build()


def _convolutional(build: Callable[[], nn.Module], size: int) -> Callable[[], nn.Module]:
    return lambda: with_statistics_of(_seeded(build), images(32, size, seed=0))


def _transformer() -> nn.Module:
    return with_variance_of_trained_weights(_seeded(VisionTransformer)).eval()


def _pictures(size: int) -> Callable[[], Tensor]:
    return lambda: images(2, size)


def _sentences() -> Tensor:
    return embeddings(2, hub.LENGTH, 64)


def _hub_text(
    name: str, build: Callable[[], nn.Module], further: Callable[[Any], dict[str, Tensor]] = lambda _: {}
) -> Architecture:
    return Architecture(name, build, _sentences, "inputs_embeds", "last_hidden_state", further)


def _hub_images(name: str, build: Callable[[], nn.Module], size: int) -> Architecture:
    return Architecture(name, build, _pictures(size), "pixel_values", "logits")


SMALL = [
    Architecture(
        "ResNet-18, width 16", _convolutional(lambda: ResNet(BasicBlock, [2, 2, 2, 2], width=16), 32), _pictures(32)
    ),
    Architecture("U-Net", _convolutional(UNet, 32), _pictures(32)),
    Architecture("ViT, written by hand", _transformer, _pictures(32)),
    _hub_text("BERT", hub.bert, hub.padding),
]
"""Those that every test run takes."""

ARCHITECTURES = [
    *SMALL,
    Architecture("ResNet-18", _convolutional(lambda: ResNet(BasicBlock, [2, 2, 2, 2]), 64), _pictures(64)),
    Architecture("ResNet-50", _convolutional(lambda: ResNet(Bottleneck, [3, 4, 6, 3]), 64), _pictures(64)),
    Architecture("VGG-11", _convolutional(lambda: VGG(width=32, batch_norm=False), 64), _pictures(64)),
    Architecture("VGG-11 with BatchNorm", _convolutional(lambda: VGG(width=32), 64), _pictures(64)),
    _hub_text("DistilBERT", hub.distilbert),
    _hub_text("T5 encoder", hub.t5_encoder),
    _hub_text("GPT-2", hub.gpt2),
    _hub_images("ViT", hub.vit, 32),
    _hub_images("DINOv2", hub.dinov2, 32),
    _hub_images("Swin", hub.swin, 32),
    _hub_images("ConvNeXt", hub.convnext, 64),
    _hub_images("SegFormer", hub.segformer, 64),
    _hub_images("MobileNetV2", hub.mobilenet_v2, 64),
    Architecture("CLIP", hub.clip, _pictures(32), "pixel_values", "logits_per_image", hub.texts),
]

WITH_DROPOUT = [
    Architecture("VGG-11 with BatchNorm", _convolutional(lambda: VGG(width=32), 64), _pictures(64)),
    Architecture("ViT, written by hand", _transformer, _pictures(32)),
    Architecture("BERT from token ids", hub.bert, lambda: hub.token_ids(2), "input_ids", "last_hidden_state"),
    Architecture("GPT-2 from token ids", hub.gpt2, lambda: hub.token_ids(2), "input_ids", "last_hidden_state"),
]
"""Those whose own dropout is propagated, from an input that is certain."""
