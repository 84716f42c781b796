"""All calls of an operator that are compared with torch, and what came of them."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from momentprop.dispatch import Kind
from tests.operators import drawn
from tests.operators.catalogue import IN_PLACE, Operator
from tests.operators.certain import Verdict, judge, refusal
from tests.operators.exceptions import EXCEPTIONS, Exception_

AGREE = ("exact", "both refuse", "agrees", "not random", "left out")
ROUNDED = (Kind.MIXING, Kind.LOSS, Kind.NOISE)  # all others, moves and linear ones among them, have to be exact
DRAWN = 10  # samples of an operator that are compared with draws
SLOW = frozenset(  # of these, three
    "bmm.triton_optimized nn.functional.conv_transpose3d nn.functional.linear_cross_entropy.chunked "
    "nn.functional.linear_cross_entropy.chunked_none".split()
)
WIDE = (torch.float32, torch.float64)
HALF = (torch.bfloat16, torch.float16)
TRIED_IN_HALF = frozenset(
    "add mul matmul sum cat exp nn.functional.relu nn.functional.conv2d nn.functional.linear".split()
)


@dataclass(frozen=True)
class Trial:
    """One call: how the operator is spelled, its arguments, and which of them are random."""

    operator: Operator
    how: str
    dtype: str
    sample: int
    places: tuple[int, ...]
    arguments: str
    verdict: Verdict
    kind: Kind

    @property
    def exception(self) -> Exception_ | None:
        """The row of the table of exceptions that allows what came of the call."""
        for each in EXCEPTIONS:
            if each.allows(self.operator.name, self.verdict.verdict, self.text, self.how.startswith("deviation")):
                return each
        return None

    @property
    def agrees(self) -> bool:
        return self.verdict.verdict in AGREE or (self.verdict.verdict == "rounding" and self.kind in ROUNDED)

    @property
    def text(self) -> str:
        """All that is known of the call, in one line: what exceptions are matched with."""
        return (
            f"{self.how} {self.dtype} #{self.sample} random {self.places} of ({self.arguments}): {self.verdict.detail}"
        )

    def __str__(self) -> str:
        return f"{self.operator} {self.verdict.verdict}: {self.text}"


def without_variance(
    operator: Operator, most: int | None = None, dtypes: tuple[torch.dtype, ...] = WIDE
) -> Iterator[Trial]:
    """Compare all calls of an operator with torch, or those of its first samples."""
    for dtype in dtypes:
        for number, sample in enumerate(operator.samples(dtype)[:most]):
            for places in sample.variants():
                kind = operator.kind_of(sample, places)
                for how, function in operator.spellings().items():
                    if how in IN_PLACE and 0 not in places:
                        continue  # it would make a plain tensor random
                    verdict = judge(function, sample, places)
                    name = str(dtype).removeprefix("torch.")
                    yield Trial(operator, how, name, number, places, str(sample), verdict, kind)


def refusals(operator: Operator) -> Iterator[Trial]:
    """Compare what happens to arguments that torch refuses."""
    for number, sample in enumerate(operator.errors()):
        for places in sample.variants():
            verdict = refusal(operator, sample, places)
            yield Trial(operator, "error", "", number, places, str(sample), verdict, operator.kind)


def with_variance(operator: Operator, most: int = DRAWN) -> Iterator[Trial]:
    """Compare calls on random values with draws, for some samples from all parts of their list."""
    samples = list(enumerate(operator.samples(torch.float64)))
    most = min(most, 3) if operator.name in SLOW else most
    for number, sample in samples[:: math.ceil(len(samples) / most) or 1]:
        for places in sample.variants():
            left_out = drawn.drawable(operator, sample, places)
            for level in drawn.LEVELS:
                verdict = Verdict("left out", left_out) if left_out else drawn.judge(operator, sample, places, level)
                how = f"deviation {level}"
                yield Trial(operator, how, "float64", number, places, str(sample), verdict, operator.kind)
