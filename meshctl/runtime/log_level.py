"""`run.log_level`: the records of Python's `logging` that reach a worker's log file."""

from __future__ import annotations

import logging

FORMAT = "%(levelname)s %(name)s: %(message)s"


def set_log_level(level: str) -> None:
    """Writes records of this level and above to standard error, each with its level.

    The handler is `logging.lastResort`, which Python uses only while no other handler exists. A handler that
    the user's code adds, for example by `logging.basicConfig`, replaces it.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(FORMAT))
    logging.lastResort = handler
    logging.getLogger().setLevel(level.upper())
