"""The engine `ssh` over three hosts, which are network namespaces of this machine."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from processes import Start

from meshctl.engines.engine import Command, Job
from meshctl.engines.remote import last_error, script_of
from meshctl.engines.ssh import SshEngine, SshHandle, hosts_in
from meshctl.run.directory import RunDir
from tests.cli.commands import meshctl
from tests.engines import namespaces
from tests.engines.namespaces import Hosts
from tests.engines.processes import LONG, THREE, command_lines_with_token, name_of, plan_of, rows_of, written
from tests.paths import ROOT

LEASE = "engine.ssh.lease=6"
needs_hosts = pytest.mark.skipif(bool(namespaces.MISSING), reason=f"needs {', '.join(namespaces.MISSING)}")


def on_hosts(test: Callable[..., None]) -> Callable[..., None]:
    """Marks a test that needs namespaces as hosts."""
    for mark in (needs_hosts, pytest.mark.namespaces, pytest.mark.slow_suite):
        test = mark(test)
    return test


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with namespaces.hosts(tmp_path_factory.mktemp("hosts"), 3) as found:
        yield found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return written(tmp_path, THREE)


def is_empty(hosts: Hosts, limit_s: float) -> bool:
    """Waits until no process is left on any host."""
    end = time.monotonic() + limit_s
    while (is_left := any(map(hosts.processes, range(3)))) and time.monotonic() < end:
        time.sleep(0.2)
    return not is_left


@on_hosts
def test_grpo_over_three_hosts_equals_the_run_on_one(hosts: Hosts, tmp_path: Path) -> None:
    for place in ("here", "there"):
        shutil.copytree(ROOT / "recipes" / "arithmetic", tmp_path / place / "arithmetic")
        shutil.copy(ROOT / "recipes" / "grpo_arithmetic.yaml", tmp_path / place)
    sizes = ["groups.rollout.ranks=3", "groups.train.ranks=3", "groups.judge.ranks=3", "run.steps=6"]
    sizes += ["components.sampler.parallel.dp_size=3", "components.actor.parallel.fsdp_size=3"]
    there = meshctl(
        tmp_path / "there", "launch", "grpo_arithmetic.yaml", *sizes, "cluster.nodes=3", *hosts.options
    )
    assert there.returncode == 0, there.stderr
    here = meshctl(tmp_path / "here", "launch", "grpo_arithmetic.yaml", *sizes)
    assert here.returncode == 0, here.stderr
    assert rows_of(tmp_path / "there") == rows_of(tmp_path / "here") and len(rows_of(tmp_path / "here")) == 6
    assert is_empty(hosts, 10)


CUT = r"error: (node 1 \(\S+\) has not answered for 6 s|the connection to node 1 \(\S+\) is lost)"


@on_hosts
@pytest.mark.parametrize(
    ("number", "title", "cause"),
    [
        (1, "meshctl-fork", r"error: the node process on host \S+ \(node 1\): killed by SIGKILL"),
        (2, "two:2", r"error: two:2 failed.*SIGKILL"),
        (1, "mesh two/1", r"error: the agent of two on node 1 \(\S+\): killed by SIGKILL"),
        (1, "", CUT),
    ],
)
def test_a_fault_ends_everything_with_its_cause(
    hosts: Hosts, folder: Path, start: Start, number: int, title: str, cause: str
) -> None:
    """A process of a host is killed, or its link is cut."""
    launch = start(folder, "launch", "recipe.yaml", *LONG, *hosts.options, LEASE)
    launch.until("^step 2")
    try:
        if title:
            os.kill(next(pid for pid in hosts.processes(number) if name_of(pid) == title), signal.SIGKILL)
        else:
            hosts.link(number, "down")
        code, output = launch.end()
        assert code == 5 and re.search(cause, output), output
        assert is_empty(hosts, 30)
    finally:
        hosts.link(1, "up")


@on_hosts
def test_a_killed_head_and_an_interrupt_leave_nothing(hosts: Hosts, folder: Path, start: Start) -> None:
    launch = start(folder, "launch", "recipe.yaml", *LONG, *hosts.options, LEASE)
    launch.until("^step 2")
    assert all(hosts.processes(number) for number in range(3))
    assert not command_lines_with_token()
    launch.signal(signal.SIGKILL)
    launch.end()
    assert is_empty(hosts, 30)
    launch = start(folder, "launch", "recipe.yaml", *LONG, *hosts.options, LEASE)
    launch.until("^step 2")
    launch.signal(signal.SIGINT)
    code, output = launch.end()
    assert code == 130 and "checkpoint of step" in output
    assert is_empty(hosts, 10)
    launch = start(folder, "launch", "recipe.yaml", *hosts.options, "engine.ssh.setup=[sleep 1000]")
    end = time.monotonic() + 60
    while time.monotonic() < end and not all(hosts.processes(number) for number in range(3)):
        time.sleep(0.2)
    launch.signal(signal.SIGKILL)
    launch.end()
    assert is_empty(hosts, 30)


@on_hosts
def test_hosts_that_cannot_start_a_node_are_named(hosts: Hosts, folder: Path) -> None:
    def message(*words: str) -> str:
        done = meshctl(folder, "launch", "recipe.yaml", *hosts.options, *words)
        assert done.returncode == 4, done.stderr
        return done.stderr

    second = hosts.addresses[1]
    assert "has failed in `engine.ssh.setup`: cd /nowhere" in message("engine.ssh.setup=[cd /nowhere]")
    assert "has no meshctl: install it there" in message(
        "engine.ssh.setup=['meshctl() { :; }', 'unset -f meshctl', 'command() { false; }']"
    )
    (hosts.folder / "nobody").write_text(
        "Host *\n IdentityFile /dev/null\n IdentitiesOnly yes\n UserKnownHostsFile /dev/null\n StrictHostKeyChecking no\n LogLevel ERROR\n"
    )
    found = message(f"engine.ssh.ssh_options=[-F,{hosts.folder}/nobody]")
    assert re.search(r"host \S+ \(node \d\) is not reached by ssh: .*Permission denied", found)
    hosts.link(1, "down")
    try:
        found = message()
        assert f"host {second} (node 1) is not reached by ssh: ssh: connect to host {second} port 22" in found
    finally:
        hosts.link(1, "up")
    assert is_empty(hosts, 30)


# Without hosts


def test_the_hosts_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("# the lab\na slots=4\n\nuser@b  # the second\n")
    assert hosts_in(tmp_path / "hosts") == ("a", "user@b")


def test_the_last_error_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("Welcome\nerror: it failed\nConnection closed\n")
    assert last_error(log) == "it failed"
    log.write_text("Welcome\nssh: connect to host b port 22: No route to host\r\n\n")
    assert last_error(log) == "ssh: connect to host b port 22: No route to host"


def test_the_script_hands_over_the_token_and_ends_with_its_input(tmp_path: Path) -> None:
    show = 'echo "$MESHCTL_TOKEN $FLAVOR"; sleep 1000'
    script = script_of(["export FLAVOR=sweet"], ["sh", "-c", show])
    process = subprocess.Popen(
        ["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdin and process.stdout
    process.stdin.write("secret\n")
    process.stdin.flush()
    assert process.stdout.readline() == "secret sweet\n"
    process.stdin.close()
    assert process.wait(30) == -signal.SIGTERM
    assert process.stdout.read() == ""
    process.stdout.close()


@pytest.mark.parametrize(
    ("ends", "code", "reason"),
    [
        ("kill -KILL $$", -9, ""),
        ("exit 1", 1, ""),
        ("exit 255", 255, "host h (node 0) is not reached by ssh: "),
    ],
)
def test_the_end_of_a_node_process_is_known_here(tmp_path: Path, ends: str, code: int, reason: str) -> None:
    """A client of ssh ends with the exit code of the command, and with 255 where a signal has killed that."""
    command = SshEngine(["h"], head="lo").prepared(Command(0, ("sh", "-c", ends)))
    process = subprocess.Popen(["sh", "-c", command.argv[-1]], stdin=subprocess.PIPE, process_group=0)
    with process, process.stdin as stdin:  # type: ignore[union-attr]  # its end would end the node
        stdin.write(b"secret\n")
        stdin.flush()
        process.wait()
    job = Job(plan_of(tmp_path, ("one", 1)), RunDir(tmp_path), lambda environ: 70)
    exited = SshHandle(job, ["h"], [command], None).exited(0, process.returncode)
    assert (exited.what, exited.code) == ("the node process on host h (node 0)", code)
    assert exited.reason.startswith(reason) and bool(exited.reason) == bool(reason)


@pytest.mark.skipif(shutil.which("ssh") is None, reason="needs ssh")
def test_a_dry_run_prints_ssh_for_each_host(folder: Path) -> None:
    done = meshctl(
        folder, "launch", "recipe.yaml", "--dry-run", "engine.ssh.hosts=[127.0.0.1,u@127.0.0.2,127.0.0.3]"
    )
    assert done.returncode == 0, done.stderr
    commands = done.stdout[done.stdout.index("\nssh ") :].strip().split("\nssh ")
    assert [shlex.split(one)[-2] for one in commands] == ["127.0.0.1", "u@127.0.0.2", "127.0.0.3"]
    assert "meshctl agent --plan" in commands[1] and "--node 1 --head 127.0.0.1:PORT" in commands[1]
