"""`meshctl launch`, as a user calls it."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from meshctl.run.directory import RunDir
from tests.cli.commands import MAIN, meshctl
from tests.cli.small_launch import PATIENT, run_of, started, steps, wait_for_processes
from tests.command_server import Started, call, server
from tests.hang import HANG_S
from tests.log_text import own_lines


def test_dry_run_shows_everything_and_starts_nothing(folder: Path) -> None:
    done = meshctl(folder, "launch", "recipe.yaml", "--dry-run", "groups.two.ranks=4")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("small: 2 groups, 5 workers; plan ")
    assert "  two: 4 x cpu, components trainer" in lines
    assert lines[-1].startswith("meshctl agent --plan '")
    assert lines[-1].endswith("--node 0 --head 127.0.0.1:PORT")
    program = "from meshctl.engines import ray\nray.installed_version = lambda name: ''"
    done = call(folder, "launch", "recipe.yaml", "--engine", "ray", "--dry-run", program=program)
    assert done.returncode == 4 and "placement_group.json:" in done.stdout
    assert done.stderr.startswith("error: engine `ray` needs ray, which is not installed")
    assert not (folder / "runs").exists()


FEW_FILES = """
import resource
from meshctl.engines.checks import machine
machine.FILES = machine.FILES_PER_WORKER = machine.MAX_FILES_PER_WORKER = 0
resource.setrlimit(resource.RLIMIT_NOFILE, (25, 25))
"""
"""A limit that is lower than what preflight lets pass."""


def test_a_launcher_that_can_open_no_further_file_is_the_cause(folder: Path) -> None:
    done = call(folder, "launch", "recipe.yaml", program=FEW_FILES)
    line = "error: the launcher cannot open another file: its limit is 25 (`ulimit -n`)"
    assert (done.returncode, own_lines(done.stderr)) == (5, [line])


def test_a_run_and_its_continuation(folder: Path) -> None:
    """A parent that ignores the ends of its children changes nothing."""
    ignored = "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)"
    done = call(folder, "launch", "recipe.yaml", program=ignored)
    assert done.returncode == 0, done.stderr
    run = run_of(folder)
    assert steps(run) == [1, 2, 3]
    wait_for_processes(folder)
    files = "checkpoints events git.txt launches.jsonl logs metrics.jsonl plan.json recipe.yaml start.json state.json"
    assert {path.name for path in run.iterdir() if not path.name.startswith(".")} == {*files.split()}
    assert done.stdout.count(str(run)) >= 1
    (run / "checkpoints" / "latest").unlink()
    (run / "checkpoints" / "latest").symlink_to("step-2")
    done = meshctl(folder, "launch", str(run), "run.steps=5")
    assert done.returncode == 0, done.stderr
    assert steps(run) == [1, 2, 3, 4, 5]
    assert run_of(folder) == run
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["sum.seen"] == 10
    shutil.rmtree(run / "checkpoints")
    done = meshctl(folder, "launch", str(run), "run.steps=2")
    assert done.returncode == 0 and "has no checkpoint: it starts from the beginning" in done.stdout
    assert steps(run) == [1, 2]


def test_an_endpoint_that_raises(folder: Path) -> None:
    done = meshctl(folder, "launch", "recipe.yaml", "components.trainer.args.mood=raises")
    assert done.returncode == 5
    assert (
        "error: two:1 failed in stage sum, step 2: ValueError: boom\nTraceback (most recent call last):\n"
        in done.stderr
    )
    assert done.stderr.count("Traceback") == 1
    assert f"log: {run_of(folder)}/logs/two/1.log" in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["none.yaml"], 3, "none.yaml"),
        (["recipe.yaml", "groups.two.ranks=no", "--dry-run"], 1, "`ranks`"),
        (
            ["recipe.yaml", "cluster={nodes: 2}", "groups.two.ranks=4", "--dry-run"],
            4,
            "error: the plan has 2 nodes",
        ),
        (["recipe.yaml", "groups.two.env={A: '${oc.env:NO_SUCH_NAME}'}"], 4, "NO_SUCH_NAME"),
    ],
)
def test_what_is_refused_starts_nothing(folder: Path, words: list[str], code: int, message: str) -> None:
    done = meshctl(folder, "launch", *words)
    assert done.returncode == code, done.stderr
    assert message in done.stderr and "Traceback" not in done.stderr
    assert not (folder / "runs").exists()


def test_ctrl_c_reaches_the_launcher_alone_and_ends_in_order(folder: Path) -> None:
    words = ("components.trainer.args.mood=slow", PATIENT, "run.steps=100000")
    run = Started(folder, "launch", "recipe.yaml", *words)
    run.until("step 1")
    os.killpg(run.pid, signal.SIGINT)
    code, output = run.end()
    assert code == 130 and own_lines(output) == []
    events = [
        json.loads(line)
        for path in run_of(folder).glob("events/*.jsonl")
        for line in path.read_text().splitlines()
    ]
    [last] = {event["step"] for event in events if event["name"] == "done"}
    assert (run_of(folder) / "checkpoints" / "latest").resolve().name == f"step-{last}"


def test_a_run_outlives_whoever_watches_it(folder: Path) -> None:
    os.mkfifo(folder / "output")
    reader = os.open(folder / "output", os.O_RDONLY | os.O_NONBLOCK)
    files, words = (
        [folder / "output", folder / "errors"],
        ("recipe.yaml", "components.trainer.args.mood=slow"),
    )
    pid = server().start(folder, "launch", *words, "run.steps=10", env=os.environ, files=files)
    os.set_blocking(reader, True)
    assert os.read(reader, 1)
    os.close(reader)
    assert server().wait(pid) == 0
    assert steps(run_of(folder))[-1] == 10


def test_a_run_that_is_held_is_refused_before_anything_is_read(folder: Path) -> None:
    run = folder / "held"
    run.mkdir()
    with RunDir(run).lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = meshctl(folder, "launch", str(run))
    assert (done.returncode, done.stderr) == (4, f"error: the run in {run} is still running\n")


IMPORTING = f"""
import os, sys, time
launcher = os.getpid()

class Blocked:
    def find_spec(self, name, *_):
        if name == "torch" and os.getpid() == launcher:
            open("importing", "w").close()
            time.sleep({HANG_S})

sys.meta_path.insert(0, Blocked())
{MAIN}"""
"""Blocks the import of torch in the launcher."""


def test_ctrl_c_while_torch_is_imported(folder: Path) -> None:
    with started(folder, "recipe.yaml", code=IMPORTING) as run:
        while not (folder / "importing").exists():
            assert run.poll() is None
            time.sleep(0.01)
        os.killpg(run.pid, signal.SIGINT)
        _, errors = run.communicate()
    assert run.returncode == 130
    assert "meshctl" not in errors


HELLO = """
import sys
from meshctl import Component, endpoint

class Hello(Component):
    @endpoint
    def say(self):
        print("größer → \\ud800")
        return {"größe": 1.0}
"""
PRINTING = """
name: case
groups:
  a: {ranks: 1, device_type: cpu}
  b: {ranks: 1, device_type: cpu, program: {module: prints}}
components: {hello: {_target_: hello.Hello, group: a}}
pipeline: {said: {call: hello.say, in: []}}
run: {steps: 2}
"""


def test_workers_print_what_they_like_where_the_output_is_not_utf_8(tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text(HELLO)
    (tmp_path / "prints.py").write_text("print('größer')\n")
    (tmp_path / "recipe.yaml").write_text(PRINTING)
    done = subprocess.run(
        [sys.executable, "-c", MAIN, "launch", "recipe.yaml"],
        cwd=tmp_path,
        env={**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert b"is stopped" not in done.stderr and b"step 2/2" in done.stdout
    assert b"a:0: gr" in done.stdout and "größer".encode() not in done.stdout
    [path] = (tmp_path / "runs" / "case").iterdir()
    assert "größer → \\ud800" in RunDir(path).log("a", 0).read_text(encoding="utf-8")
    assert "größer" in RunDir(path).log("b", 0).read_text(encoding="utf-8")
