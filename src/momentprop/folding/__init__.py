"""Many draws as one batch: operations on draws that lie behind each other along the first dimension.

An operation is run on all draws at once if it is known to keep what lies along the first dimension apart. The rule
table knows many of them: functions of each element, and what acts along other dimensions only. Others are listed here,
with the ranks at which their first dimension holds the items. Everything else is refused, and the draws are made in
another way. Draws are outermost, so that every reshape keeps them apart.
"""

from momentprop.folding.mode import Folding as Folding
