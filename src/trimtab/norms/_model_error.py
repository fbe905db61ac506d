"""The error of everything here that works on whole models."""

from trimtab.errors import TrimtabError


class ModelError(TrimtabError, ValueError):
    """A model, its batches or an option cannot be used; the message says what was expected."""
