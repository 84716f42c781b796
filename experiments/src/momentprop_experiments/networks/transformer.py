"""A vision transformer for small images.

>>> import torch
>>> from momentprop import Normal
>>> from momentprop_experiments.networks import vit
>>> vit()(Normal(torch.zeros(2, 3, 32, 32), 0.1)).shape
torch.Size([2, 10])
"""

import torch
from torch import Tensor, nn

from momentprop.errors import UserError
from momentprop_experiments.networks.sequential import Shape, make_activation


class VisionTransformer(nn.Module):
    """A pre-norm transformer on patches of an image, with a linear head on the mean of its tokens."""

    def __init__(
        self, activation: str, dropout: float, shape: Shape, classes: int, patch: int, width: int, depth: int
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(shape[0], width, patch, patch)
        tokens = (shape[1] // patch) * (shape[2] // patch)
        self.positions = nn.Parameter(torch.randn(tokens, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, width // 32, 2 * width, dropout, make_activation(activation), batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of images."""
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        return self.head(self.encoder(tokens).mean(1))  # type: ignore[no-any-return]


def vit(
    activation: str = "gelu",
    *,
    dropout: float = 0.0,
    norm: str = "none",
    shape: Shape = (3, 32, 32),
    classes: int = 10,
    patch: int = 4,
    width: int = 128,
    depth: int = 6,
) -> VisionTransformer:
    """Build a small vision transformer: 6 layers of width 128 with 4 heads, on patches of 4 by 4 pixels."""
    if norm != "none":
        raise UserError(f"the vision transformer has its own normalization: use norm 'none' instead of {norm!r}")
    return VisionTransformer(activation, dropout, shape, classes, patch, width, depth)
