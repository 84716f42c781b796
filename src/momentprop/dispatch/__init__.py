"""Dispatch: the table of operations and rules, and the one way from an operation to its rule.

`rule_table` holds the rows, `kinds` says what kinds of maps there are, `registry` registers operations by their kind,
`dispatcher` finds and runs a rule, `context` is what runs around it.
"""

from momentprop.dispatch.call import Call as Call
from momentprop.dispatch.context import Context as Context
from momentprop.dispatch.dependence import DependenceWarning as DependenceWarning
from momentprop.dispatch.dispatcher import dispatch as dispatch
from momentprop.dispatch.dispatcher import operation as operation
from momentprop.dispatch.kinds import Kind as Kind
from momentprop.dispatch.kinds import Transform as Transform
from momentprop.dispatch.operand import MissingRule as MissingRule
from momentprop.dispatch.operand import Operand as Operand
from momentprop.dispatch.operand import values_in as values_in
from momentprop.dispatch.place import where as where
from momentprop.dispatch.rule_table import Rule as Rule
from momentprop.dispatch.rule_table import apply as apply
from momentprop.dispatch.rule_table import find as find
from momentprop.dispatch.rule_table import forget as forget
from momentprop.dispatch.rule_table import kind_of as kind_of
from momentprop.dispatch.rule_table import rule as rule
from momentprop.dispatch.rule_table import table as table
