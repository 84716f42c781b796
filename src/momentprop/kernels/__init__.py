"""The mathematics behind the rules: functions of plain tensors, independent of values and of the rule table."""
