"""For all tests: nothing is timed in a test, so hypothesis gives no example a deadline."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
