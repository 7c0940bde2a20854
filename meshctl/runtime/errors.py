"""Errors that are raised inside stages."""


class StageError(ValueError):
    """A mistake in a stage that its user can correct. It is reported without a traceback."""


class CollectiveError(ValueError):
    """A collective operation that the ranks cannot perform. It is raised before any rank waits for the
    others."""


class CheckpointError(StageError):
    """A state that cannot be stored, or a checkpoint that cannot be read or does not fit the component."""
