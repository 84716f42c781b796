"""Training by AP2 as a Lightning module, whose trainer handles batches, devices and checkpoints.

Run it with `pip install lightning` as `python examples/lightning_module.py`.
"""

from typing import Any

import lightning
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from momentprop import propagate
from momentprop.data import digits


class ByMoments(lightning.LightningModule):
    """Trains a classifier on the loss of its class probabilities under noise, which AP2 computes."""

    def __init__(self, model: nn.Module, input_variance: float = 0.1, learning_rate: float = 3e-3) -> None:
        super().__init__()
        self.model, self.input_variance, self.learning_rate = model, input_variance, learning_rate

    def forward(self, images: Tensor) -> Any:
        """Return the logits as values with mean and variance; dropout acts in evaluation mode too."""
        return propagate(self.model, images, input_variance=self.input_variance, dropout=True, covariance=False)

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        """Return the loss of a batch."""
        images, labels = batch
        loss = F.cross_entropy(self(images), labels)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        """Log the loss and the accuracy of a batch."""
        images, labels = batch
        output = self(images)
        self.log("validation_loss", F.cross_entropy(output, labels))
        self.log("validation_accuracy", (output.loc.argmax(-1) == labels).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.Adam(self.model.parameters(), lr=self.learning_rate)


def main() -> None:
    """Train on the embedded digits."""
    train, test = (TensorDataset(split.images, split.labels) for split in (digits("train"), digits("test")))
    layers = nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10)
    trainer = lightning.Trainer(max_epochs=3, logger=False, enable_checkpointing=False)
    trainer.fit(
        ByMoments(nn.Sequential(*layers)),
        DataLoader(train, batch_size=50, shuffle=True),
        DataLoader(test, batch_size=500),
    )
    print({name: round(float(x), 3) for name, x in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
