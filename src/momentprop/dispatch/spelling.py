"""Torch's many names for one operation.

`torch.relu`, `F.relu`, `Tensor.relu_`, `x + y`, `x += y`, `1 - x` and their synonyms all reach the rule under the plain
name. The same pure rule serves in-place spellings: the dispatcher puts its result back into the value.
"""

from typing import NamedTuple

_SYNONYMS = {
    "_threshold": "threshold",  # `torch.nn.functional.threshold` calls itself so
    "absolute": "abs",
    "arctan2": "atan2",
    "clip": "clamp",
    "concat": "cat",
    "concatenate": "cat",
    "divide": "div",
    "ger": "outer",
    "linalg_matmul": "matmul",
    "moveaxis": "movedim",
    "multiply": "mul",
    "negative": "neg",
    "special_erf": "erf",
    "special_exp2": "exp2",
    "special_expit": "sigmoid",
    "special_expm1": "expm1",
    "special_log1p": "log1p",
    "special_log_softmax": "log_softmax",
    "special_logsumexp": "logsumexp",
    "special_ndtr": "ndtr",
    "special_softmax": "softmax",
    "subtract": "sub",
    "swapaxes": "transpose",
    "swapdims": "transpose",
    "true_divide": "div",
    "truediv": "div",
}


class Spelling(NamedTuple):
    """The operation that a name means, and how the name spells it."""

    op: str
    reflected: bool = False  # `2 - x` arrives as `x.__rsub__(2)`
    in_place: bool = False  # `x.relu_()`, `x += y`


_SPELLINGS: dict[str, Spelling] = {
    "__setitem__": Spelling("setitem", in_place=True),
    "rsub": Spelling("sub", reflected=True),
}


def spell(op: str) -> None:
    """Register all spellings of an operation."""
    for name in (op, *(synonym for synonym, meant in _SYNONYMS.items() if meant == op)):
        _SPELLINGS.setdefault(name, Spelling(op))
        _SPELLINGS.setdefault(f"{name}_", Spelling(op, in_place=True))
        _SPELLINGS.setdefault(f"__{name}__", Spelling(op))
        _SPELLINGS.setdefault(f"__r{name}__", Spelling(op, reflected=True))
        _SPELLINGS.setdefault(f"__i{name}__", Spelling(op, in_place=True))


def spelled(name: str) -> Spelling:
    """Return the operation that a function name spells; an unknown name is its own operation."""
    found = _SPELLINGS.get(name)
    return Spelling(name) if found is None else found
