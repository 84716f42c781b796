"""Measures how accurate a method is on your network: `momentprop.check` and the report it returns."""

from momentprop.checking.check import check as check
from momentprop.checking.report import Report as Report
