r"""The counterpart of the paper's AND: an OR gate, which the standard network overestimates."""

from pathlib import Path

from momentprop_experiments.options import DEFAULTS, Options
from momentprop_experiments.reproduction.gates.logic_gate import LOGIT, Gate, measure, methods_table, plot
from momentprop_experiments.reproduction.outcome import Outcome

NAME = "or-gate"
TITLE = "A logistic unit as OR of two uncertain inputs: exact sum, AP1, AP2 and draws (table)"

GATE = Gate("OR", 2 * LOGIT, -LOGIT)


def run(out: Path, options: Options = DEFAULTS) -> Outcome:
    """Compute the table by exact sums, by each method and by draws."""
    data = measure(GATE, 1000 if options.quick else 100_000)
    markdown = "\n\n".join(
        [
            f"# {TITLE}",
            "A logistic unit serves as an OR gate of two binary inputs, which are 1 with the probabilities in the "
            "first columns. The table has the probability that the output is 1: of an exact gate, of the unit by the "
            "exact sum (E[Y]), and of the unit by each method. "
            f"The unit has p(Y=1 | X) = S(a (X1 + X2) + b) with a = {GATE.slope:.3f} and b = {GATE.bias:.3f}. "
            "It is the AND gate of the complements, so it overestimates what that gate underestimates.",
            "**Every method** (± is the standard error of the draws)",
            methods_table(GATE, data),
        ]
    )
    return Outcome(data, markdown, plot(GATE, out, NAME))
