"""Errors that trimtab raises; each says what was given, what was expected and what to do."""


class TrimtabError(Exception):
    """Base of every error that trimtab raises on purpose."""


class SetupError(TrimtabError, ValueError):
    """A `Setup`, or the factory that should have made one, cannot be used."""


class NormalizationError(TrimtabError, ValueError):
    """Something of `trimtab.norms` was given a model, data, a parameter or an option that it cannot use."""


class RecordError(TrimtabError):
    """A record cannot be opened, read or written."""


class UsageError(TrimtabError):
    """A command was called with something it cannot use."""


class RunStopped(TrimtabError):  # noqa: N818 (it ends a run on purpose, as KeyboardInterrupt does)
    """A watched run is stopped for what was found in it (`on_finding="stop"`); the `with` block of its watch ends there."""


class StepError(TrimtabError):
    """The training step of a setup did not do what a step must do."""


class RepairError(TrimtabError, ValueError):
    """A change cannot be made to a setup, or repair was given something that it cannot use."""
