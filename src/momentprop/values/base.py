"""The base of all values: dataclasses and pytrees of tensors that torch operations accept in place of a tensor."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, Self

import torch
from torch import Tensor
from torch.distributions import Distribution

from momentprop.dispatch import MissingRule, Operand, dispatch, where
from momentprop.dispatch.dispatcher import enter
from momentprop.torch_compat import pytrees
from momentprop.torch_compat.functorch import is_wrapped
from momentprop.values import shown

_VALIDATE = [__debug__]


def set_default_validate_args(enabled: bool) -> None:
    """Switch on or off the checks that look at the data of new values (finite, non-negative variance)."""
    _VALIDATE[0] = enabled


class Value(Operand):
    """A random tensor, described by a few component tensors.

    Every subclass becomes a dataclass, because DDP looks for tensors in these, and a pytree, because `torch.func`,
    `torch.export` and `torch.compile` do. `torch.load(weights_only=True)` accepts it. The constructor checks its
    arguments; `of` builds a value of the same type from components that need no check.
    """

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(cls, init=False, repr=False, eq=False)
        names = (field.name for field in dataclasses.fields(cls))  # type: ignore[arg-type]
        cls.components = tuple(name for name in names if not isinstance(getattr(cls, name, None), property))
        inherited = super(cls, cls).components
        if "of" not in vars(cls) and inherited and inherited != cls.components:
            cls.of = classmethod(Value.of.__func__)  # type: ignore[assignment, attr-defined]
        pytrees.register(cls, cls.components, cls.of)
        torch.serialization.add_safe_globals([cls])

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Look up the rule for an operation; torch calls this when an operation gets a value."""
        return dispatch(function, args, kwargs or {})

    @classmethod
    def of(cls, *parts: Any) -> Self:
        """Return a value of this type with the given components, without checking them."""
        value = object.__new__(cls)
        for name, part in zip(cls.components, parts, strict=True):
            setattr(value, name, part)
        return value

    @classmethod
    def certain(cls, tensor: Tensor) -> Any:
        """Return a tensor as a certain value of this type, if the type has one."""
        raise MissingRule(
            f"a plain tensor cannot become a {cls.__name__} at {where()}: define `certain`, a class method of "
            f"{cls.__name__}"
        )

    def each(self, function: Callable[[Tensor], Any]) -> Any:
        """Apply a function that moves or converts elements to every component.

        If it returns several tensors, the result is that many values.
        """
        return self.assembled(*(function(getattr(self, name)) for name in self.components))

    @classmethod
    def assembled(cls, *parts: Any) -> Any:
        """Return a value with the given components, or several values if the components are tuples of tensors.

        Anything but a floating-point tensor, such as the lengths of packed sequences, is returned unchanged.
        """
        first = parts[0]
        if isinstance(first, Tensor):
            return cls.of(*parts) if first.is_floating_point() else first
        return tuple(cls.assembled(*together) for together in zip(*parts, strict=True))

    def sample(self, n: int | None = None, *, generator: torch.Generator | None = None) -> Tensor:
        """Draw a tensor of the value's shape, or `n` of them stacked along a new first dimension."""
        raise NotImplementedError

    shape = property(lambda self: self.leading.shape)
    dtype = property(lambda self: self.leading.dtype)
    device = property(lambda self: self.leading.device)
    ndim = property(lambda self: self.leading.ndim)
    layout = property(lambda self: self.leading.layout)
    is_cuda = property(lambda self: self.leading.is_cuda)
    is_cpu = property(lambda self: self.leading.is_cpu)
    is_mps = property(lambda self: self.leading.is_mps)
    is_xpu = property(lambda self: self.leading.is_xpu)
    itemsize = property(lambda self: self.leading.itemsize)
    is_nested = is_sparse = is_quantized = is_mkldnn = is_meta = False

    @property
    def requires_grad(self) -> bool:
        """Whether any component requires a gradient."""
        for name in self.components:  # noqa: SIM110 (every operation without gradients passes here)
            if getattr(self, name).requires_grad:
                return True
        return False

    @property
    def data(self) -> Any:
        """The value, detached from the autograd graph."""
        return self.detach()  # type: ignore[attr-defined]

    @property
    def mT(self) -> Any:  # noqa: N802 (torch's name)
        """The value with its last two dimensions swapped."""
        return self.transpose(-2, -1)  # type: ignore[attr-defined]

    @property
    def T(self) -> Any:  # noqa: N802 (torch's name)
        """The transpose of a matrix of random elements."""
        return self.t()  # type: ignore[attr-defined]

    def where(self, condition: Tensor, other: Any) -> Any:
        """Return the elements of the value where the condition holds, and those of `other` elsewhere."""
        return torch.where(condition, self, other)  # type: ignore[call-overload]

    def __len__(self) -> int:
        return len(self.leading)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.unbind(0))  # type: ignore[attr-defined]

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.components}  # a copy keeps neither views nor origins

    def __bool__(self) -> NoReturn:
        raise TypeError(
            f"control flow on a random {type(self).__name__} at {where()}: it has no single truth value, so decide by "
            "a plain tensor, such as `value.loc`"
        )

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> Any:
        return self.eq(other) if isinstance(other, _COMPARABLE) else NotImplemented  # type: ignore[attr-defined]

    def __ne__(self, other: object) -> Any:
        return self.ne(other) if isinstance(other, _COMPARABLE) else NotImplemented  # type: ignore[attr-defined]

    def __float__(self) -> float:
        raise TypeError(f"a {type(self).__name__} cannot become a float at {where()}: {self.is_not_a_number('item')}")

    def __int__(self) -> int:
        raise TypeError(f"a {type(self).__name__} cannot become an int at {where()}: {self.is_not_a_number('item')}")

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} is not one array: convert a component, such as `value.loc.detach().numpy()` "
            "or `value.variance.detach().numpy()`"
        )

    @property
    def _is_large(self) -> bool:
        """Whether the value prints as a summary: its shape, and the first elements and the range of its components."""
        first = self.leading
        return self._printed > shown.LARGE and type(first) in _PRINTED and may_look_at(first, True)

    @property
    def _printed(self) -> int:
        """The number of elements that decides whether the value prints as a summary."""
        return self.leading.numel()

    def to_dataframe(self, names: Sequence[str] | None = None) -> Any:
        """Return a pandas data frame with a row for each element; needs pandas.

        Its index is the position along each dimension, and the columns are the mean `loc`, the standard deviation, and
        the standard errors of an `Estimate`. `names` label the units along the last dimension.
        """
        wanted = ("loc", "stddev", "loc_error", "variance_error")
        return shown.frame({name: getattr(self, name) for name in wanted if hasattr(self, name)}, names)

    def _repr_html_(self) -> str:
        """Return what a notebook shows: a table of the first means and deviations."""
        title = f"{type(self).__name__}, shape {tuple(self.shape)}, {self.dtype}"
        if type(self.leading) not in _PRINTED or not may_look_at(self.leading, True):
            return title
        mean: Tensor = getattr(self, "loc", self.leading)
        if getattr(self, "is_lazy", False):
            return shown.table(f"{title}: means, with a covariance on request", mean)
        return shown.table(title, mean, getattr(self, "stddev", None))

    def __repr__(self) -> str:
        name = type(self).__name__
        if self._is_large:
            return shown.short(name, {part: getattr(self, part) for part in self.components})
        indent = " " * (len(name) + 1)
        parts = (
            f"{part}={getattr(self, part)!r}".replace("\n", "\n" + indent + " " * (len(part) + 1))
            for part in self.components
        )
        return f"{name}({f',{chr(10)}{indent}'.join(parts)})"


_PRINTED = (Tensor, torch.nn.Parameter)
_COMPARABLE = (Value, Tensor, bool, int, float)


def _attribute(name: str) -> Callable[..., Any]:
    def method(self: Value, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.leading, name)(*args, **kwargs)

    method.__name__ = name
    method.__doc__ = f"As `torch.Tensor.{name}`."
    return method


def _operation(name: str) -> Callable[..., Any]:
    function = getattr(Tensor, name)

    def method(self: Value, *args: Any, **kwargs: Any) -> Any:
        return enter(method, function, (self, *args), kwargs)

    method.__name__ = name
    method.of_tensor = function  # type: ignore[attr-defined]
    method.__doc__ = f"As `torch.Tensor.{name}`, using the rule for this type of value."
    return method


_OPERATORS = {
    f"__{prefix}{name}__" for name in "add sub mul truediv pow matmul".split() for prefix in ("", "r", "i")
} | {f"__{name}__" for name in "neg abs getitem setitem gt lt ge le".split()}

for _name in """size dim ndimension numel nelement stride storage_offset is_floating_point is_complex is_signed
    is_contiguous is_inference is_pinned element_size get_device""".split():
    setattr(Value, _name, _attribute(_name))
for _name in dir(Tensor):
    _is_operation = not _name.startswith("_") or _name in _OPERATORS
    if _is_operation and _name not in vars(Value) and callable(getattr(Tensor, _name)):
        setattr(Value, _name, _operation(_name))


def as_tensor(given: Any, name: str) -> Tensor:
    """Return the constructor argument `name` as a floating-point tensor, or raise a clear error."""
    if isinstance(given, Value):
        raise TypeError(f"{name} must be a tensor, but is already a {type(given).__name__}: give its mean, `.loc`")
    if isinstance(given, Distribution):
        raise TypeError(
            f"{name} must be a tensor, but is a torch {type(given).__name__}: write `from_distribution(distribution)`"
        )
    tensor = given if isinstance(given, Tensor) else torch.tensor(given)
    if not tensor.is_floating_point():
        raise TypeError(f"{name} must be floating-point, but is {tensor.dtype}: write `{name}.float()`")
    return tensor


def may_look_at(tensor: Tensor, validate_args: bool | None) -> bool:
    """Return whether a check may read the data: not while tracing, recording a graph, or under `torch.func`."""
    if not (_VALIDATE[0] if validate_args is None else validate_args) or torch.compiler.is_compiling():
        return False
    if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    return tensor.device.type != "meta" and not is_wrapped(tensor)
