"""Many draws as one batch: operations on draws joined along the first dimension.

An operation runs on all draws at once if it is known to keep entries along the first dimension apart. The rule table
knows many of these: functions of each element, and operations along other dimensions only. Others are listed here, with
the ranks at which their first dimension holds the items. Everything else is refused, and the draws are made another
way. Draws are outermost, so every reshape keeps them apart.
"""

from momentprop.folding.mode import Folding as Folding
