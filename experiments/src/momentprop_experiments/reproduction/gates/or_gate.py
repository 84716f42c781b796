r"""The counterpart of the paper's AND: an OR gate, which the standard network overestimates."""

from pathlib import Path

from momentprop_experiments.options import DEFAULTS, Options
from momentprop_experiments.reproduction.gates.logic_gate import LOGIT, Gate, measure, methods_table, plot
from momentprop_experiments.reproduction.outcome import Outcome

NAME = "or-gate"
TITLE = "OR of two uncertain inputs by a logistic unit: exact sum, AP1, AP2, draws (table)"

GATE = Gate("OR", 2 * LOGIT, -LOGIT)


def run(out: Path, options: Options = DEFAULTS) -> Outcome:
    """Compute the table by exact sums, by each method and by draws."""
    data = measure(GATE, 1000 if options.quick else 100_000)
    markdown = "\n\n".join(
        [
            f"# {TITLE}",
            f"The unit has p(Y=1 | X) = S(a (X1 + X2) + b) with a = {GATE.slope:.3f} and b = {GATE.bias:.3f}: "
            "it is the AND gate of the complements, so that what that gate underestimates this one overestimates.",
            "**Every method** (draws with the standard error of their mean)",
            methods_table(GATE, data),
        ]
    )
    return Outcome(data, markdown, plot(GATE, out, NAME))
