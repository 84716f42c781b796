"""Errors of data sets."""

from momentprop.errors import UserError


class DataError(UserError):
    """A data set is unknown, missing, damaged, or cannot be fetched."""


class SourceError(Exception):
    """A source cannot provide a data set, for the reason in the message; `get` then tries the next source."""
