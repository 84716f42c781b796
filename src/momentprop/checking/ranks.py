"""Splits the inputs over the processes of `torch.distributed`, and joins their measurements."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from momentprop.checking.final_output import Probabilities
from momentprop.checking.joint_output import Correlations
from momentprop.checking.measure import Measured, Measurement
from momentprop.running import Run, is_tensor
from momentprop.torch_compat import pytrees as pytree
from momentprop.values import Value


def is_split() -> bool:
    """Whether there are several processes."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def share(run: Run, show: Sequence[int]) -> tuple[Run, Sequence[int], int]:
    """This process's share: a call on its inputs, which of them to show, and the index of the first."""
    if not is_split():
        return run, show, 0
    count, rank, world = run.batch_size, dist.get_rank(), dist.get_world_size()
    if count < world:
        raise ValueError(f"{world} processes cannot share {count} inputs: give at least one input for each")
    start, stop = count * rank // world, count * (rank + 1) // world

    def part(x: Any) -> Any:
        return x[start:stop] if is_tensor(x) and x.ndim and x.shape[0] == count else x

    args, kwargs, noise = pytree.tree_map(part, (run.args, run.kwargs, run.noise), is_leaf=is_tensor)
    mine = Run(run.model, args, kwargs, seed=(run.seed or 0) + rank, **noise)
    return mine, [i - start for i in show if start <= i < stop], start


def gathered(mine: Measurement, start: int) -> Measurement:
    """The measurements of all processes joined into one, identical in each process."""
    for shown in mine.shown:
        shown.input += start
    if not is_split():
        return mine
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, mine)
    modules = {name: _joined([part.modules[name] for part in parts]) for name in mine.modules}
    correlations = None if mine.correlations is None else _joined_items([part.correlations for part in parts])
    probabilities = None if mine.probabilities is None else _joined_rows([part.probabilities for part in parts])
    return dataclasses.replace(
        mine,
        modules=modules,
        correlations=correlations,
        probabilities=probabilities,
        shown=[shown for part in parts for shown in part.shown],
    )


def of_first(found: Any) -> Any:
    """What the first process has found, in every process."""
    if not is_split():
        return found
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, found)
    return parts[0]


def _joined(parts: Sequence[Measured]) -> Measured:
    first = parts[0]
    rows = sum(part.shape[0] for part in parts if part.shape)
    return dataclasses.replace(
        first,
        shape=(rows, *first.shape[1:]) if first.shape else (),
        truth=_cat([part.truth for part in parts]),
        values={name: _cat([part.values[name] for part in parts]) for name in first.values},
        inside={name: torch.cat([part.inside[name] for part in parts], 1) for name in first.inside},
    )


def _joined_items(parts: Sequence[Correlations]) -> Correlations:
    told = {name: [part.methods[name] for part in parts] for name in parts[0].methods}
    return Correlations(
        torch.cat([part.truth for part in parts]),
        torch.cat([part.varies for part in parts]),
        {name: None if None in found else torch.cat(found) for name, found in told.items()},  # type: ignore[arg-type]
    )


def _joined_rows(parts: Sequence[Probabilities]) -> Probabilities:
    return Probabilities(
        torch.cat([part.truth for part in parts]),
        torch.cat([part.variance for part in parts]),
        {
            name: {figure: torch.cat([part.log_q[name][figure] for part in parts]) for figure in found}
            for name, found in parts[0].log_q.items()
        },
    )


def _cat(values: Sequence[Value]) -> Any:
    columns = zip(*([getattr(value, name) for name in value.components] for value in values), strict=True)
    return values[0].of(*map(torch.cat, columns))
