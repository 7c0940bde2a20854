from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace

from meshctl.run.launcher import Launcher
from tests.hang import HANG_S


def test_a_process_lives_until_it_ends() -> None:
    source = (
        "import json; from meshctl.run.launcher import Launcher; import signal\n"
        "print(json.dumps(Launcher.present().to_data()), flush=True); signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True) as process:
        import json

        assert process.stdout
        launcher = Launcher.of_data(json.loads(process.stdout.readline()))
        assert launcher.pid == process.pid and launcher.is_alive() and not launcher.wait(0.0)
        assert not launcher.ignores(signal.SIGUSR1)
        assert launcher.send(signal.SIGKILL) and launcher.wait(HANG_S)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert launcher.is_alive() is False, "a process that nobody has waited for has ended"
    assert launcher.is_alive() is False and not launcher.send(signal.SIGKILL) and launcher.wait(0.0)


def test_another_process_with_its_number_is_not_the_launcher() -> None:
    other = replace(Launcher.present(), start=1)
    assert other.is_alive() is False and not other.send(signal.SIGKILL) and other.wait(0.0)


def test_what_is_not_known_is_not_guessed() -> None:
    me = Launcher.present()
    assert me.is_here and me.is_alive()
    assert replace(me, host="elsewhere", boot="other").is_alive() is None
    assert replace(me, namespace="pid:[1]").is_alive() is None
    assert replace(me, boot="the time before this machine was started again").is_alive() is False
