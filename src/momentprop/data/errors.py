"""What can go wrong with a data set."""

from momentprop.errors import UserError


class DataError(UserError):
    """A data set is unknown, missing, damaged, or cannot be fetched."""


class SourceError(Exception):
    """One source cannot give a data set, for the reason in the message; `get` then tries the next."""
