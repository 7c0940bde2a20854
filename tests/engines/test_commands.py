"""`launch --engine commands`, `meshctl head` and `meshctl agent` as a user starts them: two nodes on loopback."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import stat
import threading
from pathlib import Path

import pytest
from processes import TWO, Start, events_of, rows_of, written

from tests.cli.commands import meshctl
from tests.command_server import Started

ENGINE = ["--engine", "commands", "engine.commands.head=lo"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return written(tmp_path, TWO)


def local_addresses() -> list[str]:
    """Returns the loopback addresses of this machine, IPv6 last."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return ["127.0.0.1"]
    return ["127.0.0.1", "::1"]


def agents_of(run: Path, folder: Path, start: Start) -> list[Started]:
    """Starts the printed command lines."""
    lines = (run / "commands.txt").read_text().splitlines()
    return [start(folder, *shlex.split(line)[1:]) for line in lines]


def losses(run: Path) -> list[object]:
    return [row["sum.seen"] for row in rows_of(run)]


@pytest.mark.slow
def test_a_run_of_two_nodes_and_its_continuation_by_a_head_that_is_killed(folder: Path, start: Start) -> None:
    launch = start(
        folder, "launch", "recipe.yaml", *ENGINE, "components.trainer.args.mood=slow", "run.steps=400"
    )
    run = Path(launch.until(r"--plan (\S+)/plan.json --node 1 --head 127.0.0.1:\d+$")[1])
    launch.until("set MESHCTL_TOKEN")
    assert stat.S_IMODE((run / ".token").stat().st_mode) == 0o600
    token = (run / ".token").read_text().strip()
    assert token not in " ".join(map(str, [launch.lines, (run / "commands.txt").read_text()]))
    first = agents_of(run, folder, start)
    launch.until("^step [1-9]")
    launch.signal(signal.SIGINT)
    code, output = launch.end()
    assert code == 130, output
    assert [agent.end()[0] for agent in first] == [0, 0]
    assert not (run / "head.json").exists() and not (run / ".token").exists()
    begun = losses(run)
    assert 0 < len(begun) < 400

    head = start(folder, "head", "--plan", str(run / "plan.json"), "--host", local_addresses()[-1])
    head.until("set MESHCTL_TOKEN")
    again = [start(folder, "agent", "--plan", str(run / "plan.json"), "--node", f"{node}") for node in (0, 1)]
    head.until(f"^step {len(begun) + 1}")
    head.signal(signal.SIGKILL)
    for number, agent in enumerate(again):
        code, output = agent.end()
        assert code == 1
        assert re.search(rf"error: node {number} ends: the head at \S+ has closed the connection", output)
    assert losses(run)[: len(begun)] == begun


@pytest.mark.slow
def test_a_node_has_not_failed_if_a_restart_follows_the_death_of_its_worker(
    folder: Path, start: Start
) -> None:
    words = ["components.trainer.args.mood=slow", "run.steps=40", "+run.restarts.times=1"]
    launch = start(folder, "launch", "recipe.yaml", *ENGINE, *words)
    run = Path(launch.until(r"--plan (\S+)/plan.json --node 1")[1])
    agents = agents_of(run, folder, start)
    launch.until("^step [1-9]")
    [pid] = [one.value["pid"] for one in events_of(run, "started") if (one.group, one.rank) == ("two", 1)]
    os.kill(int(pid), signal.SIGKILL)
    code, output = launch.end()
    assert [code, agents[1].end()[0]] == [0, 0], output


def test_a_dry_run_prints_the_head_and_each_node_and_writes_nothing(folder: Path) -> None:
    done = meshctl(folder, "launch", "recipe.yaml", *ENGINE, "--dry-run", "engine.commands.setup=[cd /x]")
    assert done.returncode == 0, done.stderr
    plan = f"{folder}/runs/small/TIME/plan.json"
    assert f"\nmeshctl head --plan {plan} --host 127.0.0.1\n" in done.stdout
    nodes = [line for line in done.stdout.splitlines() if line.startswith("sh -c")]
    assert nodes == [
        f"sh -c 'cd /x && exec meshctl agent --plan {plan} --node {node} --head 127.0.0.1:PORT'"
        for node in (0, 1)
    ]
    assert not (folder / "runs").exists()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the plan of a run whose head was not started."""
    from meshctl.cli.load import plan_of
    from meshctl.run.directory import RunDir, Start

    folder = written(tmp_path_factory.mktemp("prepared"), TWO)
    ready = plan_of(str(folder / "recipe.yaml"), [])
    (folder / "plan.json").write_text(ready.plan.to_json())
    RunDir(folder).write_start(Start((str(folder),)))
    return folder / "plan.json"


def refused(plan: Path, *words: str, **environ: str) -> tuple[int, str]:
    done = Started(plan.parent, "agent", "--plan", str(plan), "--node", "1", *words, **environ)
    return done.end()


def test_an_agent_names_what_keeps_it_from_its_head(prepared: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # nobody listens at the port, and nobody else can take it
        free = f"127.0.0.1:{silent.getsockname()[1]}"
        token = {"MESHCTL_TOKEN": "token"}
        code, output = refused(prepared, "--head", free, **token)
        assert (
            code == 4
            and f"error: node 1 cannot reach the head at {free}: connection refused; look whether" in output
        )
        code, output = refused(prepared, "--head", "no-such-host.invalid:80", **token)
        assert (
            code == 4
            and "the name no-such-host.invalid is unknown here; give the head an IP address" in output
        )
        code, output = refused(prepared, "--head", "fd88::254", **token)
        assert code == 2 and "--head must be HOST:PORT, not 'fd88::254'" in output
        code, output = refused(prepared, **token)
        assert code == 4 and f"no head has written its address to {prepared.parent}/head.json" in output
        code, output = refused(prepared, "--head", free)
        assert code == 2 and "the token of the run is neither in MESHCTL_TOKEN nor in" in output


def test_a_head_refuses_another_plan(prepared: Path) -> None:
    from meshctl.engines.supervise.nodes import Nodes

    listener = socket.create_server(("127.0.0.1", 0))
    nodes = Nodes(listener, "token", 0.0, digest="another")
    nodes.begin({"type": "attempt", "number": 0}, {1: ["two"]})
    is_over = threading.Event()

    def serve() -> None:
        while not is_over.wait(0.01):
            nodes.poll()

    thread = threading.Thread(target=serve)
    thread.start()
    head = f"127.0.0.1:{listener.getsockname()[1]}"
    code, output = refused(prepared, "--head", head, MESHCTL_TOKEN="token")
    is_over.set()
    thread.join()
    nodes.close()
    digest = json.loads(prepared.read_text())["digest"]
    assert code == 4
    assert output == (
        f"error: the head at {head} refuses node 1: the head runs the plan another, and this node has {digest}\n"
    )


def test_head_refuses_what_is_no_run(tmp_path: Path) -> None:
    done = meshctl(tmp_path, "head", "--plan", "plan.json")
    assert done.returncode == 2 and "is not the plan of a run: no such file or directory" in done.stderr
