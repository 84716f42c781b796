"""The error of a mistake that one sentence explains, and that the command line prints as one line."""


class UserError(ValueError):
    """What was asked for cannot be done; the message says why, and what to do instead."""
