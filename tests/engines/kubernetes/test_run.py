"""`launch --engine jobset` with a real kubectl: an API server on loopback starts the pods as processes (`cluster.py`)."""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import MAIN
from tests.command_server import Done, Started, call
from tests.engines.kubernetes.cluster import MISSING, Cluster, cluster
from tests.engines.processes import LONG, TWO, rows_of, written
from tests.hang import HANG_S

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}")]
LIMIT_S = HANG_S


class World:
    """A folder with a recipe, and a cluster for it."""

    def __init__(self, folder: Path, made: Cluster) -> None:
        self.folder, self.cluster = folder, made
        self.launches: list[Started] = []
        self.environ = {**os.environ, **made.environ, "XDG_STATE_HOME": str(folder / "state")}
        volume = f"engine.jobset.volumes={{runs: {{claim: runs, path: {folder}/volume}}}}"
        self.options = ["recipe.yaml", "--engine", "jobset", "engine.jobset.image=train:1", volume]
        self.options += ["engine.jobset.lease=5", "run.grace=5", "engine.jobset.port=29400"]

    def call(self, *words: str) -> Done:
        return call(self.folder, *words, env=self.environ)

    def launch(self, *words: str) -> Started:
        environ = {name: value for name, value in self.environ.items() if value != os.environ.get(name)}
        launch = Started(self.folder, "launch", *self.options, *words, **environ)
        self.launches.append(launch)
        return launch

    @property
    def run(self) -> Path:
        """The run directory of the launcher."""
        [found] = self.folder.glob("runs/*/*")
        return found

    @property
    def run_of_pods(self) -> Path:
        [found] = self.folder.glob("volume/runs/*/*")
        return found

    @contextmanager
    def launch_on_terminal(self, *words: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
        """Yields a launch whose controlling terminal is a new one, and the other end of this terminal."""
        ours, theirs = os.openpty()
        argv = ["setsid", "--ctty", sys.executable, "-c", MAIN, "launch", *self.options, *words]
        environ = {**self.environ, "TERM": "xterm"}
        launch = subprocess.Popen(
            argv, cwd=self.folder, env=environ, stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        try:
            yield launch, ours
        finally:
            launch.kill()
            launch.wait()
            os.close(ours)

    def until(self, is_so: Callable[[], Any]) -> None:
        end = time.monotonic() + LIMIT_S
        while not is_so():
            assert time.monotonic() < end, [
                pod.log.read_text() for pod in self.cluster.pods if pod.log.exists()
            ]
            time.sleep(0.1)

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.call("status", "--format", "json").stdout)
        return found

    def until_step(self, step: int) -> None:
        self.until(lambda: any(row["step"] >= step for row in rows_of(self.folder / "volume")))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    written(tmp_path, TWO)
    for name in ("cluster", "volume"):
        (tmp_path / name).mkdir()
    with cluster(tmp_path / "cluster") as made:
        found = World(tmp_path, made)
        yield found
        for launch in found.launches:
            launch.kill()


@pytest.mark.slow_suite
def test_a_run_of_two_pods_equals_a_local_one(world: World) -> None:
    code, output = world.launch().end()
    assert code == 0 and "examination: it has failed" not in output, output
    local = world.call("launch", "recipe.yaml", "--engine", "loopback", "run.dir=here")
    assert local.returncode == 0, local.stderr
    [here] = world.folder.glob("here/*/*")
    assert rows_of(world.run) == rows_of(here) and len(rows_of(here)) == 3
    assert f"{world.run} is JobSet small-{world.run.name}" in output and "small: done after 3 steps" in output
    assert (
        world.run_of_pods / "checkpoints" / "step-3"
    ).is_dir() and world.run_of_pods.name == world.run.name
    [[token]] = [
        one["stringData"].values() for (kind, _), one in world.cluster.objects.items() if kind == "secrets"
    ]
    kept = [file for file in world.run.rglob("*") if file.is_file()]
    kept += [file for file in world.run_of_pods.rglob("*") if file.is_file()]
    assert not [file for file in kept if token.encode() in file.read_bytes()]
    owners = [
        one["metadata"]["ownerReferences"][0]["kind"]
        for (kind, _), one in world.cluster.objects.items()
        if kind != "jobsets"
    ]
    assert owners == ["JobSet", "JobSet"]
    status = world.call("status")
    assert status.returncode == 0 and "done" in status.stdout
    world.call("logs", "-f")


@pytest.mark.slow_suite
def test_a_pod_without_memory_is_named(world: World) -> None:
    launch = world.launch(*LONG)
    world.until_step(2)
    pod = world.cluster.pod("nodes0", 1)
    world.cluster.kill_pod(pod, "OOMKilled")
    code, output = launch.end()
    assert code == 5 and re.search(r"the connection to node 1 \(\S+\) is lost", output), output
    assert f"pod {pod.name}: OOMKilled: it needed more memory than its limit" in output


@pytest.mark.slow_suite
def test_a_deleted_pod_ends_the_run_in_order_and_is_named(world: World) -> None:
    launch = world.launch(*LONG)
    world.until_step(2)
    pod = world.cluster.pod("nodes0", 1)
    subprocess.run(["kubectl", "delete", "pod", pod.name, "--wait=false"], env=world.environ, check=True)
    code, output = launch.end()
    assert code == 143 and "node 1 has received SIGTERM from its scheduler" in output, output
    assert list(world.run_of_pods.glob("checkpoints/step-*/checkpoint.manifest.json"))


@pytest.mark.slow_suite
def test_a_detached_run_is_watched_and_stopped_from_elsewhere(world: World) -> None:
    begun = world.call("launch", *world.options, *LONG, "--detach")
    assert begun.returncode == 0 and "is JobSet small-" in begun.stdout, begun.stderr
    world.until_step(2)
    world.until(lambda: (status := world.status())["state"] == "running" and status["step"] >= 2)
    assert world.call("logs", "two:0").returncode == 0
    saved = world.call("stop", "--checkpoint")
    assert saved.returncode == 0 and "checkpoint of step" in saved.stdout, saved.stderr
    stopped = world.call("stop")
    assert stopped.returncode == 0, stopped.stderr
    assert json.loads(world.call("status", "--format", "json").stdout)["code"] == 130
    assert all(pod.is_over for pod in world.cluster.pods)


@pytest.mark.slow_suite
def test_a_lost_head_starts_again_and_continues(world: World) -> None:
    launch = world.launch("components.trainer.args.mood=slow", "run.steps=60", "engine.jobset.max_restarts=1")
    world.until_step(10)
    world.cluster.kill_pod(world.cluster.pod("nodes0", 0))
    code, output = launch.end()
    assert code == 0, output + "".join(pod.log.read_text() for pod in world.cluster.pods)
    assert list(world.cluster.restarts.values()) == [1]
    assert [row["step"] for row in rows_of(world.run_of_pods)] == list(range(1, 61))
    seen = [row["sum.seen"] for row in rows_of(world.run_of_pods)]
    assert seen == [2.0 * step for step in range(1, 61)]


@pytest.mark.slow_suite
@pytest.mark.parametrize(
    ("word", "cause"),
    [
        ("engine.jobset.setup=['cd /nowhere']", "`engine.jobset.setup` has failed: cd /nowhere"),
        ("components.trainer.args.mood=raises", "error: two:1 failed in stage sum, step 2: ValueError: boom"),
    ],
)
def test_a_failing_setup_or_worker_is_the_cause(world: World, word: str, cause: str) -> None:
    code, output = world.launch(word).end()
    assert code == 5 and cause in output, output


@pytest.mark.slow_suite
def test_a_job_that_waits_is_cancelled(world: World) -> None:
    world.cluster.is_holding = True
    begun = world.call("launch", *world.options, "--detach")
    assert begun.returncode == 0, begun.stderr
    assert json.loads(world.call("status", "--format", "json").stdout)["state"] == "queued"
    assert world.call("stop").returncode == 0
    assert not [kind for kind, _ in world.cluster.objects if kind == "jobsets"]


def test_kubectl_that_is_missing_or_fails_is_one_message(world: World) -> None:
    world.environ["PATH"] = str(world.folder)
    missing = world.call("launch", *world.options)
    assert missing.returncode == 4, missing.stderr
    assert missing.stderr.endswith(
        "error: kubectl version has failed: kubectl is not installed, or not on the PATH; the engine `jobset` needs it\n"
    )
    world.environ |= {"PATH": os.environ["PATH"], "KUBECONFIG": str(world.folder / "none")}
    failing = world.call("launch", *world.options)
    assert failing.returncode == 4 and "error: kubectl delete has failed: " in failing.stderr, failing.stderr
    assert "Traceback" not in failing.stderr


NEVER = "(?!)"


def read_until(terminal: int, pattern: str) -> str:
    """Reads what a process writes to its terminal until a pattern is in it, or until it ends."""
    text, end = "", time.monotonic() + LIMIT_S
    while time.monotonic() < end and not re.search(pattern, text):
        if not select.select([terminal], [], [], 1.0)[0]:
            continue
        try:
            text += os.read(terminal, 1 << 16).decode(errors="replace")
        except OSError:  # nobody has the other end
            break
    return text


@pytest.mark.slow_suite
@pytest.mark.parametrize(
    ("answer", "code", "state", "text"),
    [("n", 0, "running", "goes on; stop it: meshctl stop"), ("y", 130, "interrupted", "interrupted")],
)
def test_ctrl_c_on_a_terminal_asks(world: World, answer: str, code: int, state: str, text: str) -> None:
    with world.launch_on_terminal(*LONG) as (launch, terminal):
        world.until_step(2)
        os.write(terminal, b"\x03")
        asked = read_until(terminal, "it goes on]")
        assert re.search(r"stop JobSet small-\S+\? \[y/N; without an answer it goes on\]", asked), asked
        os.write(terminal, f"{answer}\n".encode())
        output = read_until(terminal, NEVER)
        assert launch.wait(LIMIT_S) == code and text in output, output
        assert json.loads(world.call("status", "--format", "json").stdout)["state"] == state
    assert world.call("stop").returncode == 0
