"""Dispatch: the table of operations and rules, and the one way from an operation to its rule.

`rule_table` holds the rows, `kinds` defines the kinds of maps, `registry` registers operations by kind, `dispatcher`
finds and runs a rule, and `context` is what runs around it.
"""

from momentprop.dispatch.call import Call
from momentprop.dispatch.context import Context
from momentprop.dispatch.dependence import DependenceWarning
from momentprop.dispatch.dispatcher import dispatch, operation
from momentprop.dispatch.kinds import Bilinear, Elementwise, Kind, Linear, Noise, Operation, Transform
from momentprop.dispatch.operand import MissingRule, Operand, values_in
from momentprop.dispatch.place import where
from momentprop.dispatch.rule_table import Rule, apply, find, forget, kind_of, rule, table

__all__ = [
    "Bilinear",
    "Call",
    "Context",
    "DependenceWarning",
    "Elementwise",
    "Kind",
    "Linear",
    "MissingRule",
    "Noise",
    "Operand",
    "Operation",
    "Rule",
    "Transform",
    "apply",
    "dispatch",
    "find",
    "forget",
    "kind_of",
    "operation",
    "rule",
    "table",
    "values_in",
    "where",
]
