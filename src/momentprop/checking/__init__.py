"""How accurate a method is on a network of yours: `momentprop.check` and the report it gives."""

from momentprop.checking.check import check as check
from momentprop.checking.report import Report as Report
