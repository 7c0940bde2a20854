"""The runs whose directories, events and exit codes are part of the contract."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from meshctl.trackers.feed import descendants
from tests.command_server import Done, server
from tests.contract.answers import environment, prepared
from tests.contract.pinned import DATA, Json
from tests.engines.node.hub_server import serving

PARALLEL = 2
TOKENIZER = {"tokenizer.json": b"{}"}
"""The files of a tokenizer on the hub. No component loads them."""
WAITS_FOR_VICTIMS = """
from meshctl.engines.supervise.cause import Causes
with_victim = lambda self, of=Causes.settled.fget: of(self) if any(one.peer for one in self._found) else None
Causes.settled = property(with_victim)
"""
"""Lets a launcher end a failed run only when a peer of the worker that failed has reported that it lost it."""


def launch(folder: Path, *words: str, program: str = "", **variables: str) -> Done:
    """Launches a run and waits for its end."""
    env = environment(XDG_STATE_HOME=str(folder), **variables)
    return server().call(folder, "launch", *words, env=env, program=program)


def in_parallel(calls: Mapping[str, Callable[[], Run]]) -> dict[str, Run]:
    with ThreadPoolExecutor(PARALLEL) as pool:
        futures = {name: pool.submit(call) for name, call in calls.items()}
        return {name: future.result() for name, future in futures.items()}


@dataclass(frozen=True)
class Run:
    """One launch that has ended."""

    path: Path
    """The run directory."""
    code: int
    stdout: str
    stderr: str
    titles: frozenset[str] = frozenset()
    """The process titles seen while the run was held."""
    since: float = 0.0
    """When it was launched, in seconds since the epoch; earlier events are those of an old version."""

    @property
    def events(self) -> list[dict[str, Json]]:
        every = [event for file in sorted(self.path.glob("events/*.jsonl")) for event in json_lines(file)]
        return [event for event in every if event.get("time", self.since) >= self.since]

    @property
    def metrics(self) -> list[dict[str, Json]]:
        return json_lines(self.path / "metrics.jsonl")


def json_lines(path: Path) -> list[dict[str, Json]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def runs_of(folder: Path) -> dict[str, Run]:
    """Launches the recipe of the contract: interrupted, with a failure, restarted, replayed, and resumed."""
    calls: dict[str, Callable[[], Run]] = {
        "SIGINT": partial(interrupted, prepared(folder / "interrupted"), signal.SIGINT, workers=3),
        "failed": partial(failed, prepared(folder / "failed")),
        "checks": partial(checked, prepared(folder / "checks")),
        "restarted": partial(restarted, prepared(folder / "restarted")),
        "replayed": partial(replayed, prepared(folder / "replayed")),
    }
    calls |= {
        f"resumed {version}": partial(resumed, prepared(folder / version), version) for version in old_runs()
    }
    return in_parallel(calls)


def old_runs() -> list[str]:
    return sorted(path.name for path in (DATA / "runs").iterdir() if path.is_dir())


def ended(path: Path, done: Done, since: float = 0.0) -> Run:
    return Run(path, done.returncode, done.stdout, done.stderr, since=since)


def run_directory_of(folder: Path) -> Path:
    """Returns the only run directory. Where a launch made none, the path does not exist."""
    return next(folder.glob("runs/contract/*"), folder / "runs" / "contract" / "none")


def checked(folder: Path) -> Run:
    """Runs a recipe that downloads a tokenizer, which needs the extra `hf`. Its workers log different numbers,
    and one that is not finite."""
    with serving({"some/name": TOKENIZER}) as hub:
        limits = {"HF_HUB_DOWNLOAD_TIMEOUT": "600", "HF_HUB_ETAG_TIMEOUT": "600", "HF_HUB_OFFLINE": "0"}
        hub_of = {"HF_ENDPOINT": hub.url, "HF_HOME": str(folder / "home"), **limits}
        done = launch(folder, "checks.yaml", **hub_of)
    return ended(run_directory_of(folder), done)


def failed(folder: Path) -> Run:
    """Lets the trainer raise an exception in step 5.

    Its class is one that also means the loss of a peer, so the supervisor waits for a better cause, here until
    the other group has reported that it lost the trainer.
    """
    (folder / "fail").write_text("ConnectionResetError")
    done = launch(folder, "run.yaml", program=WAITS_FOR_VICTIMS, MESHCTL_DEVICES="cpu")
    return ended(run_directory_of(folder), done)


def restarted(folder: Path) -> Run:
    """Runs a recipe in which a group restarts alone, and the run restarts with fewer workers."""
    done = launch(folder, "restarts.yaml")
    return ended(run_directory_of(folder), done)


def replayed(folder: Path) -> Run:
    """Runs one group alone, on what an old run has recorded, and ends it early with SIGTERM."""
    source = DATA / "runs" / old_runs()[-1]
    words = ("--only", "train", "--replay", f"rollouts={source}")
    return interrupted(folder, signal.SIGTERM, *words, workers=2)


def resumed(folder: Path, version: str) -> Run:
    """Resumes a copy of an old run, after replacing the recorded path of the recipe's folder."""
    path = folder / "run"
    shutil.copytree(DATA / "runs" / version, path, symlinks=True)
    start = path / "start.json"
    start.write_text(start.read_text().replace("/tmp/meshctl-contract", str(folder)))
    since = time.time()
    return ended(path, launch(folder, "run"), since)


def interrupted(folder: Path, number: signal.Signals, *words: str, workers: int) -> Run:
    """Holds a run in step 2, reads the process titles, sends a signal, and lets the run reach its end."""
    (folder / "hold").touch()
    stdout, stderr = folder / "stdout", folder / "stderr"
    variables = environment(XDG_STATE_HOME=str(folder))
    words = ("launch", "run.yaml", "run.grace=600", *words)
    launcher = server().start(folder, *words, env=variables, files=[stdout, stderr])
    seen: set[str] = set()

    def is_held() -> bool:
        is_held = len(events_of(folder, "step")) >= workers  # each worker has ended step 1
        seen.update(titles_below(launcher))
        return is_held

    try:
        assert wait_for(is_held, launcher), stderr.read_text()
        os.kill(launcher, number)
        wait_for(lambda: bool(events_of(folder, "stopping")), launcher)
        (folder / "hold").unlink()
    except BaseException:
        os.kill(launcher, signal.SIGKILL)
        raise
    finally:
        code = server().wait(launcher)
    path = run_directory_of(folder)
    return Run(path, code, stdout.read_text(), stderr.read_text(), frozenset(seen))


def wait_for(condition: Callable[[], bool], pid: int) -> bool:
    """Whether the condition became true before the process ended."""
    while is_running(pid):
        if condition():
            return True
        time.sleep(0.02)
    return False


def is_running(pid: int) -> bool:
    """Whether a process has not ended. One that has ended exists until it is waited for."""
    return b"\nState:\tZ" not in Path(f"/proc/{pid}/status").read_bytes()


def events_of(folder: Path, name: str) -> list[Json]:
    """Returns the events of one name in a run that is still running."""
    texts = [file.read_text() for file in folder.glob("runs/*/*/events/*.jsonl")]
    whole = [line for text in texts for line in text.rpartition("\n")[0].splitlines()]
    return [event for event in map(json.loads, whole) if event["name"] == name]


def titles_below(pid: int) -> set[str]:
    """Returns the titles of all processes that descend from a process."""
    titles: set[str] = set()
    for child in descendants(pid):
        with suppress(OSError):  # the process has ended
            titles.add(Path(f"/proc/{child}/comm").read_text().rstrip("\n"))
    return titles
