"""The mode that sees the operations of a pass with draws in one batch."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from momentprop.dispatch import Call
from momentprop.dispatch.rule_table import find, made_function, operation_named
from momentprop.dispatch.spelling import spelled
from momentprop.folding.step import Function, How, Step
from momentprop.folding.ways import noise, noisy, pointwise, sized, ways
from momentprop.randomness import DRAWS, are_same, torch_states
from momentprop.values import Sample
from momentprop.values.folded import Fold, Folded


class Folding(TorchFunctionMode):
    """Runs operations on draws in one batch, and refuses those that might mix them."""

    def __init__(self, fold: Fold) -> None:
        super().__init__()
        self.fold = fold
        self.ways: dict[str, How] = {}  # of the operations met so far

    def __torch_function__(
        self,
        function: Function,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Torch calls this for every operation inside the context."""
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        if name == "__get__":
            return function(*args, **kwargs)
        function = getattr(function, "of_tensor", function)  # of a value's method
        op, _, in_place = spelled(name)
        step = Step(self.fold, op, function, args, kwargs)
        try:
            return self._run(step, in_place) if step.values else self._on_plain(step)
        except Exception:
            self.fold.refused = True
            raise

    def _run(self, step: Step, in_place: bool) -> Any:
        how = self.ways.get(step.op) or self._way(step.op)
        if "out" in step.kwargs:
            self.fold.refuse(step.op)
        for value in step.values:
            if type(value) is not Folded or value.fold is not self.fold:
                self.fold.refuse(step.op)
        if in_place or step.kwargs.get("inplace"):
            target = step.args[0]
            step.require(how in _WRITES and isinstance(target, Folded) and not target.shared)
            how(step)
            return target
        result = how(step)
        if how is noisy:
            with self:
                return step.given("function", 1)(self.fold.value(result))
        return self._wrapped(step, result)

    def _way(self, op: str) -> How:
        """Return how to run an operation; refuse it if someone else has defined a rule for draws."""
        how, rule = ways().get(op), find(op, Sample)
        if how is None or not (rule is None or rule.__module__.startswith("momentprop.")):
            self.fold.refuse(op)
        self.ways[op] = how
        return how

    def _on_plain(self, step: Step) -> Any:
        """Apply an operation without a draw among its arguments; noise turns the first one into draws."""
        op, args, kwargs = step.op, step.args, step.kwargs
        if op in _SIZED:
            return self.fold.value(sized(step))
        operation = operation_named(op)
        acts = operation.acts(Call(operation, args, kwargs, ()))
        if not acts and op not in DRAWS and made_function(op) is None:
            before = torch_states()
            result = step.function(*args, **kwargs)
            step.require(are_same(before, torch_states()))  # it could draw inside, like attention: once for all draws
            return result
        writes = kwargs.get("inplace") or step.function.__name__.endswith("_")
        step.require(len(args) > 0 and type(args[0]) is Tensor and args[0].is_floating_point() and not writes)
        return self._run(Step(self.fold, op, step.function, [self.fold.lifted(args[0]), *args[1:]], kwargs), False)

    def _wrapped(self, step: Step, result: Any) -> Any:
        """Return a result's tensors as draws; mark a view and its base."""
        if isinstance(result, Tensor):
            for value in step.values:
                if result is value.folded:
                    return value
            made = self.fold.value(result)
            if step.op in _VIEWS:
                made.shared = step.values[0].shared = True
            return made
        step.require(isinstance(result, list | tuple))
        items = [self._wrapped(step, item) for item in result]
        return type(result)(items) if type(result) in (list, tuple) else result._make(items)


_SIZED = ("rand", "randn")
_VIEWS = frozenset(
    """flatten ravel reshape view unflatten squeeze unsqueeze select narrow chunk split unbind permute transpose expand
    getitem detach contiguous to float double half bfloat16 type alias positive""".split()
)
"""Operations whose result can lie in their argument's memory."""

_WRITES = (pointwise, noise)
