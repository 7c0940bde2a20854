"""The commands."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collection() -> Iterator[None]:
    """Context manager for imports. What they make is never garbage, and each collection reads all of it: a
    fifth of the time of importing torch."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
