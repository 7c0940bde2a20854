"""`breakpoint()` in a worker. It stops only a worker that has a terminal (`launch --debug`); any other would
read the end of its standard input and fail."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any


def skip_without_terminal(worker: str) -> None:
    """Makes `breakpoint()` a warning in a worker without a terminal, unless the user has chosen a hook of
    their own: PYTHONBREAKPOINT, or `sys.breakpointhook`."""
    is_chosen = "PYTHONBREAKPOINT" in os.environ or sys.breakpointhook is not sys.__breakpointhook__
    if is_chosen or (sys.stdin is not None and sys.stdin.isatty()):
        return

    def skip(*args: Any, **options: Any) -> None:
        warnings.warn(f"breakpoint() is skipped: it needs launch --debug {worker}", stacklevel=2)

    sys.breakpointhook = skip
