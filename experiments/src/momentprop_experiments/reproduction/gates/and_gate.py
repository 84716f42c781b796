r"""The paper's logical AND: its table, with the corrected constants beside the printed ones (errata 1 and 2)."""

from pathlib import Path

import torch

from momentprop_experiments.options import DEFAULTS, Options
from momentprop_experiments.reproduction.gates.logic_gate import (
    INPUTS,
    LOGIT,
    Gate,
    measure,
    methods_table,
    plot,
    shown,
)
from momentprop_experiments.reproduction.outcome import Outcome, table

NAME = "and-gate"
TITLE = "A logistic unit as AND of two uncertain inputs: exact sum, AP1, AP2 and draws (table)"

GATE = Gate("AND", 2 * LOGIT, -3 * LOGIT)
AS_PRINTED = Gate("AND", 5.89, -1.5)
PRINTED = ((0.00015, 0.00015), (0.05, 0.05), (0.95, 0.95), (0.077, 0.0027), (0.26, 0.05), (0.55, 0.5))
"""E[Y] and AP1 as the paper prints them."""


@torch.no_grad()
def run(out: Path, options: Options = DEFAULTS) -> Outcome:
    """Compute the table by exact sums, by each method and by draws."""
    data = measure(GATE, 1000 if options.quick else 100_000)
    wrong = AS_PRINTED.unit(torch.tensor(INPUTS, dtype=torch.float64))
    for i, (row, (expected, ap1)) in enumerate(zip(data["rows"], PRINTED, strict=True)):
        row["printed"] = {"exact": expected, "AP1": ap1}
        row["with_printed_constants"] = {name: wrong[name][i].item() for name in ("exact", "AP1")}
    data["printed"] = {"slope": AS_PRINTED.slope, "bias": AS_PRINTED.bias}
    head = (
        "p(X1=1)",
        "p(X2=1)",
        "AND gate",
        "E[Y] printed",
        "E[Y]",
        "AP1 printed",
        "AP1",
        "E[Y], b=-1.5",
        "AP1, b=-1.5",
    )
    rows = [
        (
            *(f"{p:g}" for p in row["inputs"]),
            shown(row["gate"]),
            *(shown(row[part][name]) if part else shown(row[name])
              for name in ("exact", "AP1") for part in ("printed", "")),
            *(shown(row["with_printed_constants"][name]) for name in ("exact", "AP1")),
        )
        for row in data["rows"]
    ]  # fmt: skip
    markdown = "\n\n".join(
        [
            f"# {TITLE}",
            "A logistic unit serves as an AND gate of two binary inputs, which are 1 with the probabilities in the "
            "first columns. The tables have the probability that the output is 1: of an exact gate, of the unit by the "
            "exact sum (E[Y]), and of the unit by each method. "
            f"The unit has p(Y=1 | X) = S(a (X1 + X2) + b) with a = {GATE.slope:.3f} and b = {GATE.bias:.3f}. "
            "The paper prints a = 5.89 and b = -1.5. Its table, however, agrees with our b: with b = -1.5 the unit is "
            "not an AND gate, as the last two columns show.",
            "**The paper's table and ours**",
            table(head, rows),
            "**Every method** (± is the standard error of the draws)",
            methods_table(GATE, data),
            "AP1 cannot tell the inputs (0, 1) and (0.5, 0.5) apart. All forms of AP2 can, but they are off as well, "
            "because two binary inputs are far from normal.",
        ]
    )
    return Outcome(data, markdown, plot(GATE, out, NAME))
