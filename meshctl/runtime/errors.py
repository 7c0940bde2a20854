"""Errors that are raised inside stages."""


class StageError(ValueError):
    """A mistake in a stage that its user can correct. It is reported without a traceback."""


class CollectiveError(ValueError):
    """A collective operation that the ranks cannot perform. It is raised before any rank waits for the
    others."""
