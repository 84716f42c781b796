"""The expression of each step of a formula, in a language that has choices, calls and the usual operators."""

from typing import Any

import torch

from momentprop.codegen.formula import Formula, Reference_, Step


class Language:
    """How a language writes what languages write differently."""

    def number(self, value: float, dtype: torch.dtype) -> str:
        """Return a constant."""
        raise NotImplementedError

    def choice(self, condition: str, one: str, other: str) -> str:
        """Return one of two expressions."""
        raise NotImplementedError

    def call(self, function: str, x: str, dtype: torch.dtype) -> str:
        """Return a function of the mathematical library."""
        raise NotImplementedError

    def power(self, x: str, exponent: str, dtype: torch.dtype) -> str:
        """Return any power."""
        raise NotImplementedError

    def converted(self, x: str, source: torch.dtype, dtype: torch.dtype) -> str:
        """Return an expression in another type."""
        raise NotImplementedError

    def both(self, a: str, b: str) -> str:
        """Return whether two conditions hold."""
        return f"({a} & {b})"

    def either(self, a: str, b: str) -> str:
        """Return whether one of two conditions holds."""
        return f"({a} | {b})"

    def negated(self, a: str) -> str:
        """Return whether a condition does not hold."""
        raise NotImplementedError

    def index(self, dtype: torch.dtype) -> str:
        """Return the place in the row."""
        raise NotImplementedError


_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
_COMPARED = {"gt": ">", "lt": "<", "ge": ">=", "le": "<=", "eq": "==", "ne": "!="}
_CALLED = frozenset("exp exp2 log log1p expm1 sqrt rsqrt sin cos tanh erf erfc atan abs".split())


def expression(language: Language, formula: Formula, step: Step, names: dict[int, str]) -> str:
    """Return a step's expression, from the names of earlier results; sums along rows are handled elsewhere."""
    dtype = step.dtype
    wide = _type_of_operands(formula, step) if dtype is torch.bool else dtype

    def written(x: Any, wanted: torch.dtype) -> str:
        if isinstance(x, Reference_):
            return language.converted(names[x.number], formula.kind(x.number)[0], wanted)
        return language.number(float(x), wanted)

    op, given = step.op, step.arguments
    if op == "index":
        return language.index(dtype)
    if op == "where":
        condition, one, other = given
        return language.choice(written(condition, torch.bool), written(one, dtype), written(other, dtype))
    if op == "masked_fill":
        x, condition, value = given
        return language.choice(written(condition, torch.bool), written(value, dtype), written(x, dtype))
    if op in ("logical_not", "bitwise_not"):
        return language.negated(written(given[0], torch.bool))
    if op in ("logical_and", "bitwise_and"):
        return language.both(*(written(x, torch.bool) for x in given))
    if op in ("logical_or", "bitwise_or"):
        return language.either(*(written(x, torch.bool) for x in given))
    x, *more = (None if each is None else written(each, wide) for each in given)
    assert x is not None
    if op in _INFIX:
        return f"({x} {_INFIX[op]} {more[0]})"
    if op in _COMPARED:
        return f"({x} {_COMPARED[op]} {more[0]})"
    if op in _CALLED:
        return language.call(op, x, wide)
    return _other(language, op, x, more, given, wide)


def _type_of_operands(formula: Formula, step: Step) -> torch.dtype:
    kinds = [formula.kind(x.number)[0] for x in step.arguments if isinstance(x, Reference_)]
    return next((kind for kind in kinds if kind is torch.float64), next(iter(kinds)))


def _other(language: Language, op: str, x: str, more: list[Any], given: tuple[Any, ...], dtype: torch.dtype) -> str:
    zero, one = language.number(0.0, dtype), language.number(1.0, dtype)
    largest = language.number(torch.finfo(dtype if dtype is not torch.bool else torch.float32).max, dtype)
    if op in ("constant", "convert", "spread"):
        return x
    if op == "neg":
        return f"(-{x})"
    if op == "rsub":
        return f"({more[0]} - {x})"
    if op == "reciprocal":
        return f"({one} / {x})"
    if op == "sigmoid":
        return f"({one} / ({one} + {language.call('exp', f'(-{x})', dtype)}))"
    if op == "relu":
        return language.choice(f"({x} < {zero})", zero, x)  # NaN stays NaN
    if op == "leaky_relu":
        return language.choice(f"({x} > {zero})", x, f"({x} * {more[0]})")
    if op in ("sign", "sgn"):
        return language.choice(f"({x} > {zero})", one, language.choice(f"({x} < {zero})", f"(-{one})", zero))
    if op == "isinf":
        return language.either(f"({x} > {largest})", f"({x} < -{largest})")
    if op == "isnan":
        return f"({x} != {x})"
    if op == "maximum":
        return language.choice(language.either(f"({x} > {more[0]})", f"({x} != {x})"), x, more[0])
    if op == "minimum":
        return language.choice(language.either(f"({x} < {more[0]})", f"({x} != {x})"), x, more[0])
    if op in ("clamp", "clamp_min", "clamp_max"):
        low = None if op == "clamp_max" else more[0]
        high = more[0] if op == "clamp_max" else more[1] if op == "clamp" else None
        if low is not None:
            x = language.choice(f"({x} < {low})", low, x)
        return x if high is None else language.choice(f"({x} > {high})", high, x)
    if op == "nan_to_num":
        return _finite(language, x, given[1:], dtype)
    if op == "threshold_backward":
        return language.choice(f"({more[0]} <= {more[1]})", zero, x)  # NaN passes the gradient
    if op == "tanh_backward":
        return f"({x} * ({one} - {more[0]} * {more[0]}))"
    if op == "sigmoid_backward":
        return f"({x} * {more[0]} * ({one} - {more[0]}))"
    if op == "softplus":
        scaled = f"({x} * {more[0]})"
        soft = language.call("log1p", language.call("exp", scaled, dtype), dtype)
        return language.choice(f"({scaled} > {more[1]})", x, f"({soft} / {more[0]})")
    if op == "softplus_backward":
        scaled = f"({more[0]} * {more[1]})"
        slope = f"({one} / ({one} + {language.call('exp', f'(-{scaled})', dtype)}))"
        return language.choice(f"({scaled} > {more[2]})", x, f"({x} * {slope})")
    assert op == "pow", op
    return _power(language, x, more[0], given[1], dtype)


def _finite(language: Language, x: str, limits: tuple[Any, ...], dtype: torch.dtype) -> str:
    largest = torch.finfo(dtype).max
    nan, above, below = (
        language.number(default if limit is None else float(limit), dtype)
        for limit, default in zip(limits, (0.0, largest, -largest), strict=True)
    )
    edge = language.number(largest, dtype)
    bounded = language.choice(f"({x} > {edge})", above, language.choice(f"({x} < -{edge})", below, x))
    return language.choice(f"({x} != {x})", nan, bounded)


def _power(language: Language, x: str, written: str, exponent: Any, dtype: torch.dtype) -> str:
    if exponent in (2, 3, 4):
        return "(" + " * ".join([x] * int(exponent)) + ")"
    if exponent == -1:
        return f"({language.number(1.0, dtype)} / {x})"
    if exponent in (0.5, -0.5):
        return language.call("sqrt" if exponent > 0 else "rsqrt", x, dtype)
    return language.power(x, written, dtype)
