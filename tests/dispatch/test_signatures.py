"""Every rule takes torch's own parameters, by their names and in their order, however torch spells the operation.

Torch's signatures are those of its Python functions and of its native operators, which also stand behind the methods of
tensors. A call with a stand-in for every argument goes the way of `dispatch`, and each must arrive where it belongs.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import momentprop
from momentprop.dispatch import Kind, MissingRule
from momentprop.dispatch.kinds import Elementwise, Operation
from momentprop.dispatch.natives import _RENAMED, in_our_words
from momentprop.dispatch.rule_table import _RULES, operations
from momentprop.dispatch.spelling import _SYNONYMS
from momentprop.values import Normal, Statistics


class Signature(NamedTuple):
    """One form of one of torch's functions."""

    function: Callable[..., Any]
    where: str
    positional: tuple[str, ...]
    keywords: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.where}({', '.join((*self.positional, '*', *self.keywords))})"


OWN = {each.__name__ for each in vars(momentprop.functional).values() if callable(each)}  # operations torch lacks


def _spellings(op: str) -> Iterator[tuple[str, Callable[..., Any], bool]]:
    """The functions of torch that reach an operation: where each is, and whether it is native."""
    for name in (op, *(synonym for synonym, meant in _SYNONYMS.items() if meant == op)):
        places = [("F", F, name), ("torch", torch, name), ("Tensor", Tensor, name)]
        for package in ("special", "linalg"):
            if name.startswith(f"{package}_"):
                places.append((f"torch.{package}", getattr(torch, package), name.removeprefix(f"{package}_")))
        for title, holder, attribute in places:
            found = getattr(holder, attribute, None)
            if callable(found) and not isinstance(found, type | torch.dtype):
                yield f"{title}.{attribute}", found, not inspect.isfunction(found)


def _native(name: str) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """The parameters of a native operator in all its forms that take a tensor first."""
    for schema in torch._C._jit_get_schemas_for_operator(f"aten::{name}"):
        arguments = schema.arguments
        if not arguments or "Tensor" not in str(arguments[0].type) or any(each.is_out for each in arguments):
            continue
        if any("Dict" in str(each.type) or each.name == "reverse" for each in arguments):  # of scripts
            continue
        if "str" in str([each.type for each in arguments if each.name == "dim"]):  # a dimension by its name
            continue
        names = ["input" if each.name == "self" else each.name for each in arguments]
        kept = [each.kwarg_only for each in arguments]
        yield (
            tuple(name for name, keyword in zip(names, kept, strict=True) if not keyword),
            tuple(name for name, keyword in zip(names, kept, strict=True) if keyword),
        )


def _python(function: Callable[..., Any]) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    parameters = inspect.signature(function).parameters.values()
    if any(each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD) for each in parameters):
        return
    yield (
        tuple(each.name for each in parameters if each.kind is not each.KEYWORD_ONLY),
        tuple(each.name for each in parameters if each.kind is each.KEYWORD_ONLY),
    )


def signatures(op: str) -> list[Signature]:
    """All forms of all functions of torch that reach an operation."""
    found = []
    for where, function, is_native in _spellings(op):
        forms = _native(getattr(function, "__name__", op)) if is_native else _python(function)
        for positional, keywords in forms:
            if positional[:1] == ("self",):
                positional = ("input", *positional[1:])
            if where == "Tensor.where":  # `dispatch` itself puts the condition first
                continue
            found.append(Signature(function, where, positional, keywords))
    return found


def takers(operation: Operation) -> list[Callable[..., Any]]:
    """What is called with the arguments, beside torch's own function: written rules and the makers of transforms."""
    written = [
        function
        for (op, on), function in _RULES.items()
        if op == operation.name and not isinstance(op, Kind) and not issubclass(on, Statistics)
    ]
    made = list(operation.makers.values()) if isinstance(operation, Elementwise) else []
    return written + made


TOLD_APART = {  # (operation, torch's parameter) -> the rule's parameter that takes it too, and tells it apart
    ("log_softmax", "dtype"): "_stacklevel",
    ("softmax", "dtype"): "_stacklevel",
    ("max", "other"): "dim",
    ("min", "other"): "dim",
    ("norm", "dtype"): "out",
    ("scatter", "value"): "src",
    ("std", "unbiased"): "dim",
    ("std_mean", "unbiased"): "dim",
    ("var", "unbiased"): "dim",
    ("var_mean", "unbiased"): "dim",
    ("unfold", "dimension"): "kernel_size",
    ("unfold", "size"): "dilation",
    ("unfold", "step"): "padding",
}
REFUSED = {  # what has no rule, and how the refusal names it
    ("baddbmm", "out_dtype"): "out_dtype|too many positional",
    ("bmm", "out_dtype"): "out_dtype|too many positional",
    ("embedding_bag", "weight"): "write `torch.nn.functional.embedding_bag`",
    ("adaptive_max_pool1d", "output_size"): "write `torch.nn.functional.adaptive_max_pool1d`",
}
ANYTHING = (
    "to",  # its forms are for torch to tell apart
    "multi_head_attention_forward",  # is opened
    *("gru", "lstm", "rnn_relu", "rnn_tanh"),  # by position only, as the layers call them: a keyword is refused by name
)
INTERNAL = ("_nested_tensor_from_mask_left_aligned",)


def _takes_values(signature: Signature) -> bool:
    """Whether a form can be given a value: not that of packed sequences, nor a form for integers."""
    return signature.positional[0] not in ("data", "repeats")


CASES = [
    pytest.param(operation, signature, id=f"{operation.name}-{signature}")
    for operation in operations()
    if operation.name not in (*OWN, *ANYTHING, *INTERNAL)
    for signature in signatures(operation.name)
    if _takes_values(signature)
]


def calls(signature: Signature) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Calls of a function with the name of each parameter for its argument: by position, and by keyword."""
    keywords = {name: name for name in signature.keywords if name not in ("out", "generator")}
    positional = tuple(name for name in signature.positional if name not in ("out", "generator"))
    yield positional, keywords
    yield positional[:1], {name: name for name in positional[1:]} | keywords
    for alias, name in {"axis": "dim", "keepdims": "keepdim"}.items():
        if name in signature.positional and not inspect.isfunction(signature.function):
            yield positional[:1], {alias if each == name else each: each for each in positional[1:]} | keywords


@pytest.mark.parametrize(("operation", "signature"), CASES)
def test_every_argument_arrives_at_its_parameter(operation: Operation, signature: Signature) -> None:
    refusal = next((said for (op, name), said in REFUSED.items() if _is_of(op, name, operation, signature)), None)
    for args, kwargs in calls(signature):
        if refusal is not None:
            with pytest.raises((MissingRule, TypeError), match=refusal):
                _check(operation, *in_our_words(signature.function, operation, args, kwargs))
            continue
        _check(operation, *in_our_words(signature.function, operation, args, kwargs))


def _is_of(op: str, name: str, operation: Operation, signature: Signature) -> bool:
    native = not inspect.isfunction(signature.function)
    return op == operation.name and native and name in signature.positional


def _check(operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    at = {position: name for name, position in operation.positions.items()}
    for place, argument in enumerate(args):
        if place in at and at[place] not in ("args", "kwargs"):
            _same(operation, at[place], argument)
    for name, argument in kwargs.items():
        if name in operation.positions:
            _same(operation, name, argument)
    for taker in takers(operation):
        for name, argument in inspect.signature(taker).bind(*args, **kwargs).arguments.items():
            if isinstance(argument, str):
                _same(operation, name, argument)
    if not takers(operation):  # torch's own function takes them
        forms = [form for form in signatures(operation.name) if operation.name in form.where]
        known = {name for form in forms for name in (*form.positional, *form.keywords)} | set(operation.positions)
        assert set(kwargs) <= known


def _same(operation: Operation, parameter: str, argument: str) -> None:
    renamed = _RENAMED.get(operation.name, {}).get(argument)
    allowed = (argument, renamed, TOLD_APART.get((operation.name, argument)))
    assert parameter in allowed, f"{argument!r} arrived as {parameter!r}"


def test_the_table_of_exceptions_is_used() -> None:
    found = {(case.values[0].name, name) for case in CASES for name in case.values[1].positional}  # type: ignore[attr-defined]
    unused = {key for key in (*TOLD_APART, *REFUSED) if key not in found}
    assert not unused


def test_torchs_other_words_mean_the_same() -> None:
    x, y = Normal(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), 0.1), torch.ones(2, 2)
    weight, bias, mean, var = torch.tensor([2.0, 1.0]), torch.ones(2), torch.zeros(2), torch.ones(2)
    table = Normal(torch.randn(5, 2), 0.1)
    index, above = torch.tensor([1, 3]), torch.tensor([True, False])
    pairs = {
        "amax": (torch.amax(x, axis=1, keepdims=True), x.amax(1, True)),
        "softmax": (torch.softmax(x, axis=0), x.softmax(0)),
        "var": (torch.var(x, axis=0), torch.var(x, 0)),
        "add": (torch.add(x1=x, x2=y), x + y),  # type: ignore[call-overload]
        "norm": (torch.linalg.norm(input=x, axis=0), torch.linalg.norm(x, None, 0)),  # type: ignore[call-overload]
        "method of norm": (x.norm(2, 0, False, torch.float64), x.norm(2, 0, dtype=torch.float64)),  # type: ignore[attr-defined]
        "dropout": (torch.dropout(x, p=0.5, train=True), F.dropout(x, 0.5)),  # type: ignore[arg-type]
        "batch_norm": (
            torch.batch_norm(x, weight, bias, mean, var, False, 0.1, 1e-5, True),  # type: ignore[arg-type]
            F.batch_norm(x, mean, var, weight, bias),  # type: ignore[arg-type]
        ),
        "layer_norm": (
            torch.layer_norm(x, (2,), weight, bias, 1e-5, False),  # type: ignore[arg-type]
            F.layer_norm(x, (2,), weight, bias),  # type: ignore[arg-type]
        ),
        "embedding": (torch.embedding(table, index), F.embedding(index, table)),  # type: ignore[arg-type]
        "swapaxes": (torch.swapaxes(x, axis0=0, axis1=1), x.transpose(0, 1)),  # type: ignore[arg-type, attr-defined]
        "split": (torch.split(tensor=x, split_size_or_sections=1)[0], x[:1]),  # type: ignore[arg-type, index]
        "where": (y.where(above, x), torch.where(above, y, x)),  # type: ignore[arg-type, call-overload]
        "where by name": (y.where(condition=above, other=x), torch.where(above, y, x)),  # type: ignore[arg-type, call-overload]
    }
    for name, (found, expected) in pairs.items():
        assert torch.equal(found.loc, expected.loc), name
        assert torch.equal(found.variance, expected.variance), name
    target = torch.tensor([[1.0, -1.0], [1.0, 1.0]])
    native = torch.hinge_embedding_loss(x, target, 0.5, 2)  # type: ignore[arg-type]
    assert torch.equal(native, F.hinge_embedding_loss(x, target, 0.5, reduction="sum"))  # type: ignore[arg-type]


def test_a_tensor_to_write_to_is_refused() -> None:
    x, given = Normal(torch.ones(2), 0.1), torch.zeros(2)
    calls: list[Callable[[], Any]] = [
        lambda: torch.add(x, 1.0, out=given),
        lambda: torch.exp(x, out=given),  # type: ignore[call-overload]
        lambda: torch.sum(x, 0, out=given),  # type: ignore[call-overload]
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match="would write a random value into a plain tensor"):
            call()
    assert not given.any()


def test_native_functions_that_return_indices_too_are_refused() -> None:
    with pytest.raises(MissingRule, match=r"also returns indices: write `torch.nn.functional.adaptive_max_pool1d`"):
        torch.adaptive_max_pool1d(Normal(torch.ones(1, 1, 4), 0.1), 2)  # type: ignore[arg-type]
    assert F.adaptive_max_pool1d(Normal(torch.ones(1, 1, 4), 0.1), 2).shape == (1, 1, 2)  # type: ignore[arg-type]
