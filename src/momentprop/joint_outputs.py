"""Runs a model by AP2 and follows correlations: outputs are `Joint` values that know their covariance on request."""

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from momentprop.correlation.adjoint import Followed, followed
from momentprop.correlation.following import Following
from momentprop.correlation.graph import Counting, TooLarge, depends_on, has_foreign_leaves
from momentprop.correlation.items import ItemsInteract
from momentprop.dispatch.context import Chain, Watcher
from momentprop.recording import Recording
from momentprop.running import Run
from momentprop.sampling import progress
from momentprop.torch_compat.modules import BatchNorm
from momentprop.values import Independent, Joint
from momentprop.values.conversion import is_value
from momentprop.values.structures import leaves_of, mapped

LIMIT = 128
"""The most units of an item whose covariance is followed: each takes a backward pass."""

MEMORY = 2**31
"""The memory, in bytes, for the graph of a pass and its derivatives; a larger batch is run in pieces.

On a GPU it is a quarter of the free memory if that is more. Where gradients are tracked, the graph is kept whole.
"""

_FACTORIZED = "write `covariance=False` for AP2 as in the paper, which takes units as independent"


class CorrelationWarning(UserWarning):
    """Correlations are not followed, because an output has too many units."""


@dataclass(frozen=True)
class Wanted:
    """What `propagate` is asked for."""

    covariance: bool | None = None  # None: only where the outputs are few
    outputs: Any = None
    batch_dim: int | None = 0


def run_jointly(
    run: Run, kind: type[Independent], recording: Recording, corrections: Watcher | None, wanted: Wanted
) -> tuple[Any, dict[str, Any]]:
    """Run a model once, and return its output with `Joint` values, and what was recorded."""
    if torch.is_inference_mode_enabled():
        with torch.inference_mode(False), torch.no_grad():
            return run_jointly(run, kind, recording, corrections, wanted)
    _refuse_batch_statistics(run.model)
    return _Followed(run.settled(), kind, recording, corrections, wanted).run()


@dataclass
class _Passed:
    """One pass with the graph of its means."""

    output: Any
    recorded: dict[str, Any]
    following: Following
    bytes: int

    @property
    def means(self) -> list[Tensor]:
        """The means of the values among the outputs."""
        return [value.loc for value in _values(self.output)]


@dataclass
class _Output:
    """A value among the outputs, and the units of it that are followed."""

    place: int  # among the values
    dim: int | None  # along which its items lie
    chosen: Any = None

    def shown(self, loc: Tensor) -> Tensor:
        """Return the means of the units that are followed, in the shape that the user sees."""
        if self.chosen is None:
            return loc
        flat = self._flat(loc)[:, self.chosen]
        return flat[0] if self.dim is None else flat

    def rows(self, loc: Tensor) -> Tensor:
        """Return the means of the units that are followed, as (items, units)."""
        flat = self._flat(loc)
        return flat if self.chosen is None else flat[:, self.chosen].reshape(len(flat), -1)

    @property
    def batch_dim(self) -> int | None:
        """The dimension of the items in what the user sees."""
        return 0 if self.dim is not None and self.chosen is not None else self.dim

    def _flat(self, loc: Tensor) -> Tensor:
        return loc.reshape(1, -1) if self.dim is None else loc.movedim(self.dim, 0).flatten(1)


Group = Sequence[_Output]
"""Outputs whose covariance is computed at once, so that they know what they share."""


class _Followed:
    """One call of `propagate` that follows correlations."""

    def __init__(
        self, run: Run, kind: type[Independent], recording: Recording, corrections: Watcher | None, wanted: Wanted
    ) -> None:
        self.call, self.kind, self.recording, self.corrections, self.wanted = run, kind, recording, corrections, wanted
        self.items = None if wanted.batch_dim is None else run.items(wanted.batch_dim)
        self.tracked = torch.is_grad_enabled()

    def run(self) -> tuple[Any, dict[str, Any]]:
        """Run the model on all items at once, or in pieces where that takes too much memory."""
        bounded = not self.tracked and (self.items or 1) > 1
        try:
            passed = self._passed(self.call, self.recording, _bound(self.call) if bounded else None)
        except TooLarge:
            return self._in_pieces()
        births, gates = passed.following.births, passed.following.gates
        if self.tracked and not has_foreign_leaves(passed.means, births):
            self.tracked = gates.tracked = False
            gates.closed = True
        moving = [place for place, loc in enumerate(passed.means) if depends_on(loc, births)]
        groups = self._groups(passed.output, moving)
        if bounded and self._size(passed, groups) > _bound(self.call):
            return self._in_pieces()
        made: dict[int, Any] = {}
        for group in groups:
            flat = self._rows(group, passed.means)
            lazy = _Lazy(lambda flat=flat: self._once(passed.following, flat), lambda group=group: self._singly(group))
            made.update(self._joined(group, passed.means, lazy))
        return self._assembled(passed.output, made), self._let_go(passed.recorded)

    def _passed(self, run: Run, recording: Recording | None, bound: int | None = None) -> _Passed:
        following, counting = Following(self.tracked), Counting(bound)
        corrections = () if self.corrections is None else (self.corrections,)
        with run.by(self.kind, recording, Chain(*corrections, counting, following)) as once:
            output, recorded = once()
        return _Passed(output, recorded, following, counting.bytes)

    def _rows(self, group: Group, means: Sequence[Tensor]) -> Tensor:
        """Return the means of a group of outputs, as (items, units), with their graph."""
        with torch.enable_grad():
            return torch.cat([output.rows(means[output.place]) for output in group], 1)

    def _groups(self, output: Any, moving: Sequence[int]) -> list[Group]:
        """Return the outputs whose covariance is followed, and say so where there are too many units."""
        values = _values(output)
        if self.wanted.outputs is not None and not callable(self.wanted.outputs) and len(values) != 1:
            raise ValueError(
                f"outputs= chooses units of one output, but the model returns {len(values)}: give a function that "
                "takes what the model returns"
            )
        found = [self._described(place, values[place].loc) for place in moving]
        found = [output for output in found if self._is_small(output, values[output.place].loc)]
        apart: list[Group] = []
        for together in ([o for o in found if o.dim is not None], [o for o in found if o.dim is None]):
            units = sum(output.rows(values[output.place].loc).shape[1] for output in together)
            apart += [together] if together and units <= LIMIT else [[output] for output in together]
        return apart

    def _described(self, place: int, loc: Tensor) -> _Output:
        batch_dim, chosen = self.wanted.batch_dim, self.wanted.outputs
        fits = batch_dim is not None and -loc.ndim <= batch_dim < loc.ndim and loc.shape[batch_dim] == self.items
        if fits and self.call.first_tensor.ndim == 1 and loc.numel() <= LIMIT:
            fits = False  # a vector is one item
        dim = batch_dim % loc.ndim if fits and batch_dim is not None else None
        return _Output(place, dim, None if callable(chosen) else _as_index(chosen, loc))

    def _is_small(self, output: _Output, loc: Tensor) -> bool:
        units = output.rows(loc).shape[1]
        if units <= LIMIT:
            return True
        message = (
            f"an output of shape {tuple(loc.shape)} has {units} units an item, and correlations are followed for at "
            f"most {LIMIT}: choose some by `outputs=`, indices of units or a function of the output"
        )
        if self.wanted.covariance:
            raise ValueError(f"{message}; or {_FACTORIZED}")
        warnings.warn(
            f"{message}. Its variances are those of AP2, which takes units as independent and is often too small by a "
            "factor; `covariance=False` says that this is meant",
            CorrelationWarning,
            stacklevel=6,
        )
        return False

    def _size(self, passed: _Passed, groups: Sequence[Group]) -> int:
        """Return the bytes of a graph and of its derivatives."""
        units = max([sum(o.rows(passed.means[o.place]).shape[1] for o in group) for group in groups], default=0)
        births = passed.following.births.found
        return passed.bytes + units * sum(birth.shape.numel() for birth in births) * passed.means[0].itemsize

    def _once(self, following: Following, flat: Tensor) -> Followed:
        with torch.set_grad_enabled(self.tracked):
            found = followed(following.births, following.gates, flat, following.inputs)
        if self.tracked:
            return found
        return Followed(found.covariance.detach(), [cross.detach() for cross in found.crosses])

    def _in_pieces(self) -> tuple[Any, dict[str, Any]]:
        """Run AP2 on all items for the means, and follow correlations for some items at a time."""
        with self.call.by(self.kind, self.recording, self.corrections) as once:
            output, recorded = once()
        first = self._passed(self.call.piece(self._dim, 0, 1), None)
        moving = [place for place, loc in enumerate(first.means) if depends_on(loc, first.following.births)]
        groups = self._groups(output, moving)
        self._require_items(groups)
        size = max(1, _bound(self.call) // max(1, self._size(first, groups)))
        del first
        return self._pieces(output, groups, size), recorded

    def _pieces(self, output: Any, groups: Sequence[Group], size: int) -> Any:
        made: dict[int, Any] = {}
        means = [value.loc for value in _values(output)]
        if groups:
            for group, found in zip(groups, self._found(means, groups, size), strict=True):
                made.update(self._joined(group, means, _Lazy(lambda found=found: found)))
        return self._assembled(output, made)

    @property
    def _dim(self) -> int:
        assert self.wanted.batch_dim is not None
        return self.wanted.batch_dim

    def _require_items(self, groups: Sequence[Group]) -> None:
        if any(output.dim is None for group in groups for output in group):
            raise RuntimeError(
                "an output is not made of items along `batch_dim`, so that the batch cannot be run in pieces: give "
                f"fewer items at a time, or {_FACTORIZED}"
            )

    def _found(self, means: Sequence[Tensor], groups: Sequence[Group], size: int) -> list[Followed]:
        """Follow correlations for some items at a time."""
        assert self.items is not None
        found: list[list[Followed]] = [[] for _ in groups]
        with progress(self.items, "following correlations") as bar:
            for start in range(0, self.items, size):
                stop = min(start + size, self.items)
                passed = self._passed(self.call.piece(self._dim, start, stop), None)
                for group, results in zip(groups, found, strict=True):
                    flat = self._rows(group, passed.means)
                    _require_same(flat, self._rows(group, means)[start:stop])
                    results.append(self._once(passed.following, flat))
                bar.update(stop - start)
        return [_concatenated(results) for results in found]

    def _singly(self, group: Group) -> Followed:
        """Follow correlations item by item, where births belong to several items."""
        if group[0].dim is None or self.items is None:
            raise ItemsInteract
        with torch.set_grad_enabled(self.tracked):
            with self.call.by(self.kind, None, self.corrections) as once:
                means = [value.loc for value in _values(once()[0])]
            return self._found(means, [group], 1)[0]

    def _joined(self, group: Group, means: Sequence[Tensor], lazy: "_Lazy") -> Iterator[tuple[int, Joint]]:
        """Yield the places of the outputs of a group, and the `Joint` of each."""
        start = 0
        for output in group:
            loc = output.shown(means[output.place])
            units = output.rows(means[output.place]).shape[1]
            part = slice(start, start + units)
            start += units
            loc = loc if self.tracked else loc.detach()
            yield (
                output.place,
                Joint.lazy(
                    loc,
                    lambda part=part, dim=output.dim: _of(lazy().covariance[:, part, part], dim),
                    batch_dim=output.batch_dim,
                    cross=lambda which=0, part=part, dim=output.dim: _of(lazy().crosses[which][:, part], dim),
                ),
            )

    def _assembled(self, output: Any, made: dict[int, Any]) -> Any:
        """Return the output with `Joint` values, where there are any."""
        values = {id(value): place for place, value in enumerate(_values(output))}

        def joint(leaf: Any) -> Any:
            if id(leaf) in values and values[id(leaf)] in made:
                return made[values[id(leaf)]]
            return self._detached(leaf)

        return mapped(joint, output)

    def _let_go(self, tree: Any) -> Any:
        return mapped(self._detached, tree)

    def _detached(self, leaf: Any) -> Any:
        if self.tracked or not leaf.requires_grad:
            return leaf
        return leaf.each(Tensor.detach) if is_value(leaf) else leaf.detach()


class _Lazy:
    """What the backward passes give, computed when it is first asked for; the graph is let go afterwards."""

    def __init__(self, compute: Callable[[], Followed], otherwise: Callable[[], Followed] | None = None) -> None:
        self.compute: Callable[[], Followed] | None = compute
        self.otherwise = otherwise  # for births that belong to several items
        self.lock = threading.RLock()

    def __call__(self) -> Followed:
        with self.lock, torch.inference_mode(False):
            if self.compute is not None:
                try:
                    self.found = self.compute()
                except ItemsInteract:
                    if self.otherwise is None:
                        raise
                    self.found = self.otherwise()
                self.compute = self.otherwise = None
        return self.found


def _values(output: Any) -> list[Any]:
    return [leaf for leaf in leaves_of(output) if isinstance(leaf, Independent)]


def _of(matrices: Tensor, dim: int | None) -> Tensor:
    return matrices[0] if dim is None else matrices


def _concatenated(found: Sequence[Followed]) -> Followed:
    crosses = zip(*(each.crosses for each in found), strict=True)
    return Followed(torch.cat([each.covariance for each in found]), [torch.cat(each) for each in crosses])


def _as_index(chosen: Any, loc: Tensor) -> Any:
    if isinstance(chosen, Tensor):
        return chosen.to(loc.device).flatten() if chosen.dtype == torch.bool else chosen.to(loc.device)
    return chosen


def _bound(run: Run) -> int:
    first = run.first_tensor
    if first is not None and first.device.type == "cuda":
        return max(MEMORY, torch.cuda.mem_get_info(first.device)[0] // 4)
    return MEMORY


def _require_same(found: Tensor, wanted: Tensor) -> None:
    slack = 1e3 * torch.finfo(found.dtype).eps
    if not torch.allclose(found.detach(), wanted.detach(), rtol=slack, atol=slack * float(wanted.detach().abs().max())):
        raise RuntimeError(
            "the items of the batch interact, so that an item alone has another result: correlations cannot be "
            "followed item by item. Give one item at a time, `batch_dim=None` to take the whole batch as one item, or "
            + _FACTORIZED.removeprefix("write ")
        )


def _refuse_batch_statistics(model: Any) -> None:
    for module in model.modules() if isinstance(model, nn.Module) else ():
        if isinstance(module, BatchNorm) and (module.training or module.running_mean is None):
            raise ValueError(
                f"a {type(module).__name__} takes the statistics of the batch, so that its items interact and "
                f"correlations cannot be followed: write `model.eval()`; or {_FACTORIZED}"
            )
