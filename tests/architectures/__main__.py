"""Measure every architecture and write the tables of `docs/architectures.md`, or those that are named."""

import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from tests.architectures import ARCHITECTURES, WITH_DROPOUT, Architecture
from tests.architectures.measure import (
    Accuracy,
    accuracy_under_dropout,
    accuracy_under_noise,
    compiled_error,
    error_at,
    gradients,
    plain_gradients,
)
from tests.architectures.zoo import ZOO, measured

PAGE = Path(__file__).parent.parent.parent / "docs" / "architectures.md"
DRAWS = 1000
NOISE = (0.1, 0.5)

_MEASURES = "ε<sub>mean</sub> AP1 | ε<sub>mean</sub> AP2 | floor | ε<sub>std</sub> | floor | correlation"


def _row(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def _head(titles: str) -> Iterator[str]:
    yield f"| {titles} |"
    yield "|---" * (titles.count("|") + 1) + "|"


def _cells(accuracy: Accuracy) -> list[str]:
    return [
        *(f"{error:.3f}" for error in (accuracy.mean_ap1, accuracy.mean_ap2, accuracy.mean_floor)),
        f"{accuracy.std:.3f}",
        f"{accuracy.std_floor:.3f}",
        f"{accuracy.correlation:.2f}",
    ]


def _size(architecture: Architecture) -> list[str]:
    model = architecture.build()
    with torch.no_grad():
        outputs = architecture.call(model, architecture.input())
    count = sum(parameter.numel() for parameter in model.parameters())
    return [f"{count:,}", " × ".join(map(str, outputs.shape[1:]))]


def noise_table() -> Iterator[str]:
    yield from _head(f"network | parameters | outputs | noise | {_MEASURES}")
    for architecture in ARCHITECTURES:
        size = _size(architecture)
        for std in NOISE:
            yield _row(architecture, *size, std, *_cells(accuracy_under_noise(architecture, std, DRAWS)))


def dropout_table() -> Iterator[str]:
    yield from _head(f"network | parameters | outputs | {_MEASURES}")
    for architecture in WITH_DROPOUT:
        yield _row(architecture, *_size(architecture), *_cells(accuracy_under_dropout(architecture, DRAWS)))


def limits_table() -> Iterator[str]:
    yield from _head("network | variance 0, float32 | variance 0 | variance 1e-12 | gradients | compiled")
    for architecture in ARCHITECTURES:
        limits = (
            error_at(architecture, 0.0, torch.float32),
            error_at(architecture, 0.0),
            error_at(architecture, 1e-12),
        )
        plain, reached = plain_gradients(architecture), gradients(architecture, 0.01, "loc variance")
        yield _row(
            architecture,
            *(f"{error:.0e}" if error else "0" for error in limits),
            f"{len(set(plain) & set(reached))} of {len(plain)}",
            _compiled(architecture),
        )


def zoo_table() -> Iterator[str]:
    yield from _head("network | parameters | AP1 | variance 1e-10 | ε<sub>mean</sub> AP2 | ε<sub>std</sub>")
    for tiny in ZOO:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            found = measured(tiny)
        limits = [f"{error:.0e}" if error else "0" for error in (found.ap1, found.tiny)]
        yield _row(tiny, f"{found.parameters:,}", *limits, f"{found.mean:.2f}", f"{found.std:.2f}")


def _compiled(architecture: Architecture) -> str:
    try:
        error = compiled_error(architecture)
    except Exception as failure:  # the table says so, and the tests hold what compiles
        return f"fails: {type(failure).__name__}"
    return f"equal, {error:.0e}" if error else "equal"


TABLES = {"noise": noise_table, "dropout": dropout_table, "limits": limits_table, "zoo": zoo_table}


def main(names: Sequence[str]) -> None:
    """Measure, and put each table between its markers."""
    for name in names or TABLES:
        start = time.perf_counter()
        lines = []
        for line in TABLES[name]():
            print(f"{time.perf_counter() - start:5.0f} s  {line}", flush=True)
            lines.append(line)
        before, rest = PAGE.read_text().split(f"<!-- {name} -->\n")
        after = rest.split(f"<!-- end of {name} -->")[1]
        table = "\n".join(lines)
        PAGE.write_text(f"{before}<!-- {name} -->\n\n{table}\n\n<!-- end of {name} -->{after}")


if __name__ == "__main__":
    main(sys.argv[1:])
