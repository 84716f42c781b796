"""Numbers and names as a report writes them."""

import math

from momentprop.markdown import code as code

NONE = "–"
"""The sign for a missing number."""


def number(x: float | None, digits: int = 2) -> str:
    """A number to a few significant digits: 0.083, 12, 3.4e-05.

    >>> [number(x) for x in (0.08312, 1.0, 12.3, 0.0000341, 0, None)]
    ['0.083', '1.0', '12', '3.4e-05', '0', '–']
    """
    if x is None:
        return NONE
    if x == 0:
        return "0"
    if 1e-3 <= abs(x) < 10**digits:
        return f"{x:#.{digits}g}".rstrip(".")
    return f"{x:,.0f}" if 1 <= abs(x) < 1e6 else f"{x:.{digits - 1}e}"


def percent(share: float | None) -> str:
    """A share in per cent."""
    return NONE if share is None else f"{100 * share:.0f} %" if 0.1 <= share <= 0.9 else f"{100 * share:.1f} %"


def spread(rms: float | None) -> str:
    """The relative error of one deviation, where `rms` is the error of its logarithm; a factor where it is large.

    >>> spread(0.034), spread(1.6), spread(None)
    ('3.5 %', '×÷5.0', '–')
    """
    if rms is None:
        return NONE
    return percent(math.expm1(rms)) if rms < 0.4 else f"×÷{number(math.exp(rms))}"


def off_by(rms: float) -> str:
    """As `spread`, as part of a sentence.

    >>> off_by(0.3), off_by(1.6)
    ('about 35 %', 'a factor of about 5.0')
    """
    told = spread(rms)
    return f"a factor of about {told[2:]}" if told.startswith("×÷") else f"about {told}"


def worth(count: float | None, samples: int) -> str:
    """A number of draws: `95`, or `more than 1,000` where the draws cannot tell.

    >>> worth(95.3, 1000), worth(1000, 1000), worth(0.2, 1000)
    ('95', 'more than 1,000', 'less than 1')
    """
    if count is None:
        return NONE
    if count >= samples:
        return f"more than {samples:,}"
    return "less than 1" if count < 1 else f"{count:.2g}" if count < 10 else f"{count:,.0f}"


def brief_worth(count: float | None, samples: int) -> str:
    """As `worth`, with signs in place of words."""
    return worth(count, samples).replace("more than ", "> ").replace("less than ", "< ")


def factor(x: float, floor: float) -> str:
    """A factor of standard deviations as part of a sentence.

    >>> factor(0.69, 1.02), factor(1.01, 1.02), factor(3.0, 1.02)
    ('underestimated by 31 %', 'right, as far as the draws can tell', '3.0 times too large')
    """
    if 1 / floor <= x <= floor:
        return "right, as far as the draws can tell"
    if x < 1:
        return f"underestimated by {percent(1 - x)}" if x > 0.5 else f"{number(1 / x)} times too small"
    return f"overestimated by {percent(x - 1)}" if x < 2 else f"{number(x)} times too large"
