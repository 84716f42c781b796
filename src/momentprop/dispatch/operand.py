"""What rules act on, and the error for a missing rule."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from momentprop.dispatch.memory import settled
from momentprop.dispatch.place import where
from momentprop.torch_compat.scripts import SCRIPTED

CONVERSIONS = frozenset("item numpy tolist".split())
"""Methods that turn a tensor into numbers; on a value, use them on a component."""

_COMPARISONS = frozenset("eq ge greater greater_equal gt le less less_equal lt ne not_equal".split())


class MissingRule(NotImplementedError):  # noqa: N818 (a public name of the project)
    """There is no rule for this operation on this type of value."""

    __module__ = "momentprop"  # where users find it


class Operand:
    """The base of `momentprop.values.Value`: the little that dispatching needs to know about a value."""

    components: ClassVar[tuple[str, ...]] = ()  # the names of its tensors
    needs_rules: ClassVar[bool] = True  # if false, an operation without a rule acts as on a tensor
    borrows: ClassVar[tuple[type["Operand"], ...]] = ()  # types whose rules serve where this type has none
    takes: ClassVar[tuple[type["Operand"], ...]] = ()  # types whose values become this type where they meet it
    follows: ClassVar[bool] = False  # the rules of this type handle dependent values
    memory: ClassVar[list[int] | None] = None  # set on views and their bases: a shared count of writes
    requires_grad: Any = False
    origin: ClassVar[Any] = None  # set on an elementwise function of another value: see `values.origin`
    elements: ClassVar[Any] = None  # set on moved values and their sources: see `dispatch.elements`
    aside: Any = None  # what a value knows besides its tensors
    remedy: ClassVar[str] = ""  # what helps an operation without a rule, besides a rule

    def each(self, function: Callable[[Tensor], Any]) -> Any:
        """Apply a function that moves or converts elements to every component."""
        raise NotImplementedError

    @classmethod
    def taken_in(cls, value: Any) -> Any:
        """Convert a value of a type that this one takes in to this type."""
        raise NotImplementedError

    @property
    def leading(self) -> Tensor:
        """The first component tensor."""
        return getattr(self, self.components[0])  # type: ignore[no-any-return]

    @property
    def parts(self) -> list[Tensor]:
        """The component tensors."""
        return [getattr(self, name) for name in self.components]

    def replace(self, parts: Sequence[Tensor], origin: Any = None) -> None:
        """Replace the component tensors; `origin` says what the new elements are a function of."""
        for name, part in zip(self.components, parts, strict=True):
            setattr(self, name, part)
        self.origin = origin  # type: ignore[misc]

    def share(self) -> list[int]:
        """Prepare the value for a view, and return the count of writes that it shares with its views."""
        if self.memory is None:
            self.memory = [0]  # type: ignore[misc]
            parts = settled(self.parts)
            if parts is not None:
                self.settle(parts)
        return self.memory

    def settle(self, parts: Sequence[Tensor]) -> None:
        """Replace the component tensors by copies of themselves."""
        self.replace(parts, self.origin)

    def copied(self) -> Any:
        """Return a copy in its own memory, which stands in for the value while it is overwritten."""
        return self.each(torch.clone)

    @classmethod
    def without_rule(cls, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Handle an operation without a rule for this type of value: say so, and what to do about it."""
        if isinstance(function, SCRIPTED):
            raise MissingRule(
                f"{cls.__name__} values cannot enter the scripted code at {where()}: "
                "use the module or function as it was before `torch.jit`"
            )
        if function.__name__.strip("_") in _COMPARISONS:
            raise MissingRule(
                f"the outcome of {function.__name__!r} on a random {cls.__name__} at {where()} is random, so that it "
                "can choose neither a branch nor elements: `torch.heaviside` gives its probability"
            )
        if function.__name__ in CONVERSIONS:
            raise MissingRule(f"{function.__name__!r} at {where()}: {cls.is_not_a_number(function.__name__)}")
        on = f"momentprop.{cls.__name__}" if cls.__module__.startswith("momentprop.") else cls.__name__
        raise MissingRule(
            f"no {cls.__name__} rule for {function.__name__!r} at {where()}: "
            f"add one with `@momentprop.rule({function.__name__!r}, on={on})`{cls.remedy}"
        )

    @classmethod
    def is_not_a_number(cls, conversion: str) -> str:
        """Say which component to convert instead of the value."""
        conversion = "detach().numpy" if conversion == "numpy" else conversion  # the weights may require gradients
        return (
            f"an element of the {cls.__name__} has a mean and a variance, so write `value.loc.{conversion}()` for the "
            f"mean, or `value.variance.{conversion}()` for the variance"
        )


def values_in(args: Iterable[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return the values among the arguments, including those in lists and tuples, in order."""
    found = []
    for argument in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(argument, Operand):
            found.append(argument)
        elif isinstance(argument, _LISTS):
            found += [item for item in argument if isinstance(item, Operand)]
    return found


_LISTS = (list, tuple)
