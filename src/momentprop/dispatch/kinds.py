r"""What kind of map an operation is.

Each operation of the table has one kind, which can depend on flags and on which arguments are random.

| kind | what it does | what else the table knows |
|---|---|---|
| *moves* | every element of the result is an element of a value, or a constant | whether elements are copied |
| *linear* | sums with plain weights, $y = Wx + b$ | the action on squares, $(W \circ W)v$; the transpose, $W^\top g$ |
| *bilinear* | sums of products of two values | the two factors; with one of them plain the operation is linear |
| *elementwise* | one function of each element of one value | the kernel of its moments, and the plain function |
| *mixing* | a nonlinear function of several units | the dimensions it acts along |
| *noise* | draws something, unless switched off | whether it acts, and which units share one draw |
| *loss* | gives a plain tensor to minimize | |
| *composite* | made of other operations, which have their own kinds | |
| *plain* | asks about a value, or makes a tensor shaped like one; the result is not random | |

A type of value implements each kind once, by `@momentprop.rule(Kind.LINEAR, on=Type)`, and then runs all operations of
that kind. If it has no rule for *moves*, its rule for *linear* serves: a move is a sum of one term.
"""

import enum
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from momentprop.dispatch.call import Call
from momentprop.dispatch.operand import MissingRule, Operand
from momentprop.dispatch.place import where
from momentprop.dispatch.places import put_back


class Kind(enum.Enum):
    """The kinds of maps."""

    MOVES = "moves"
    LINEAR = "linear"
    BILINEAR = "bilinear"
    ELEMENTWISE = "elementwise"
    MIXING = "mixing"
    NOISE = "noise"
    LOSS = "loss"
    COMPOSITE = "composite"
    PLAIN = "plain"

    def __str__(self) -> str:
        return str(self.value)

    __hash__ = object.__hash__  # members are single objects, and every operation asks the table


Decide = Callable[[Call], Kind]
Squares = Callable[..., Tensor]
Transpose = Callable[[Call, Any], Any]


class Operation:
    """A row of the table: an operation and its kind."""

    along: str | None = None  # the parameter that names the dimensions it acts along
    default: Any = None  # of that parameter
    pointwise: Callable[..., Tensor] | None = None  # the plain function, if it relates only elements at one place
    channels: tuple[int, ...] = ()  # the dimensions of channels in the result, if the operation tells
    positional: bool = False  # an element's result depends on its place in the whole, not on its channel
    views: bool = False  # the result can share memory with the value
    updates: bool = False  # it writes to plain arguments, such as running statistics: a rule runs it once
    joint: bool = False  # the rule of a mixing operation handles dependent values
    decide: Decide | None = None  # the kind, where it depends on the arguments
    by_acting: Callable[[Call], bool] | None = None

    def __init__(self, name: str, kind: Kind, parameters: Sequence[str] = ("input",), **facts: Any) -> None:
        self.name = name
        self.kind = kind
        self.declared = False  # its kind is known; otherwise it counts as *mixing*
        self.inplace: int | None = None  # the position of torch's parameter `inplace`
        self.learn(parameters, **facts)

    def learn(self, parameters: Sequence[str] = ("input",), **facts: Any) -> None:
        """Store the parameters and other known facts."""
        self.positions = {parameter: position for position, parameter in enumerate(parameters)}
        for fact, known in facts.items():
            if not hasattr(self, fact):
                raise TypeError(f"a {type(self).__name__} row has no fact {fact!r}: see `momentprop.dispatch.kinds`")
            setattr(self, fact, known)

    @property
    def has_kinds(self) -> bool:
        """Whether the kind depends on the arguments."""
        return self.decide is not None

    @property
    def kind_of_one(self) -> Kind | None:
        """The kind of all calls with a single value, or None if it depends on other arguments."""
        return self.kind if self.decide is None else None

    def kind_of(self, call: Call) -> Kind:
        """Return the operation's kind for the arguments of a call."""
        return self.kind if self.decide is None else self.decide(call)

    def acts(self, call: Call) -> bool:
        """Return whether a call draws noise and so makes a plain tensor random."""
        return self.by_acting is not None and self.by_acting(call)

    def plain(self, *args: Any, **kwargs: Any) -> Any:
        """Apply torch's own function."""
        raise MissingRule(f"momentprop does not know the plain function of {self.name!r}, which it needs at {where()}")

    def dims(self, call: Call) -> list[int] | None:
        """Return the dimensions that a call acts along, counted from the first, or None if the table cannot tell."""
        if self.along is None:
            return None
        ndim = (call.values or call.args)[0].ndim  # for noise, this can be a plain tensor
        dim = call.given(self.along, call.kwargs.get("axis", self.default))
        if isinstance(dim, int):
            return [dim % max(ndim, 1)]
        if dim is None or isinstance(dim, Sequence):
            return [d % ndim for d in dim] if dim else list(range(ndim))
        return None


class Linear(Operation):
    r"""$y = Wx + b$, jointly in all values among the arguments.

    `summands` are the parameters that add a constant where they are plain, such as a layer's bias. By default, the
    action on squares is the operation itself without its constants, for weights of zero and one. The transpose of a
    move adds up at the elements' origins; a sum's is by default torch's derivative, for operations whose derivative
    consists of ordinary forward operations.
    """

    summands: Sequence[str] = ()
    numbers: Sequence[str] = ()  # parameters whose squares the action on squares takes
    by_squares: Squares | None = None
    by_transpose: Transpose | None = None
    diagonal: bool = False  # every element of the result depends on one element of each value
    written_out: Callable[..., Any] | None = None  # the operation in terms of others, which follow dependent values
    adds_up: bool = False  # all weights are equal: a sum or average along its dimensions
    # facts of operations that move elements only
    copies: bool | Callable[[Call], bool] = False
    converts: bool = False  # every element stays in its place

    def copying(self, call: Call) -> bool:
        """Return whether an element can occur more than once in the result."""
        return self.copies(call) if callable(self.copies) else self.copies

    def homogeneous(self, call: Call) -> Call:
        """Return the call without its constants: $Wx$."""
        if self.summands == ("*",):  # all arguments
            return Call(self, [_zero(argument) for argument in call.args], call.kwargs, call.values)
        plain = {}
        for name in self.summands:
            summand = call.given(name)
            if summand is not None and not isinstance(summand, Operand):
                plain[name] = None if name == "bias" else _zero(summand)  # for torch, no bias is a bias of zero
        return call.replaced(plain) if plain else call

    def squares(self, call: Call, *variances: Tensor) -> Any:
        r"""Return $(W \circ W)\,v$, the variance of the result for independent elements of variance $v$."""
        if self.by_squares is not None and (self.decide is None or self.kind_of(call) is not Kind.MOVES):
            return self.by_squares(call, *variances)
        call = self.homogeneous(call)
        numbers = {}
        for name in self.numbers:
            if call.given(name) is not None:
                numbers[name] = squared(call.given(name), variances[0])
        return (call.replaced(numbers) if numbers else call).on(*variances)

    def transpose(self, call: Call, gradient: Any) -> tuple[Tensor, ...]:
        r"""Return $W^\top g$, a tensor for each value: a linear function of the result as one of the values."""
        call = self.homogeneous(call)
        if self.by_transpose is not None:
            found = self.by_transpose(call, gradient)
            return found if isinstance(found, tuple) else (found,)
        if self.kind_of(call) is Kind.MOVES:
            return put_back(call, gradient)
        zeros = [torch.zeros_like(value.loc) for value in call.values]
        pull: Any = torch.func.vjp(call.on, *zeros)[1]
        return pull(gradient)  # type: ignore[no-any-return]


class Bilinear(Linear):
    r"""$y_k = \sum_{ij} c_{kij} x_i z_j$ with $c$ zero or one, plus summands.

    With one plain factor it is linear, and the action on squares takes the squares of that factor.
    """

    factors: tuple[str, str] = ("input", "other")
    itself: Callable[[Any], Any] | None = None  # the operation on a value and itself, in terms of others
    letters: Callable[[Call], tuple[str, str, str]] | None = None  # for factors and product, as in `einsum`

    is_layer: bool = False  # the factors are the first arguments, and nothing but a bias is added

    def learn(self, parameters: Sequence[str] = ("input",), **facts: Any) -> None:
        """Store the parameters and other known facts."""
        super().learn(parameters, **facts)
        leading = [self.positions.get(factor) for factor in self.factors] == [0, 1]
        self.is_layer = leading and not self.numbers and tuple(self.summands) in ((), ("bias",))

    @property
    def has_kinds(self) -> bool:
        """Whether the kind depends on the arguments."""
        return True

    @property
    def kind_of_one(self) -> Kind | None:
        """The kind of all calls with a single value: *linear*, unless the arguments decide."""
        return Kind.LINEAR if self.decide is None else None

    def kind_of(self, call: Call) -> Kind:
        """Return *bilinear* if both factors are random."""
        if self.decide is not None:
            return self.decide(call)
        if len(call.values) == 1:
            return Kind.LINEAR
        first, second = self.factors
        both = isinstance(call.given(first), Operand) and isinstance(call.given(second), Operand)
        return Kind.BILINEAR if both else Kind.LINEAR

    def homogeneous(self, call: Call) -> Call:
        """Return the call without its constants, which include the product if only a summand is random."""
        call = super().homogeneous(call)
        first, second = self.factors
        if isinstance(call.given(first), Operand) or isinstance(call.given(second), Operand):
            return call
        return call.replaced({first: _zero(call.given(first))})

    def squares(self, call: Call, *variances: Tensor) -> Any:
        r"""Return $(W \circ W)\,v$, where the weights are the plain factor."""
        if self.by_squares is not None:
            return self.by_squares(call, *variances)
        if self.is_layer and call.leads and not call.kwargs:
            args = [variances[0], squared(call.args[1], variances[0]), *call.args[2:]]
            if self.summands and len(args) > self.positions["bias"]:
                args[self.positions["bias"]] = None
            return self.plain(*args)
        first, second = self.factors
        x, y = call.given(first), call.given(second)
        if isinstance(x, Operand):
            return super().squares(call.replaced({second: squared(y, variances[0])}), *variances)
        if isinstance(y, Operand):
            return super().squares(call.replaced({first: squared(x, variances[0])}), *variances)
        return super().squares(call.replaced({first: torch.zeros_like(x)}), *variances)  # only a summand is random


class Elementwise(Operation):
    """One function of each element of one value; each family of values may have a kernel of its own."""

    def __init__(self, name: str, **facts: Any) -> None:
        super().__init__(name, Kind.ELEMENTWISE, **facts)
        self.makers: dict[type[Operand], Callable[..., Transform]] = {}
        self.once: set[type[Operand]] = set()  # the types whose makers read numbers alone, and not the value
        self.kept: dict[Hashable, Transform] = {}  # what these made, by the numbers

    def transform(self, call: Call, order: Sequence[type[Operand]]) -> "Transform":
        """Return the function, with the kernel of the first type that has one."""
        for on in order:
            if on in self.makers:
                if on not in self.once or is_dynamo_compiling():
                    return self.makers[on](*call.args, **call.kwargs)
                key = (self.name, on, *call.args[1:], *call.kwargs.items())
                return self.kept.get(key) or self._made(on, call, key)
        names = ", ".join(on.__name__ for on in order)
        raise MissingRule(f"no kernel of {self.name!r} for {names} at {where()}: add a rule with `@momentprop.rule`")

    def _made(self, on: type[Operand], call: Call, key: Hashable) -> "Transform":
        """Make a function, and keep it if all arguments but the value are numbers."""
        made = self.makers[on](*call.args, **call.kwargs)
        if all(isinstance(given, _NUMBERS) for given in (*call.args[1:], *call.kwargs.values())):
            if len(self.kept) >= _MOST_KEPT:
                self.kept.clear()
            made = self.kept[key] = made._replace(key=key)
        return made


_NUMBERS = (bool, int, float, str, type(None))
_MOST_KEPT = 256  # functions of an operation


class Transform(NamedTuple):
    r"""A function of each element: the kernel of its moments, and the plain function.

    `more` are further tensors that the kernel takes and gradients flow to, such as the slopes of a PReLU; `of_more` is
    the plain function of an element and these, which expressions use. Without a kernel the function is the identity.
    Functions with one `key` are the same.
    """

    kernel: Callable[..., Any] | None
    plain: Callable[[Tensor], Tensor] | None
    more: tuple[Tensor, ...] = ()
    fused: bool = True  # save the kernel's partial derivatives, not what autograd would save
    of_more: Callable[..., Tensor] | None = None
    key: Hashable = None


class Noise(Operation):
    """Draws something. It turns a plain tensor into a random value, if it `acts`."""

    by_sharing: Callable[[Call], Sequence[int]] | None = None
    drops_to: float = 0.0  # the value of a unit that a shared draw drops

    def acts(self, call: Call) -> bool:
        """Return whether it draws anything: always, except for operations like dropout in evaluation mode."""
        return self.by_acting is None or self.by_acting(call)

    def shared(self, call: Call) -> tuple[int, ...]:
        """Return the dimensions along which all units share one draw; none, if each unit has its own."""
        return () if self.by_sharing is None else tuple(self.by_sharing(call))


def squared(factor: Any, like: Tensor) -> Any:
    """Return the square of a plain factor, in a tensor's floating-point type unless its own is wider."""
    if isinstance(factor, Tensor):
        factor = factor if factor.dtype is like.dtype else factor.to(torch.promote_types(factor.dtype, like.dtype))
    elif isinstance(factor, int):
        factor = float(factor)
    return factor * factor


def _zero(summand: Any) -> Any:
    if isinstance(summand, Tensor):
        return torch.zeros_like(summand)
    if isinstance(summand, list | tuple):
        return [_zero(item) for item in summand]
    return 0 if isinstance(summand, int | float | complex) else summand
