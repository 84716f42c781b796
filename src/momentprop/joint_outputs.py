"""Runs a model by AP2 and follows correlations: outputs are `Joint` values that know their covariance on request."""

import contextlib
import functools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from momentprop.correlation.adjoint import Followed, brought, followed, of_pieces
from momentprop.correlation.following import Following
from momentprop.correlation.graph import Bounds, Counting, TooLarge, depends_on, has_foreign_leaves
from momentprop.correlation.items import ItemsInteract
from momentprop.correlation.outputs import Group, Lazy, Output, as_index, joined, logits_of, means_of, rows, values_of
from momentprop.correlation.probes import Probing
from momentprop.correlation.refusals import FACTORIZED, refuse_batch_statistics, require_alike, require_same
from momentprop.correlation.shielded import Shielded
from momentprop.dispatch.context import Chain, Watcher
from momentprop.kernels.kept import keeping
from momentprop.recording import Recording
from momentprop.running import Run
from momentprop.sampling import progress
from momentprop.torch_compat import pytrees as pytree
from momentprop.torch_compat.dynamo import eagerly
from momentprop.values import Categorical, Independent, Joint, Value
from momentprop.values.conversion import is_value
from momentprop.values.probed import as_normal, unprobed
from momentprop.values.sources import Sources
from momentprop.values.structures import mapped

LIMIT = 128
"""The most units per item whose covariance is followed: each takes a backward pass."""

MEMORY = 2**31
"""The memory, in bytes, for the graph of a pass and its derivatives; a larger batch runs in pieces.

The need is estimated from the results of all operations. On a GPU the limit is a quarter of the free memory if that is
more. If gradients are tracked, the graph is kept whole.
"""

KEPT = 2**30
"""The most bytes for graphs inside kernels, such as attention's; larger ones are recomputed in each backward pass."""

PIECE = 2**24
"""The most bytes, on a CPU, for the probes of one result.

Larger probes leave the cache and take fresh memory every time, so such a batch runs in pieces.
"""


class CorrelationWarning(UserWarning):
    """Correlations are not followed, because an output has too many units."""

    __module__ = "momentprop"  # where users find it


@dataclass(frozen=True)
class Wanted:
    """What `propagate` is asked for."""

    covariance: bool | None = None  # None: only where the outputs are few
    outputs: Any = None
    batch_dim: int | None = 0
    watched: type[Following] = Following
    probes: int = 0


@dataclass
class _Passed:
    """One pass with the graph of its means."""

    output: Any
    recorded: dict[str, Any]
    following: Following
    counted: Counting

    @property
    def means(self) -> list[Tensor]:
        """The means of the values among the outputs."""
        return means_of(self.output)

    def variances(self, group: Group) -> Tensor | None:
        """Return AP2's variances for a group of outputs, as (items, units)."""
        found = [getattr(value, "variance", None) for value in values_of(self.output)]
        return None if None in [found[output.place] for output in group] else rows(group, found)  # type: ignore[arg-type]

    @property
    def moving(self) -> list[int]:
        """The positions of the values that depend on any noise that was born."""
        return [place for place, loc in enumerate(self.means) if depends_on(loc, self.following.births)]


class JointRun:
    """One call of `propagate` that follows correlations."""

    def __init__(
        self, run: Run, kind: type[Value], recording: Recording, corrections: Watcher | None, wanted: Wanted
    ) -> None:
        refuse_batch_statistics(run.model)
        self.call, self.kind, self.recording, self.corrections, self.wanted = run, kind, recording, corrections, wanted
        self.tracked = torch.is_grad_enabled()

    def run(self) -> tuple[Any, dict[str, Any]]:
        """Run the model, and return its output with `Joint` values, and what was recorded."""
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(False), torch.no_grad():
                return self.run()
        self.call = self.call.settled()
        self.items = None if self.wanted.batch_dim is None else self.call.items(self.wanted.batch_dim)
        require_alike(self._joints, self.wanted.batch_dim)
        if self.tracked or (self.items or 1) == 1:
            return self._at_once()
        try:
            return self._at_once(_bounds(self.call))
        except TooLarge:
            return self._in_pieces()

    def _at_once(self, bounds: Bounds | None = None) -> tuple[Any, dict[str, Any]]:
        """Run the whole batch in one pass, if its tensors are not too large."""
        passed = self._passed(self.call, self.recording, bounds)
        births, gates = passed.following.births, passed.following.gates
        if self.tracked and not has_foreign_leaves(passed.means, births):
            self.tracked = gates.tracked = False
            gates.closed = True
        groups = self._groups(passed.output, passed.moving)
        if bounds is not None and self._size(passed, groups) > bounds.graph:
            raise TooLarge
        made: dict[int, Any] = {}
        for group in groups:
            flat = rows(group, passed.means)
            singly = functools.partial(self._found, flat.detach(), group, 1)
            lazy = Lazy(functools.partial(self._followed, passed.following, flat, passed.variances(group)), singly)
            if passed.following.within and len(flat) > 1:
                lazy()  # it may have to run the model again, as it is now
            sources = brought(births.found, len(flat))
            made.update(joined(group, passed.means, lazy, sources, self.tracked))
        return self._assembled(passed.output, made, passed.moving), mapped(self._detached, passed.recorded)

    def _passed(
        self, run: Run, recording: Recording | None = None, bounds: Bounds | None = None, first: int = 0
    ) -> _Passed:
        following, counting = self.wanted.watched(self.tracked), Counting(bounds)
        corrections = self._corrections(following, first)
        shielded = (Shielded(following, *corrections),) if corrections else ()
        # inside compiled code, births would not be seen, and derivatives would not know the gates
        graphs = contextlib.nullcontext() if self.tracked else keeping(KEPT)
        with eagerly(), graphs, run.by(self.kind, recording, Chain(counting, following, *shielded)) as once:
            output, recorded = once()
        return _Passed(mapped(as_normal, output), recorded, following, counting)

    def _corrections(self, following: Following | None = None, first: int = 0, probed: bool = True) -> list[Watcher]:
        """Return the watchers that correct AP2 in a pass that starts at some item."""
        corrections = [] if self.corrections is None else [self.corrections]
        if self.wanted.probes and probed:
            seed = self.call.seed or 0
            corrections.append(Probing(self.wanted.probes, seed, self.wanted.batch_dim, following, first))
        return corrections

    def _followed(self, following: Following, flat: Tensor, variances: Tensor | None) -> Followed:
        with torch.set_grad_enabled(self.tracked):
            return followed(following.births, following.gates, flat, following.inputs, variances)

    # Pieces of a batch

    def _in_pieces(self) -> tuple[Any, dict[str, Any]]:
        """Run AP2 on all items for its output, and follow correlations for some items at a time.

        Probes travel only in the pieces, unless something is recorded, or not all outputs are followed.
        """
        probed, bounds = not self.wanted.probes or bool(self.recording.paths), _bounds(self.call)
        output, recorded = self._uncorrelated(self.call, self.recording, probed)
        first = self._passed(self._piece(0, 1))
        moving, means = first.moving, means_of(output)
        groups = self._groups(output, moving)
        if any(output.dim is None for group in groups for output in group):
            return self._whole(bounds.graph)
        if not probed and sum(map(len, groups)) < len(means):
            probed, (output, recorded) = True, self._uncorrelated(self.call, self.recording, True)
            means = means_of(output)
        by_graph = bounds.graph // max(1, self._size(first, groups))
        size = max(1, min(by_graph, bounds.probes // max(1, first.counted.probes)))
        del first
        made: dict[int, Any] = {}
        for group in groups:
            flat = rows(group, means)
            lazy = Lazy(*(functools.partial(self._found, flat, group, each, probed) for each in (size, 1)))
            lazy()  # now, as the model is
            for place, mean in zip([output.place for output in group], lazy().means, strict=True):
                means[place] = mean
            made.update(joined(group, means, lazy, self._brought, self.tracked))
        return self._assembled(output, made, moving), recorded

    def _whole(self, bound: int) -> tuple[Any, dict[str, Any]]:
        """Run the whole batch in one pass although its tensors are large, because its outputs have no items."""
        try:
            return self._at_once(Bounds(bound))
        except TooLarge as error:
            raise MemoryError(
                "correlations take too much memory in this batch, which cannot run in pieces, because an output has no "
                f"items along dimension {self.wanted.batch_dim}: give fewer items at a time, or write {FACTORIZED}"
            ) from error

    def _uncorrelated(self, run: Run, recording: Recording | None, probed: bool) -> tuple[Any, dict[str, Any]]:
        """Run AP2 without births, perhaps with probes."""
        corrections = self._corrections(probed=probed)
        with run.by(self.kind if probed else unprobed(self.kind), recording, Chain(*corrections)) as once:
            output, recorded = once()
        return mapped(as_normal, output), recorded

    def _piece(self, start: int, stop: int) -> Run:
        assert self.wanted.batch_dim is not None
        return self.call.piece(self.wanted.batch_dim, start, stop)

    def _found(self, wanted: Tensor, group: Group, size: int, probed: bool = True) -> Followed:
        """Follow correlations for some items at a time, and check that their means equal the batch's.

        If the batch was not `probed`, each piece also runs without probes, for this comparison.
        """
        if group[0].dim is None or self.items is None:
            raise ItemsInteract
        found, means = [], []
        with torch.set_grad_enabled(self.tracked), progress(self.items, "following correlations") as bar:
            for start in range(0, self.items, size):
                stop = min(start + size, self.items)
                piece = self._piece(start, stop)
                passed = self._passed(piece, first=start)
                flat = rows(group, passed.means)
                same = passed.means if probed else means_of(self._uncorrelated(piece, None, False)[0])
                require_same(rows(group, same), wanted[start:stop])
                found.append(self._followed(passed.following, flat, passed.variances(group)))
                means.append([passed.means[output.place] for output in group])
                bar.update(stop - start)
        return of_pieces(found, self._brought, means, [output.dim or 0 for output in group])

    @property
    def _brought(self) -> Sources:
        """The sources that the inputs bring along, as numbered for all items."""
        return brought(self._joints, self.items or 1)

    @property
    def _joints(self) -> list[Joint]:
        leaves = pytree.tree_leaves((self.call.args, self.call.kwargs), is_leaf=is_value)
        return [leaf for leaf in leaves if isinstance(leaf, Joint)]

    def _size(self, passed: _Passed, groups: Sequence[Group]) -> int:
        """Return the bytes of a graph and of its derivatives."""
        units = max((rows(group, passed.means).shape[1] for group in groups), default=0)
        births = passed.following.births.found
        return passed.counted.bytes + units * sum(birth.shape.numel() for birth in births) * passed.means[0].itemsize

    # Outputs

    def _groups(self, output: Any, moving: Sequence[int]) -> list[Group]:
        """Return the outputs whose covariance is followed; warn or refuse if there are too many units."""
        means, chosen = means_of(output), self.wanted.outputs
        if chosen is not None and not callable(chosen) and len(means) != 1:
            raise ValueError(
                f"`outputs=` chooses units of one output, but the model returns {len(means)}: give a function of what "
                "the model returns, such as `outputs=lambda y: y[0]`"
            )
        found: list[Output] = []
        for place in moving:
            described = self._described(place, means[place])
            if self._is_small(described, means[place]):
                found.append(described)
        groups: list[Group] = []
        for together in ([o for o in found if o.dim is not None], [o for o in found if o.dim is None]):
            units = sum(output.rows(means[output.place]).shape[1] for output in together)
            groups += [together] if together and units <= LIMIT else [[output] for output in together]
        return groups

    def _described(self, place: int, loc: Tensor) -> Output:
        batch_dim, chosen = self.wanted.batch_dim, self.wanted.outputs
        dim = None
        if batch_dim is not None and -loc.ndim <= batch_dim < loc.ndim and loc.shape[batch_dim] == self.items:
            is_vector = self.call.first_tensor.ndim == 1 and loc.numel() <= LIMIT
            dim = None if is_vector else batch_dim % loc.ndim
        return Output(place, dim, None if callable(chosen) else as_index(chosen, loc))

    def _is_small(self, output: Output, loc: Tensor) -> bool:
        units = output.rows(loc).shape[1]
        if units <= LIMIT:
            return True
        message = (
            f"an output of shape {tuple(loc.shape)} has {units} units per item, but correlations are followed for at "
            f"most {LIMIT}: choose units with `outputs=` (their indices, or a function of the output)"
        )
        if self.wanted.covariance or not issubclass(self.kind, Independent):
            raise ValueError(f"{message}, or write {FACTORIZED}")
        warnings.warn(
            f"{message}. Until then its variances are those of AP2, which treats units as independent, and are often "
            "far too small: write `covariance=False` if that is what you want",
            CorrelationWarning,
            stacklevel=7,
        )
        return False

    def _assembled(self, output: Any, made: dict[int, Any], moving: Sequence[int]) -> Any:
        """Return the output with `Joint` values; one that depends on no births has only its own noise, if any."""
        joints: dict[int, Any] = {id(value): made.get(place) for place, value in enumerate(values_of(output))}
        for place, value in enumerate(values_of(output)):
            if place not in moving:
                described = self._described(place, value.loc)
                variance = value.variance if isinstance(value, Independent) else torch.zeros_like(value.loc)
                own, loc = described.shown(variance), self._detached(described.shown(value.loc))
                joints[id(value)] = Joint(loc, own, batch_dim=described.batch_dim, validate_args=False)

        def joint(leaf: Any) -> Any:
            found = joints.get(id(logits_of(leaf)))
            if found is None:
                return self._detached(leaf)
            return torch.log_softmax(found, -1) if isinstance(leaf, Categorical) else found

        return mapped(joint, output)

    def _detached(self, leaf: Any) -> Any:
        if self.tracked or not leaf.requires_grad:
            return leaf
        return leaf.each(Tensor.detach) if is_value(leaf) else leaf.detach()


def _bounds(run: Run) -> Bounds:
    first = run.first_tensor
    if first is not None and first.device.type == "cuda":
        return Bounds(max(MEMORY, torch.cuda.mem_get_info(first.device)[0] // 4))
    return Bounds(MEMORY, PIECE)
