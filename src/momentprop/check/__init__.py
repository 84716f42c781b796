"""How accurate a method is on a network of yours: `momentprop.check` and the report it gives."""

from momentprop.check.checking import check as check
from momentprop.check.report import Report as Report
