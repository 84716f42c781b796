"""The error for a user's mistake, which the command line prints as one line."""

__all__ = ["UserError"]


class UserError(ValueError):
    """A request that cannot be fulfilled; the message says why, and what to do instead."""
