"""The mathematics under the rules: functions of plain tensors, which know nothing of values or of the rule table."""
