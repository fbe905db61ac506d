"""What a `Standardizer` cannot fold, and what it warns of."""

from trimtab.errors import NormalizationError


class FoldError(NormalizationError):
    """A standardization cannot be folded into a model exactly; the message has the reason.

    To be caught where the model is then used behind the standardizer instead.
    """


class LostVarianceWarning(UserWarning):
    """The numbers are stored so coarsely that rounding makes up part of the variance, or may have left none."""


class CancellationWarning(UserWarning):
    """A model with a standardization folded in is exact on paper, but its dtype rounds the difference away."""
