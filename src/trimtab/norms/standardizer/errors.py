"""What a `Standardizer` refuses, and what it warns of."""

from trimtab.errors import TrimtabError


class StandardizerError(TrimtabError, ValueError):
    """A `Standardizer` was given data, weights, a model or a partner that it cannot use."""


class FoldError(StandardizerError):
    """A standardization cannot be folded into a model exactly; the message has the reason."""


class LostVarianceWarning(UserWarning):
    """The numbers are stored so coarsely that their rounding makes up part of the variance, or most of it."""


class CancellationWarning(UserWarning):
    """A model with a standardization folded in is exact on paper, but its dtype rounds the difference away."""
