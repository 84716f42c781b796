"""Training by AP2 without `fit`: `examples/plain_loop.py` and `examples/lightning_module.py`."""

import pytest
import torch
from examples.plain_loop import accuracy, network, train
from torch.utils.data import DataLoader, TensorDataset

from momentprop.data import digits


def _loader() -> DataLoader:
    images = digits("train")
    return DataLoader(TensorDataset(images.images[:2000], images.labels[:2000]), batch_size=50, shuffle=True)


def test_a_plain_loop_learns_under_noise():
    torch.manual_seed(0)
    model, test = network(), digits("test")
    before = accuracy(model, test.images[:500], test.labels[:500])
    losses = train(model, _loader(), epochs=2)
    assert losses[1] < losses[0] < 2.3  # the loss of a guess is log 10
    assert accuracy(model, test.images[:500], test.labels[:500]) > 0.75 > before


@pytest.mark.filterwarnings("ignore")  # of Lightning, about workers and its own use of torch
def test_a_module_of_lightning_learns_under_noise():
    lightning = pytest.importorskip("lightning", reason="needs lightning")
    from examples.lightning_module import ByMoments

    torch.manual_seed(0)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", enable_model_summary=False, **quiet)
    trainer.fit(ByMoments(network()), _loader(), _loader())
    assert float(trainer.callback_metrics["validation_accuracy"]) > 0.75
