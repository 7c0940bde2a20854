"""The fork server reports the end of a worker as it was."""

from __future__ import annotations

import os
import signal
import traceback
from pathlib import Path

from meshctl.engines.node.forkserver import Client, Ended, ForkServer, SpawnRequest, agent_sockets


def ends_of(folder: Path) -> list[tuple[int, int, bool]]:
    """Starts a worker that fails because its peer has vanished, the peer, and one that is signalled. The
    signal to the peer arrives before the peer is reaped. Returns key, code and `was_signalled` of each, as an
    agent reads them."""
    ours, theirs = agent_sockets()
    server, client = ForkServer(lambda environ: 0, -1), Client(theirs)
    server.agents.append(ours)
    output = os.open(folder / "out", os.O_WRONLY | os.O_CREAT)
    for key, script in enumerate(("exit 1", "exit 0", "sleep 1000")):
        client.start(SpawnRequest(key, f"one:{key}", {}, ("sh", "-c", script)), output)
        server.serve([ours])
    pids = [report.pid for report in client.receive(1.0)]
    for pid in pids[:2]:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    client.signal(1, signal.SIGTERM)
    server.serve([ours])
    server.reap()
    client.signal(2, signal.SIGKILL)
    server.serve([ours])
    os.waitid(os.P_PID, pids[2], os.WEXITED | os.WNOWAIT)
    server.reap()
    ends = [report for report in client.receive(1.0) if isinstance(report, Ended)]
    return [(one.key, one.code, one.was_signalled) for one in ends]


def test_a_worker_that_ends_before_the_signal_to_it_was_not_signalled(tmp_path: Path) -> None:
    code = 1
    if not (pid := os.fork()):  # the server reaps all children of its process
        try:
            code = int(sorted(ends_of(tmp_path)) != [(0, 1, False), (1, 0, False), (2, -9, True)])
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
