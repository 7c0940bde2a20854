"""The error of a stage."""


class StageError(ValueError):
    """A mistake in a stage that its user can correct: the message is enough, without a traceback."""
