"""The registry of the rows: one function for each reproduction."""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass

import tests.reliability as package


@dataclass(frozen=True)
class Row:
    """A defect: its number in the review, what was wrong, what was measured then, and the reproduction."""

    number: int
    defect: str
    before: str
    measure: Callable[[], str]

    def __str__(self) -> str:
        return f"{self.number}-{self.measure.__name__}"


_ROWS: list[Row] = []


def row(number: int, defect: str, before: str) -> Callable[[Callable[[], str]], Callable[[], str]]:
    """Register a reproduction; it asserts what is right, and returns what it measured."""

    def register(measure: Callable[[], str]) -> Callable[[], str]:
        _ROWS.append(Row(number, defect, before, measure))
        return measure

    return register


def rows() -> list[Row]:
    """Return all rows in the order of their numbers; every module of this package may have some."""
    for module in pkgutil.iter_modules(package.__path__):
        if module.name not in ("__main__", "rows") and not module.name.startswith("test_"):
            importlib.import_module(f"{package.__name__}.{module.name}")
    return sorted(_ROWS, key=lambda row: (row.number, row.defect))
