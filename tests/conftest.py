"""For all tests.

Nothing is timed in a test, so hypothesis gives no example a deadline. And Ctrl-C is heard: a shell that starts something in the
background has it ignored, by all that descends from it.
"""

from __future__ import annotations

import signal

from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
