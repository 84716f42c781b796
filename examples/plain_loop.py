"""Training by AP2 in your own loop: dropout and noisy inputs without a single draw.

`propagate` runs the model on means and variances, and the losses of `torch.nn.functional` take its output. The loss is
then that of the class probabilities under all noise, and its gradient has no sampling noise.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from momentprop import propagate
from momentprop.data import digits

NOISE = 0.1
"""The variance of the noise on every pixel."""


def network() -> nn.Sequential:
    """A small classifier with dropout."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))


def train(model: nn.Module, loader: DataLoader[tuple[Tensor, ...]], epochs: int = 3) -> list[float]:
    """Train a model, and return the average loss of every epoch."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    model.train()
    for _ in range(epochs):
        total = 0.0
        for images, labels in loader:
            output = propagate(model, images, input_variance=NOISE, covariance=False)
            loss = F.cross_entropy(output, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += float(loss.detach())
        losses.append(total / len(loader))
    return losses


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the share of images that are classified right, under the noise of the training."""
    output = propagate(model.eval(), images, input_variance=NOISE, dropout=True, covariance=False)
    return float((output.loc.argmax(-1) == labels).float().mean())


def main() -> None:
    """Train on the embedded digits and print the accuracy."""
    torch.manual_seed(0)
    train_set, test_set = digits("train"), digits("test")
    model = network()
    losses = train(model, DataLoader(TensorDataset(train_set.images, train_set.labels), batch_size=50, shuffle=True))
    print(f"loss {losses[0]:.3f} to {losses[-1]:.3f}, accuracy {accuracy(model, test_set.images, test_set.labels):.1%}")


if __name__ == "__main__":
    main()
