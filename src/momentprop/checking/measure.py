"""Runs every method and a stream of draws on a model, and keeps what the figures need."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from momentprop.checking.accumulators import FINE_LEVELS, LEVELS, UnitAccumulator
from momentprop.checking.final_output import FinalOutput, Probabilities, ShownUnits
from momentprop.checking.joint_output import Correlations, marginal
from momentprop.checking.methods import Compared
from momentprop.checking.picked_units import UnitPicker, leaves, name_of_output, name_of_the_end
from momentprop.propagate import Folds
from momentprop.recording import Recording
from momentprop.running import Run, of_each_draw
from momentprop.sampling import chunks
from momentprop.values import Categorical, Certain, Estimate, Sample
from momentprop.values.structures import mapped
from momentprop.values.uncertain import Uncertain


@dataclass
class Measured:
    """The picked units of an output by draws and by methods, with the number of draws inside each interval."""

    path: str  # the path of the module
    shape: tuple[int, ...]
    dtype: torch.dtype
    truth: Estimate
    values: dict[str, Any]
    inside: dict[str, Tensor]  # shape: (levels, units)
    levels: Sequence[float]


@dataclass
class Measurement:
    """All outputs by name, and the class probabilities, correlations and shown units of the final output."""

    modules: dict[str, Measured]
    correlations: Correlations | None
    probabilities: Probabilities | None
    shown: list[ShownUnits]
    end: str
    methods: list[str]
    notes: list[str]  # which methods could not run, and why


def measure(
    run: Run,
    methods: Mapping[str, Compared],
    samples: int,
    limit: int | None,
    classes: Any,
    show: Sequence[int],
) -> Measurement:
    """Compare the methods with draws at every output of a module."""
    picker = UnitPicker(limit)
    outputs, flat, notes = {}, {}, []
    for name, method in methods.items():
        try:
            outputs[name], flat[name] = _by_method(run, method, picker)
        except Exception as error:
            if not method.optional:
                raise
            notes.append(f"{name} is left out, because it cannot run on this model: {' '.join(str(error).split())}")
    end = name_of_the_end(next(iter(outputs.values())))
    ending = FinalOutput({name: found[end] for name, found in outputs.items()}, end, classes, show)
    watches: dict[str, UnitAccumulator] = {}
    dtypes: dict[str, torch.dtype] = {}
    for drawn, full in _draws(run, picker, end, samples):
        for name, tensor in drawn.items():
            if name not in watches:
                dtypes[name] = tensor.dtype
                watches[name] = UnitAccumulator(_comparable(flat, name), FINE_LEVELS if name == end else LEVELS)
            watches[name].add(tensor)
        ending.add(full)
    modules = {
        name: Measured(
            picker.paths[name],
            picker.shapes[name],
            dtypes[name],
            watch.estimate(),
            {method: watch.unmasked(value) for method, value in _comparable(flat, name).items()},
            {method: coverage.counts.cpu() for method, coverage in watch.coverages.items()},
            watch.levels,
        )
        for name, watch in watches.items()
    }
    return Measurement(
        modules, ending.correlations(), ending.probabilities(), ending.shown(), end, list(outputs), notes
    )


def _by_method(run: Run, method: Compared, picker: UnitPicker) -> tuple[dict[str, Any], dict[str, Any]]:
    """The values of the model's output in full, and the picked units of all outputs, both by name."""
    record = run.has_modules and method.everywhere
    result = run.apart().under(method, record=record)
    output, recorded = result if record else (result, {})
    name = method.only or name_of_output(run.model)
    trees = {**recorded, name: output}
    picked = [picker(path, mapped(marginal, tree)) for path, tree in trees.items()]
    flat = {name: value for found in picked for name, value in found.items()}
    return dict(leaves(output, name)), flat


def _draws(run: Run, picker: UnitPicker, end: str, samples: int) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
    """Stacked draws: the picked units of all outputs by name, and the whole final output."""
    run = run.settled()
    recording = Recording(run.model, Sample, run.has_modules, picker)
    names: list[str] = []

    def tensors_of(output: Any, recorded: dict[str, Any], last: dict[str, Any]) -> list[Tensor]:
        picked = [*recorded.values(), last]
        drawn = {name: x.loc for found in picked for name, x in found.items() if isinstance(x, Sample)}
        names[:] = drawn
        return [*drawn.values(), _logits(dict(leaves(output, name_of_output(run.model)))[end])]

    def stacked(output: Any, recorded: dict[str, Any]) -> list[Tensor]:
        return tensors_of(output, recorded, of_each_draw(lambda x: picker(name_of_output(run.model), x), output))

    with run.by(Sample, recording) as once:

        def draw() -> list[Tensor]:
            output, recorded = once()
            return tensors_of(output, recorded, picker(name_of_output(run.model), output))

        batches = Folds(run, recording, stacked)
        for *drawn, full in chunks(draw, samples, together=run.may_vectorize, title="checking", batches=batches):
            yield dict(zip(names, drawn, strict=True)), full


def _comparable(flat: Mapping[str, Mapping[str, Any]], name: str) -> dict[str, Any]:
    """The units of an output by every method that has their means; a class posterior has none."""
    found = {method: units[name] for method, units in flat.items() if name in units}
    return {method: value for method, value in found.items() if isinstance(value, Uncertain | Certain)}


def _logits(value: Any) -> Tensor:
    logits: Tensor = value.logits if isinstance(value, Categorical) else value.loc
    return logits
