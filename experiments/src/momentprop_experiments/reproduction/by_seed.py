r"""What runs with several seeds settle: their mean, its interval by Student's t, and a verdict.

Two or three runs say little about their own spread. Twice the standard error, which is right for many runs, is then
wrong 30 % and 18 % of the time; the quantile of Student's t with n - 1 degrees of freedom is wrong 5 % of the time.

>>> found = BySeed.of([0.030, 0.034, 0.041])
>>> print(found.points, "points;", found.verdict)
+3.5 ± 1.4 points; yes
>>> print(BySeed.of([0.030, 0.041]).points, "points;", BySeed.of([0.030, 0.041]).verdict)
+3.6 ± 7.0 points; not settled
>>> print(BySeed.of([0.030]).points, "points;", BySeed.of([0.030]).verdict)
+3.0 points; not settled
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Self

LEVEL = 0.95
"""The probability with which an interval holds the true mean."""

YES, NO, OPEN = "yes", "no", "not settled"
"""The verdicts."""

ON_INTERVALS = (
    f"± is half the width of the {LEVEL:.0%} interval of the mean over the seeds, by Student's t. An answer is 'not "
    "settled' if zero lies inside this interval, or if there is only one seed."
)


@dataclass(frozen=True)
class BySeed:
    """A number measured once for each seed, often a difference of two ways with the same seed."""

    mean: float
    error: float | None  # the standard error of the mean; None for one seed
    seeds: int

    @classmethod
    def of(cls, runs: Sequence[float], rounding: float = 0.0) -> Self:
        """Summarize the runs, one for each seed.

        `rounding` is the deviation of the rounding in each run. Counts need it: equal counts do not settle a difference
        of less than one.
        """
        error = math.hypot(statistics.stdev(runs), rounding) / math.sqrt(len(runs)) if len(runs) > 1 else None
        return cls(statistics.fmean(runs), error, len(runs))

    @property
    def half_width(self) -> float | None:
        """Half the width of the interval of the mean; None for one seed."""
        return None if self.error is None else t_quantile(self.seeds - 1) * self.error

    @property
    def verdict(self) -> str:
        """Whether the true mean is above zero, as far as the seeds settle it."""
        if self.half_width is None or abs(self.mean) <= self.half_width:
            return OPEN
        return YES if self.mean > 0 else NO

    @property
    def points(self) -> str:
        """The mean in percentage points, with its sign and interval."""
        return self.text(100)

    def text(self, scale: float = 1.0, digits: int = 1, sign: str = "+") -> str:
        """Return the mean with its interval; `sign=""` writes no plus."""
        mean = f"{scale * self.mean:{sign}.{digits}f}"
        return mean if self.half_width is None else f"{mean} ± {scale * self.half_width:.{digits}f}"


def t_quantile(freedom: int, level: float = LEVEL) -> float:
    """Return how many standard errors an interval of this level extends to either side, by Student's t.

    >>> [round(t_quantile(freedom), 2) for freedom in (1, 2, 4, 1000)]
    [12.71, 4.3, 2.78, 1.96]
    """
    low, high = 0.0, math.pi / 2
    for _ in range(100):
        angle = (low + high) / 2
        low, high = (angle, high) if _inside(angle, freedom) < level else (low, angle)
    return math.tan(high) * math.sqrt(freedom)


def _inside(angle: float, freedom: int) -> float:
    r"""Return $P(|T| < \sqrt\nu \tan\theta)$ for $\nu$ degrees of freedom.

    Source: Abramowitz and Stegun, 26.7.3 and 26.7.4
    """
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    factors = ((k - 1) / k * cosine**2 for k in range(2 + odd, freedom, 2))
    series = sum(accumulate(factors, lambda a, b: a * b, initial=1.0)) if freedom > 1 else 0.0
    return 2 / math.pi * (angle + sine * cosine * series) if odd else sine * series


def counted(verdicts: Iterable[str]) -> str:
    """Say how often each verdict is given.

    >>> counted(["yes", "yes", "not settled"])
    'yes in 2, not settled in 1 of 3 cases'
    """
    given = list(verdicts)
    told = ", ".join(f"{each} in {given.count(each)}" for each in (YES, NO, OPEN) if each in given)
    return f"{told} of {len(given)} cases"


def by_chance(verdicts: int) -> str:
    """Say how many of some verdicts chance alone would settle: they are not corrected for their number.

    >>> by_chance(34)
    'If nothing differed, chance alone would still settle about 1.7 of these 34 verdicts.'
    """
    settled = f"{(1 - LEVEL) * verdicts:.1f}"
    return f"If nothing differed, chance alone would still settle about {settled} of these {verdicts} verdicts."
