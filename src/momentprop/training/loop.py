"""`Trainer`: the training loop for any model and any examples."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from momentprop.calibration import Calibration
from momentprop.errors import UserError
from momentprop.files import ContentError
from momentprop.training import checkpoint as checkpoints
from momentprop.training.checkpoint import Checkpoint
from momentprop.training.cuda_graph import GraphedStep
from momentprop.training.distributed import Ranks
from momentprop.training.folder import Folder
from momentprop.training.generators import generator_states, restore_generators
from momentprop.training.loader import Loader, as_training
from momentprop.training.log import Row, TensorBoard
from momentprop.training.losses import LOSSES, Classification, Objective
from momentprop.training.optimizer import make_optimizer, optimizer_state, restore_optimizer
from momentprop.training.passes import autocast, converted, evaluate, in_full, training_pass
from momentprop.training.progress import Clock, Progress
from momentprop.training.recalibration import fitted
from momentprop.training.restoring import require_fitting, require_same_run
from momentprop.training.settings import Settings
from momentprop.training.training_examples import Examples, Pairs, order


@dataclass
class Position:
    """The position of a run: the finished epochs, and the steps, seconds and examples of the current one."""

    epoch: int = 0
    step: int = 0
    seconds: float = 0.0
    history: list[Row] = field(default_factory=list)
    seen: int = 0


class Trainer:
    """One run: the model, the data, the optimizer and the position."""

    def __init__(
        self,
        model: nn.Module,
        examples: Examples | Loader,
        settings: Settings,
        ranks: Ranks,
        validation: Any = None,
        objective: Objective | None = None,
        folder: Folder | None = None,
    ) -> None:
        if len(examples) == 0:
            raise UserError("there are no examples to train with")
        self.settings, self.ranks, self.folder = settings, ranks, folder
        self.objective: Objective = objective or Classification(settings.softmax)  # type: ignore[arg-type]
        self.loss: Objective = objective or LOSSES[settings.loss](settings.softmax)  # type: ignore[arg-type]
        self.model = model.to(ranks.device, settings.torch_dtype).train()
        self.examples = examples.to(ranks.device)
        self.validation = None if validation is None else as_training(validation).to(ranks.device)
        self.graphed = settings.graph and ranks.device.type == "cuda"
        if self.graphed and ranks.world > 1:
            raise UserError("graph works in a single process only: leave it out")
        if self.graphed and isinstance(examples, Loader):
            raise UserError("graph needs examples that are kept on the device, not a loader: leave it out")
        self.graphed_step: GraphedStep | None = None
        self.full = examples.size if isinstance(examples, Loader) else settings.batch_size
        self.optimizer = make_optimizer(self.model, settings, self.graphed)
        self.runner = ranks.wrap(torch.compile(self.model) if settings.compile else self.model)  # type: ignore[arg-type]
        self.position = Position()
        self.calibration: Calibration | None = None
        self.sums = torch.zeros(len(self.objective.names), dtype=torch.float64, device=ranks.device)
        torch.manual_seed(settings.seed * 1_000_003 + 500_000 + ranks.rank)  # the noise of this process

    @property
    def steps(self) -> int:
        """The number of steps in an epoch."""
        count = len(self.examples)
        return count if isinstance(self.examples, Loader) else math.ceil(count / self.settings.batch_size)

    def run(self, bar: Progress, tensorboard: bool = False) -> None:
        """Train to the last epoch."""
        events = None
        if self.folder is not None and self.ranks.is_first:
            events = TensorBoard(self.folder.path, tensorboard, self.position.epoch)
        if self.position == Position():
            self.calibrate(0)
            self.save()
        elif self.folder is not None and self.ranks.is_first:
            self.folder.tidy(self.position.history)
        while self.position.epoch < self.settings.epochs:
            row = self.epoch(bar)
            bar.end(row)
            if events is not None:
                events.add(row)

    def epoch(self, bar: Progress) -> Row:
        """Train from the current position to the end of the epoch, evaluate, and save."""
        at = self.position
        rate = self.settings.learning_rate * self.settings.decay**at.epoch
        for group in self.optimizer.param_groups:
            group["lr"] = group["lr"].fill_(rate) if self.graphed else rate  # a graph reads it from its memory
        bar.begin(at.epoch + 1, self.steps, at.step)
        clock = Clock(at.seconds)
        for batch in self._batches():
            self.step(batch)
            at.step += 1
            at.seen += len(batch)
            bar.step(lambda: self.running_figures(clock.seconds))
            every = self.settings.checkpoint_every
            if every and (at.epoch * self.steps + at.step) % every == 0 and at.step < self.steps:
                self._require_finite()  # waits for the device, so the clock is right
                at.seconds = clock.seconds
                self.save()
                clock.set(at.seconds)
        averages = self._require_finite()
        row = self._end_of_epoch(rate, averages, clock.seconds)
        self.save()
        return row

    def _batches(self) -> Iterable[Tensor | Pairs]:
        """The remaining batches of the epoch: as positions of examples, or from a loader."""
        if isinstance(self.examples, Loader):
            return self.examples.epoch(self.settings.seed, self.position.epoch, self.position.step)
        permutation = order(len(self.examples), self.settings.seed, self.position.epoch).to(self.ranks.device)
        batches: Sequence[Tensor] = permutation.split(self.settings.batch_size)
        return batches[self.position.step :]

    def step(self, batch: Tensor | Pairs) -> None:
        """Make one step with a batch, or the examples at these positions; the last of an epoch can be smaller."""
        if len(batch) < self.full:
            self._step(batch, self.runner if self.ranks.world > 1 else self.model)  # not worth a compilation
        elif self.graphed and isinstance(batch, Tensor):
            self.graphed_step = self.graphed_step or GraphedStep(lambda batch: self._step(batch, self.runner))
            self.graphed_step(batch)
        else:
            self._step(batch, self.runner)

    def _step(self, batch: Tensor | Pairs, runner: nn.Module) -> None:
        """Make one step; each process takes its part of the examples."""
        source: Any = batch if isinstance(batch, Pairs) else self.examples
        chosen = torch.arange(len(batch), device=self.ranks.device) if isinstance(batch, Pairs) else batch
        mine = self.ranks.shard(chosen)
        count = len(mine)
        inputs, targets = source.batch(mine if count else chosen[:1])  # all processes must take part
        with autocast(self.settings, self.ranks.device):
            output = training_pass(runner, converted(inputs, self.settings), self.settings, self.calibration)
        figures = self.loss(in_full(output), converted(targets, self.settings))[:, :count]
        loss = figures[0].sum() * (self.ranks.world / len(batch))  # DDP averages over the processes
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.sums += figures.detach().double().sum(1)

    def running_figures(self, seconds: float) -> dict[str, float]:
        """Return the averages over this process's part of the epoch so far."""
        seen = self.position.seen
        share = (self.sums * self.ranks.world / seen).tolist()
        return {**dict(zip(self.objective.names, share, strict=True)), "images_per_second": seen / seconds}

    def _require_finite(self) -> list[float]:
        """Return the averages of the epoch so far, over all processes; raise an error if they are not finite."""
        averages: list[float] = (self.ranks.sum(self.sums) / self.position.seen).tolist()
        if all(math.isfinite(average) for average in averages):
            return averages
        raise UserError(
            f"the training loss is not finite in epoch {self.position.epoch + 1}: use a learning rate below "
            f"{self.settings.learning_rate}"
        )

    def _end_of_epoch(self, rate: float, averages: Sequence[float], seconds: float) -> Row:
        at = self.position
        row: Row = {"epoch": at.epoch + 1, "learning_rate": rate}
        row |= {f"train_{name}": value for name, value in zip(self.objective.names, averages, strict=True)}
        self.ranks.share_buffers(self.model)
        if self.settings.calibrate_every and (at.epoch + 1) % self.settings.calibrate_every == 0:
            self.calibrate(at.epoch + 1)
        if self.validation is not None:
            found = self.evaluate(self.validation)
            row |= {f"validation_{name}": value for name, value in found.items()}
        row["images_per_second"] = round(at.seen / seconds, 1)
        row["seconds"] = round(seconds, 3)
        self.sums.zero_()
        self.position = Position(at.epoch + 1, history=[*at.history, row])
        return row

    def calibrate(self, epoch: int) -> None:
        """Fit corrections of AP2 to the current weights, if the settings ask for them."""
        if self.settings.calibrate_every:
            self.calibration = fitted(self.model, self.examples, self.settings, epoch, self.ranks.device)
            self.graphed_step = None  # a recorded step contains the old corrections

    def evaluate(self, examples: Any) -> dict[str, float]:
        """Return the averages of the objective over examples, by the evaluation pass."""
        given = as_training(examples).to(self.ranks.device)
        return evaluate(self.model, given, self.settings, self.objective, self.ranks, self.calibration)

    def save(self) -> None:
        """Write a checkpoint and the log."""
        if self.folder is None:
            return
        generators, sums = generator_states(self.ranks), self.ranks.sum(self.sums)
        if not self.ranks.is_first:
            return
        tensors, rest = optimizer_state(self.optimizer)
        at = self.position
        state = {
            "settings": self.settings.as_dict(),
            "examples": len(self.examples),
            "names": list(self.objective.names),
            "epoch": at.epoch,
            "step": at.step,
            "seconds": at.seconds,
            "seen": at.seen,
            "history": at.history,
            "optimizer": rest,
            "calibration": None if self.calibration is None else self.calibration.to_dict(),
        }
        numbers = {} if self.calibration is None else {"numbers": self.calibration.numbers}
        parts = {
            "model.": self.model.state_dict(),
            "optimizer.": tensors,
            "generator.": generators,
            "calibration.": numbers,
        }
        named = {prefix + name: tensor for prefix, part in parts.items() for name, tensor in part.items()}
        self.folder.save(Checkpoint(state, {**named, "sums": sums}))

    def finish(self) -> None:
        """Write the trained model, and its calibration if it has one."""
        if self.folder is not None and self.ranks.is_first:
            about = {"settings": self.settings.as_dict(), "last": self.position.history[-1], "torch": torch.__version__}
            self.folder.save_model(self.model, about, self.calibration)
        self.ranks.wait()  # until everything is written: gloo aborts a process that leaves before the others are done

    def restore(self, found: Checkpoint) -> None:
        """Restore the position and the state of a checkpoint; one that does not fit raises an error first."""
        path = Path(checkpoints.FILE) if self.folder is None else self.folder.file
        with checkpoints.valid_checkpoint(path):
            require_same_run(
                found, path, self.model, {"examples": len(self.examples), "names": [*self.objective.names]}
            )
            require_fitting(found, self.optimizer, self.sums, self.steps)
            self.calibration = self._restored_calibration(found)
        state = found.state
        self.model.load_state_dict(found.part("model."))
        restore_optimizer(self.optimizer, found.part("optimizer."), state["optimizer"])
        self.sums.copy_(found.tensors["sums"] if self.ranks.is_first else torch.zeros_like(self.sums))
        before = min(state["step"] * self.full, len(self.examples))  # in a checkpoint that does not say it
        seen = state.get("seen", before)
        self.position = Position(state["epoch"], state["step"], state["seconds"], state["history"], seen)
        restore_generators(found.part("generator."), self.ranks)

    def _restored_calibration(self, found: Checkpoint) -> Calibration | None:
        if not self.settings.calibrate_every:
            return None
        if found.state.get("calibration") is None:
            raise ContentError("its calibration is missing")
        numbers = found.tensors.get("calibration.numbers")
        return Calibration.from_dict(found.state["calibration"], numbers).to(self.ranks.device)
