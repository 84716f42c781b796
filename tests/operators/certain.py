"""Operators on values without variance: the result must be torch's own."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from momentprop import MissingRule, Normal
from momentprop.values import Categorical, Value
from tests.operators.catalogue import Operator, Sample

ROUNDING = {torch.float64: 1e-13, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
UNCLEAR = (  # they come from our insides; others are messages to the user
    *(
        AttributeError,
        AssertionError,
        IndexError,
        KeyError,
        NameError,
        RecursionError,
        StopIteration,
        ZeroDivisionError,
    ),
)


@dataclass(frozen=True)
class Verdict:
    """How an operator on values compares with torch: `exact`, `rounding`, `missing`, or what is wrong."""

    verdict: str
    detail: str = ""


def certain(tensor: Tensor) -> Normal:
    """Return a tensor as a value without variance; extreme samples are not finite, so nothing is checked."""
    return Normal.of(tensor, torch.zeros_like(tensor))


def run(
    function: Callable[..., Any], sample: Sample, stand_in: Callable[[Tensor], Any], places: tuple[int, ...]
) -> Any:
    """Return the result of a call, or the exception that it ends with; the same seed each time."""
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        try:
            return sample.call(function, stand_in, places)
        except Exception as error:
            return error


def refusal(operator: Operator, sample: Sample, places: tuple[int, ...]) -> Verdict:
    """Compare a call that torch refuses."""
    return judge(operator.spellings()["function"], sample, places)


def judge(function: Callable[..., Any], sample: Sample, places: tuple[int, ...]) -> Verdict:
    """Compare one call on values without variance with torch."""
    expected = run(function, sample, lambda tensor: tensor, places)
    got = run(function, sample, certain, places)
    if isinstance(got, UNCLEAR) and type(got) is not type(expected) and "at top level" not in str(got):
        return Verdict("unclear", f"{type(got).__name__}: {str(got).splitlines()[:1]}")
    if isinstance(expected, Exception):
        return Verdict("both refuse") if isinstance(got, Exception) else Verdict("accepted", str(expected)[:100])
    if isinstance(got, MissingRule):
        return Verdict("missing", str(got).splitlines()[0])
    if isinstance(got, Exception):
        return Verdict("refused", f"{type(got).__name__}: {str(got).splitlines()[:1]}")
    return compare(got, expected)


def compare(got: Any, expected: Any) -> Verdict:
    """Compare two results, leaf by leaf."""
    mine, torchs = tree_leaves(got, is_leaf=lambda x: isinstance(x, Value)), tree_leaves(expected)
    if len(mine) != len(torchs):
        return Verdict("different", f"{len(mine)} results, not {len(torchs)}")
    worst = 0.0
    for ours, theirs in zip(mine, torchs, strict=True):
        if not isinstance(theirs, Tensor):
            if ours != theirs:
                return Verdict("different", f"{ours}, not {theirs}")
            continue
        if isinstance(ours, Categorical):
            ours = ours.logits
        elif isinstance(ours, Value):
            wrong = _variance(ours)
            if wrong:
                return Verdict("different", wrong)
            if theirs.is_contiguous() and not _viewable(ours):
                return Verdict("strides", f"{ours.loc.stride()}, not {theirs.stride()}: `view(-1)` refuses")
            ours = ours.loc
        if not isinstance(ours, Tensor):
            return Verdict("different", f"{type(ours).__name__}, not a tensor")
        for what in ("shape", "dtype"):
            if getattr(ours, what) != getattr(theirs, what):
                return Verdict("different", f"{what} {getattr(ours, what)}, not {getattr(theirs, what)}")
        worst = max(worst, _distance(ours, theirs))
    if worst == 0:
        return Verdict("exact")
    dtype = min((t.dtype for t in torchs if isinstance(t, Tensor) and t.is_floating_point()), key=lambda d: d.itemsize)
    return Verdict("rounding" if worst <= ROUNDING[dtype] else "different", f"by {worst:.1e} of the largest element")


def _viewable(value: Any) -> bool:
    try:
        value.view(-1)
    except RuntimeError:
        return False
    return True


def _variance(value: Any) -> str:
    loc, variance = value.loc, value.variance
    if not isinstance(variance, Tensor) or not isinstance(loc, Tensor):
        return f"components of type {type(loc).__name__}, {type(variance).__name__}"
    for what in ("shape", "dtype"):
        if getattr(loc, what) != getattr(variance, what):
            return f"variance of {what} {getattr(variance, what)}, mean of {getattr(loc, what)}"
    wrong = variance[(variance != 0) & ~loc.isnan()]
    return f"variance {wrong[0].item()}" if wrong.numel() else ""


def _distance(ours: Tensor, theirs: Tensor) -> float:
    """Return the largest difference relative to the largest element; infinite where NaN or infinity are misplaced."""
    same = (ours == theirs) | (ours.isnan() & theirs.isnan())
    if bool(same.all()):
        return 0.0
    apart, wanted = ours[~same].double(), theirs[~same].double()
    if not bool((apart.isfinite() & wanted.isfinite()).all()):
        return float("inf")
    scale = theirs[theirs.isfinite()].double().abs().max().item()
    return ((apart - wanted).abs().max() / scale).item() if scale else float("inf")
