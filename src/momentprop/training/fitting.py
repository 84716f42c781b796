"""`fit`: trains any model with any examples."""

import contextlib
from pathlib import Path
from typing import Any

from torch import nn

from momentprop import built_kernels
from momentprop.training.distributed import processes
from momentprop.training.folder import Folder
from momentprop.training.generators import forked_generators
from momentprop.training.loader import as_training
from momentprop.training.log import Row
from momentprop.training.loop import Trainer
from momentprop.training.losses import Objective
from momentprop.training.progress import Progress
from momentprop.training.settings import Settings


def fit(
    model: nn.Module,
    examples: Any,
    settings: Settings | None = None,
    *,
    validation: Any = None,
    objective: Objective | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    tensorboard: bool = False,
    progress: bool = True,
) -> list[Row]:
    """Train a model in place and return a row of figures for each epoch.

    >>> import torch
    >>> from momentprop.training import Settings, fit
    >>> inputs = torch.randn(200, 2)
    >>> labels = (inputs[:, 0] > inputs[:, 1]).long()
    >>> layers = torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(8, 2)
    >>> model = torch.nn.Sequential(*layers)
    >>> history = fit(model, (inputs, labels), Settings(batch_size=20, learning_rate=0.03), progress=False)
    >>> len(history), history[-1]["train_accuracy"] > 0.9
    (20, True)

    Args:
        model: any module; the method `ap2` runs it as `propagate` does. It is returned to its device at the end.
        examples: a pair of tensors (inputs, targets), a `momentprop.data.Split` or any map-style data set, which are
            kept on the device; or a `DataLoader`, or any other iterable of batches (inputs, targets) that has a length
            and no `[]`, which is read again in every epoch and makes its own batches.
        settings: how to train; by default `Settings()`, which is Adam for 20 epochs by AP2.
        validation: examples to evaluate with after every epoch, in the same form.
        objective: the loss and the other reported figures. The default is `Classification(settings.softmax)`, with the
            loss named by `settings.loss` in the training steps.
        out: a folder for checkpoints and logs, and at the end the model. Without one, nothing is written.
        resume: continue from the checkpoint in the folder, if there is one.
        overwrite: start over even if the folder holds a run.
        tensorboard: also write TensorBoard events.
        progress: show progress bars, or one line per epoch without a terminal.
    """
    settings = settings or Settings()
    ranks = processes(settings.device)
    home = next((parameter.device for parameter in model.parameters()), ranks.device)
    folder = None if out is None else Folder(Path(out), settings)
    lock = contextlib.nullcontext() if folder is None else folder.locked(ranks)
    with forked_generators(ranks), lock, built_kernels.at_once():
        found = None if folder is None else folder.open(resume=resume, overwrite=overwrite)
        ranks.wait()  # until all processes have read the folder
        trainer = Trainer(model, as_training(examples), settings, ranks, validation, objective, folder)
        if found is not None:
            trainer.restore(found)
        with Progress(settings.epochs, progress and ranks.is_first) as bar:
            trainer.run(bar, tensorboard)
            trainer.finish()
        model.to(home)
        return trainer.position.history
