"""The relative time of a training step: standard, with batch normalization, by AP2, and with analytic normalization.

The paper reports 1, 1.5, 3 and 6. The steps are four of those in `benchmarks/normalization.py`, on the CIFAR-10
network; AP2 propagates dropout of 0.2. They take turns, round by round, so other work on the machine affects all alike.
The result is the median over rounds, relative to the standard step.

    python benchmarks/training_step.py            # on a GPU, or on the CPU if there is none
    python benchmarks/training_step.py --device cpu --modes eager --rounds 5 --steps 1

The numbers go to `results/benchmarks/training-step.json`, beside those of other devices and modes, and the table to
`training-step.md`.
"""

import argparse
import statistics
from typing import Any

from normalization import BATCH, arguments, quartiles, record, rounded, shown, stepper, taken_in_turns

from momentprop.markdown import table
from momentprop_experiments.provenance import start

STEPS = {
    "standard": ("standard", "none"),
    "BN": ("standard", "batch"),
    "AP2": ("AP2", "none"),
    "AP2 with analytic norm": ("AP2", "analytic"),
}
"""The method and the variant of each kind of step, as named in `normalization`."""

PRINTED = {"BN": 1.5, "AP2": 3.0, "AP2 with analytic norm": 6.0}
"""The paper's ratios to the standard step."""

_NOTES = (
    f"The table has the time of a training step of the CIFAR-10 network with batches of {BATCH}, relative to a "
    "standard step. Numbers are medians over rounds in which all kinds of steps take turns, with the quartiles in "
    "brackets. BN is batch normalization."
)


def main() -> None:
    """Measure, print the table, and save it."""
    options, text = arguments(__doc__), ""
    for mode in options.modes:
        made = start()
        text = record("training-step", {mode: measure(mode, options)}, options, markdown, made)
    print(text)


def measure(mode: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measure the milliseconds of each step, and the quartiles of its ratio to the standard one."""
    steps = {name: stepper(*choice, mode, options.device) for name, choice in STEPS.items()}
    rounds = taken_in_turns(steps, options)
    ratios = {name: quartiles([each[name] / each["standard"] for each in rounds]) for name in PRINTED}
    return {
        "milliseconds": {name: rounded(1e3 * statistics.median(each[name] for each in rounds)) for name in STEPS},
        "ratio": {name: [rounded(x) for x in found] for name, found in ratios.items()},
    }


def markdown(data: dict[str, Any]) -> str:
    """Return the table of all devices, below the paper's row."""
    rows = [["the paper", "", "", "1", *(f"{ratio:g}" for ratio in PRINTED.values())]]
    for device, about in data.items():
        for mode, found in about["cases"].items():
            standard = f"1 ({found['milliseconds']['standard']:.3g} ms)"
            rows.append([device, about["torch"], mode, standard, *map(shown, found["ratio"].values())])
    head = ("device", "torch", "mode", *STEPS)
    return "\n\n".join(["# The relative time of a training step", _NOTES, table(head, rows)])


if __name__ == "__main__":
    main()
