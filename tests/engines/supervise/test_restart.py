"""Several attempts in one launcher, with the same node processes."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from processes import Launch, alive, name_of, plan_of, wait

from meshctl.engines.node.forkserver import TITLE
from meshctl.plan.model import Program


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def other_interpreter(folder: Path) -> Path:
    """The path of a link to this interpreter, which counts as another one."""
    bin = folder / "other" / "bin"
    bin.mkdir(parents=True)
    (bin / "python").symlink_to(sys.executable)
    (folder / "other" / "pyvenv.cfg").write_text((Path(sys.prefix) / "pyvenv.cfg").read_text())
    (folder / "other" / "lib").symlink_to(Path(sys.prefix) / "lib")
    return bin / "python"


def test_a_second_attempt_uses_the_same_node_process(launch: Launch, tmp_path: Path) -> None:
    """The node process, which has imported torch once, is the parent of the workers of both attempts."""
    run = launch(plan_of(tmp_path, ("one", 2), ("two", 1)), "one:1 raise first", restarts=1)
    assert run.end() == 0, run.output()
    assert [event.value["attempt"] for event in run.events("launched")] == [0, 1]
    assert [event.step for event in run.events("resumed")] == [1]
    assert len(run.events("started")) == 6
    parents = {event.value["parent"] for event in run.events("ready")}
    assert len(parents) == 1
    rows = [json.loads(line)["step"] for line in run.run.metrics.read_text().splitlines()]
    assert rows == [1, 2, 3]
    assert [event.value["code"] for event in run.events("over")] == [0]


def test_restarts_come_to_an_end(launch: Launch, tmp_path: Path) -> None:
    run = launch(plan_of(tmp_path, ("one", 2)), "one:1 raise", restarts=2)
    assert run.end() == 5
    assert [event.value["attempt"] for event in run.events("launched")] == [0, 1, 2]
    assert run.output().startswith("error: one:1 failed in stage sum, step 2: ValueError: boom")


def test_a_node_that_is_lost_is_started_again(launch: Launch, tmp_path: Path) -> None:
    run = launch(plan_of(tmp_path, ("one", 2)), "forever", restarts=1).ready(2)
    workers = [run.pid_of("one", rank) for rank in (0, 1)]
    os.kill(run.named(TITLE), signal.SIGKILL)
    wait(lambda: len(run.events("launched")) == 2, "another attempt")
    assert not any(map(alive, workers))
    run.ready(4)
    run.send(signal.SIGTERM)
    assert run.end() == 143, run.output()


def test_a_fork_server_runs_another_interpreter(launch: Launch, tmp_path: Path) -> None:
    python = str(other_interpreter(tmp_path))
    sleeper = Program(("-c", "import time; time.sleep(1000)"))
    plan = plan_of(tmp_path, ("one", 1), ("two", sleeper))
    run = launch(plan, "one:0 raise first forever", restarts=1, python={"two": python})

    def second() -> list[float]:
        (began,) = (event.time for event in run.events("resumed"))
        return [event.time for event in run.events("started") if event.time > began]

    wait(lambda: len(run.events("resumed")) == 1 and len(second()) == 3, "the workers of the second attempt")
    server = parent_of(run.pid_of("two", 0, attempt=-1))
    assert Path(f"/proc/{server}/cmdline").read_bytes().split(b"\0")[0] == python.encode()
    assert name_of(server) == TITLE
    assert parent_of(server) == parent_of(run.pid_of("one", 0, attempt=-1)) == run.named(TITLE)
    os.kill(server, signal.SIGKILL)
    assert run.end() == 5
    assert run.output().startswith(f"error: the fork server of {python}: killed by SIGKILL")


def test_an_attempt_ends_before_another_interpreter_is_ready(launch: Launch, tmp_path: Path) -> None:
    """The imports of an interpreter may take longer than an attempt that fails early. The node process is kept, and
    no worker of that attempt is started later."""
    gate, slow, attempts = tmp_path / "gate", tmp_path / "slow", tmp_path / "attempts"
    os.mkfifo(gate)
    slow.write_text(f'#!/bin/sh\nread line < {gate}\nexec {other_interpreter(tmp_path)} "$@"\n')
    slow.chmod(0o755)
    program = Program(("-c", f"import os; open({str(attempts)!r}, 'a').write(os.environ['MESHCTL_ATTEMPT'])"))
    plan = plan_of(tmp_path, ("one", 1), ("two", program))
    run = launch(plan, "one:0 raise first", restarts=1, python={"two": str(slow)})
    wait(lambda: len(run.events("resumed")) == 1, "the second attempt")
    gate.write_text("\n")
    assert run.end() == 0, run.output()
    assert attempts.read_text() == "11"
    assert len({event.value["parent"] for event in run.events("ready")}) == 1
