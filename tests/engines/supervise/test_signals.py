"""The signals of a launcher end its wait at once."""

from __future__ import annotations

import os
import signal

from meshctl.engines.supervise.signals import Signals


def test_a_signal_ends_a_wait() -> None:
    reader, writer = os.pipe()
    before = signal.getsignal(signal.SIGUSR1)
    with Signals().handled() as signals:
        os.kill(os.getpid(), signal.SIGUSR1)
        signals.wait([reader], 10_000.0)  # longer than the time limit of a test
        assert signals.take_save_request() and not signals.first
        os.write(writer, b"x")
        signals.wait([reader], 10_000.0)
    assert signal.getsignal(signal.SIGUSR1) is before and signal.set_wakeup_fd(-1) == -1
    for number in (reader, writer):
        os.close(number)
