"""The error of a stage."""


class StageError(ValueError):
    """A mistake in a stage that its user can correct: the message is enough, without a traceback."""


class CollectiveError(ValueError):
    """An operation that the ranks cannot do together. It is raised before any rank waits for the others."""
