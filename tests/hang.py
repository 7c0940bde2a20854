"""The one limit of waits in tests, beside the limit of pytest (`timeout` in `pyproject.toml`).

A test never decides by time. A wait for another process or thread has this limit only so that a hang ends with a
message that names what was missing; it is shorter than the limit of pytest, which interrupts everything else.
"""

HANG_S = 600.0
