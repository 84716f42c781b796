"""Which methods can run on a model: the covariance of its final output is for few units only."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from momentprop.checking.methods import Compared
from momentprop.checking.picked_units import leaves, name_of_output, name_of_the_end
from momentprop.joint_outputs import LIMIT
from momentprop.propagate import propagate
from momentprop.running import Run


@dataclasses.dataclass(frozen=True)
class Chosen:
    """The methods that can run, the units that the final output has for each input, and what is left out and why."""

    methods: dict[str, Compared]
    units: int
    notes: list[str]


def chosen(run: Run, methods: Mapping[str, Compared]) -> Chosen:
    """The methods that can run on a model; one pass of AP1 finds its final output."""
    if not any(method.follows for method in methods.values()):
        return Chosen(dict(methods), 1, [])
    output = run.apart().under(functools.partial(propagate, method="ap1"))
    name = name_of_output(run.model)
    found = dict(leaves(output, name))
    end = name_of_the_end(found)
    units = _units(found[end].shape, run.batch_size)
    notes, able = _of_one_input(run, found[end].shape), {}
    for title, method in methods.items():
        if method.follows and units > LIMIT:
            if method.if_wide is None:
                notes.append(_left_out(title, units))
                continue
            method = method.if_wide
        elif method.follows and list(found) != [name]:
            method = _on_one(method, name, end)
        able[title] = method
    if not able:
        raise ValueError(" ".join(notes))
    return Chosen(able, units, notes)


def _units(shape: Any, items: int) -> int:
    """The units of the final output for each input, or all of them if they do not belong to single inputs."""
    return int(shape[1:].numel() if shape and shape[0] == items else shape.numel())


def _on_one(method: Compared, name: str, end: str) -> Compared:
    """The method on one of several outputs."""

    def pick(output: Any) -> Any:
        return dict(leaves(output, name))[end]

    return dataclasses.replace(method, run=functools.partial(method.run, outputs=pick), only=end)


def _of_one_input(run: Run, output: Sequence[int]) -> list[str]:
    """Return a note if the rows of the input do not look like inputs, because the output has none for them."""
    rows = run.batch_size
    is_vector = len(output) == 1 and any(True for module in run.modules for _ in module.parameters())
    if rows == 1 or (len(output) > 0 and output[0] == rows and not is_vector):
        return []
    return [
        f"The {rows} rows of the input count as inputs, but the output of shape {tuple(output)} has no row for each: "
        "if you gave a single input, give it a dimension for the batch, as in `x.unsqueeze(0)`."
    ]


def _left_out(title: str, units: int) -> str:
    return (
        f"{title} is left out: the final output has {units:,} units for each input, but a covariance is computed for "
        f"at most {LIMIT}. Choose units with `propagate(..., covariance=True, outputs=...)`."
    )
