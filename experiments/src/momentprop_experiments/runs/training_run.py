"""A training run: `train` turns a configuration into a folder with a trained network, `load_model` reads it."""

import contextlib
import math
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from momentprop import built_kernels, data
from momentprop.calibration import Calibration
from momentprop.data import Dataset, Split
from momentprop.dispatch import MissingRule
from momentprop.errors import UserError
from momentprop.files import ContentError, decoded
from momentprop.normalization import initialize, input_statistics
from momentprop.normalization.layers import attach
from momentprop.training import checkpoint as checkpoints
from momentprop.training.checkpoint import Checkpoint, CheckpointError
from momentprop.training.distributed import processes
from momentprop.training.folder import Folder
from momentprop.training.generators import forked_generators
from momentprop.training.log import Row
from momentprop.training.loop import Trainer
from momentprop.training.progress import Progress, line
from momentprop.training.restoring import require_weights
from momentprop.training.training_examples import order
from momentprop.values import Statistics
from momentprop_experiments.networks import NETWORKS
from momentprop_experiments.provenance import commit, provenance
from momentprop_experiments.runs import curves
from momentprop_experiments.runs.augmentation import Augmented
from momentprop_experiments.runs.config import Config

_INITIALIZED_WITH = 1024  # images in a batch of the evaluation, and of the initialization "bn"
_LARGEST = 1 << 22  # numbers of an image


@dataclass
class Result:
    """The result of a run."""

    config: Config
    model: nn.Module
    history: list[Row]
    test: dict[str, float]
    out: Path
    calibration: Calibration | None = None


def train(
    config: Config,
    out: str | Path,
    *,
    root: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    tensorboard: bool = False,
    progress: bool = True,
) -> Result:
    """Train one of the named networks and write everything about it into the folder `out`.

    The run writes `config.json`, `log.csv` and a checkpoint, at the end `model.safetensors`, `result.json` and the
    curves, and with `calibrate_every` also `calibration.safetensors`. Under `torchrun` the processes share the work,
    and the first one writes.

    Args:
        config: which network to train, on which data, and how.
        out: the folder of the run. A folder that holds a run is an error unless `resume` or `overwrite` is true.
        root: the folder of the data sets; see `momentprop.data.load`.
        resume: continue from the checkpoint in the folder, or start if there is none.
        overwrite: start again even if the folder holds a run.
        tensorboard: also write TensorBoard events.
        progress: show a progress bar.
    """
    started = time.perf_counter()
    commit()  # of the source that runs
    ranks = processes(config.device)
    folder = Folder(Path(out), config)
    with forked_generators(ranks), folder.locked(ranks), built_kernels.at_once():
        found = folder.open(resume=resume, overwrite=overwrite)
        images = load_data(config, root)
        training, validation = split(images, config)
        with Progress(config.epochs, progress and ranks.is_first) as bar:
            model = build(config, training)
            ranks.wait()  # until every process has read the folder
            examples = _augmented(training) if config.augment else training
            trainer = Trainer(model, examples, config, ranks, validation, folder=folder)
            if found is not None:
                trainer.restore(found)
                bar.say(f"resuming after epoch {trainer.position.epoch}, step {trainer.position.step}")
            trainer.run(bar, tensorboard)
            trainer.calibrate(trainer.position.epoch)  # unless the last epoch did
            test = trainer.evaluate(images.test)
            result = Result(config, model, trainer.position.history, test, folder.path, trainer.calibration)
            if ranks.is_first:
                _finish(result, images, provenance(ranks.device, time.perf_counter() - started), bar)
            ranks.wait()  # until everything is written: gloo aborts a process that leaves before the others are done
        return result


def load_data(config: Config, root: str | Path | None = None) -> Dataset:
    """Load the data set of a run, normalized by its training images; `test_data` may replace the test images."""
    chosen = data.load(config.data, root)
    if config.test_data != "same":
        other = data.load(config.test_data, root)
        if other.test.images.shape[1:] != chosen.train.images.shape[1:]:
            raise UserError(
                f"the images of {config.test_data} differ in shape from those of {config.data}: choose other test data"
            )
        chosen = replace(chosen, test=other.test)
    return chosen.normalized()


def split(images: Dataset, config: Config) -> tuple[Split, Split | None]:
    """Return the images for training and, if any, for validation."""
    if config.validation == 0 and config.train_images == 0:
        return images.train, None
    training, validation = images.validation_split(config.validation, config.seed)
    if config.train_images > len(training):
        raise UserError(
            f"train images must be at most {len(training):,}, the number of images to train with, but is "
            f"{config.train_images:,}"
        )
    if config.train_images > 0:
        training = training[order(len(training), config.seed, 0)[: config.train_images].sort().values]
    return _part(images.train, training), _part(images.train, validation) if len(validation) else None


def _part(images: Split, indices: Tensor) -> Split:
    return replace(images, images=images.images[indices], labels=images.labels[indices])


def _augmented(training: Split) -> Augmented:
    return Augmented(training.images, training.labels, training.mean, training.std)


def build(config: Config, training: Split) -> nn.Module:
    """Build the network of a run at its initial point, which depends only on the seed."""
    torch.manual_seed(config.seed)
    shape = tuple(training.images.shape[1:])
    model = _network(config, shape, classes=10).to(config.torch_dtype)
    if config.init == "bn":
        first = order(len(training), config.seed, 0)[:_INITIALIZED_WITH]
        initialize(model, training.batch(first)[0].to(config.torch_dtype), method="batch")
    if "analytic" in (config.init, config.norm):
        statistics = _statistics(config, training)
        try:
            if config.init == "analytic":
                initialize(model, statistics)
        except MissingRule as error:
            raise UserError(
                f"init 'analytic' does not work for the network {config.network!r}; choose 'bn' or 'torch' ({error})"
            ) from error
        if config.norm == "analytic":
            attach(model, statistics)
    return model


def _statistics(config: Config, training: Split) -> Statistics:
    """Return the statistics of the images that the network receives, including their noise."""
    indices = torch.arange(len(training)).split(_INITIALIZED_WITH)
    images = input_statistics(training.batch(some)[0].to(config.torch_dtype) for some in indices)
    return Statistics(images.loc, images.variance + config.input_variance)


def _network(config: Config, shape: tuple[int, ...], classes: int) -> nn.Module:
    make = NETWORKS[config.network]
    chosen = {"width": config.width} if config.width else {}
    return make(config.activation, dropout=config.dropout, norm=config.norm, shape=shape, classes=classes, **chosen)


def _finish(result: Result, images: Dataset, made: dict[str, Any], bar: Progress) -> None:
    """Write the network, its metrics and the curves."""
    shape = list(images.train.images.shape[1:])
    about = {
        "config": result.config.as_dict(),
        "command": result.config.command,
        "classes": list(images.classes),
        "shape": shape,
        "mean": images.mean.tolist(),
        "std": images.std.tolist(),
        "test": result.test,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    folder = Folder(result.out, result.config)
    folder.save_model(result.model, about, result.calibration)
    folder.finish({**about, "history": result.history, "seconds": made["seconds"], "made": made})
    with _without_matplotlib(bar):
        curves.draw_curves(result.out, result.history, list(result.test))
    bar.say(f"test: {line(result.test)} ({result.config.evaluation})")


@contextlib.contextmanager
def _without_matplotlib(bar: Progress) -> Iterator[None]:
    """Let a run succeed without matplotlib, which only the curves need."""
    try:
        yield
    except ImportError as error:
        bar.say(f"no curves were drawn: {error}")


def save_halved(path: str | Path, target: str | Path) -> None:
    """Write a trained network, given by its file or the folder of its run, to a file of half the size, in float16."""
    _, found = _trained(path)
    tensors = {name: t.half() if t.is_floating_point() else t for name, t in found.tensors.items()}
    checkpoints.write(Path(target), Checkpoint(found.state, tensors))


def load_model(path: str | Path) -> tuple[nn.Module, dict[str, Any]]:
    """Load a trained network in evaluation mode, and its description.

    `path` is the file `model.safetensors` or the folder of the run. The description has the `config`, the names of the
    `classes`, the `shape` of an image, the `mean` and `std` that normalize images, and the `test` metrics.
    """
    file, found = _trained(path)
    about = found.state
    with checkpoints.valid_checkpoint(file):
        model = _described(about)
        require_weights(found.tensors, file, model)
    model.load_state_dict(found.tensors)
    return model.eval(), about


def _described(about: dict[str, Any]) -> nn.Module:
    """Build the network of a description, with any weights."""
    shape = decoded(tuple[int, int, int], about["shape"], "its shape")
    classes = decoded(list[str], about.get("classes"), "its classes")
    if min(shape) < 1 or math.prod(shape) > _LARGEST or not classes:
        raise ContentError(f"there are no images of shape {list(shape)} with {len(classes)} classes")
    try:
        config = Config.from_dict(decoded(dict[str, Any], about["config"], "its config"))
        model = _network(config, shape, len(classes)).to(config.torch_dtype)
    except (UserError, RuntimeError) as error:
        raise ContentError(f"there is no network like that: {error}") from error
    if config.norm == "analytic":  # its statistics are among the tensors
        attach(model, Statistics(torch.zeros(shape[0]), torch.ones(shape[0])))
    return model


def _trained(path: str | Path) -> tuple[Path, Checkpoint]:
    file = Path(path) / checkpoints.MODEL if Path(path).is_dir() else Path(path)
    if not file.exists():
        raise CheckpointError(f"there is no `{file}`: has the run finished?")
    found = checkpoints.read(file)
    if "config" not in found.state or "shape" not in found.state:
        raise CheckpointError(
            f"`{file}` is not a trained network: give the folder of a run, or its `{checkpoints.MODEL}`"
        )
    return file, found
