"""Measures how accurate a method is on your network: `momentprop.check` and the report it returns."""

from momentprop.checking.check import check
from momentprop.checking.next_step import Step
from momentprop.checking.report import Report
from momentprop.checking.results import Accuracy, Cost, Culprit, Example, ModuleAccuracy, PosteriorAccuracy, Unit

__all__ = [
    "Accuracy",
    "Cost",
    "Culprit",
    "Example",
    "ModuleAccuracy",
    "PosteriorAccuracy",
    "Report",
    "Step",
    "Unit",
    "check",
]
