"""A local user without the token of a run can neither read the run's agreements nor steer or end the run."""

from __future__ import annotations

import json
import shutil
import signal
import stat
from datetime import timedelta
from pathlib import Path

import pytest
from processes import Launch, Launched, plan_of
from torch.distributed import TCPStore

from meshctl.network.control_store import StoreClient, StoreLost

KEYS = {
    "stop": "stranger",
    "ending/asked/0": json.dumps({"reason": "stranger", "ended": 2}),
    "ending/asks": "1",
    "ending/word/0": json.dumps(["last", 1]),
    "ending/word/1": json.dumps(["over", 0]),
    "ending/left/0": "",
    "ending/begun/0": "1",
    "ending/given/batch/1": "false",
}
"""Keys that would end a run if a worker or the supervisor read them."""


def write_as_stranger(run: Launched) -> None:
    """Writes all keys into the store that any local user can reach: that of torch's process groups."""
    host, _, port = run.events("ready")[0].value["head"].partition(":")
    store = TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=30))
    for key, value in KEYS.items():
        store.set(f"run/0/{key}", value)


def test_a_stranger_does_not_end_a_run(launch: Launch, tmp_path: Path) -> None:
    run = launch(plan_of(tmp_path, ("one", 2), steps=0), "forever").ready(2)
    write_as_stranger(run)
    with pytest.raises(StoreLost, match="does not have the token"):
        StoreClient(run.events("ready")[0].value["control"], "guessed")
    last = run.last_step()
    run.wait_for_step(last + 20)
    run.send(signal.SIGTERM)
    assert run.end() == 143, run.output()
    assert not [event for event in run.events("stopping") if "stranger" in event.value["reason"]]


def test_a_run_directory_is_its_owners(launch: Launch, tmp_path: Path) -> None:
    run = launch(plan_of(tmp_path, ("one", 1)))
    assert run.end() == 0, run.output()
    assert stat.S_IMODE(run.run.path.stat().st_mode) == 0o700


def test_a_run_directory_that_is_deleted_ends_the_run(launch: Launch, tmp_path: Path) -> None:
    run = launch(plan_of(tmp_path, ("one", 2), steps=0), "forever").ready(2)
    path = run.run.path
    moved = path.rename(path.with_name("moved"))  # its workers may make a folder of this name again
    shutil.rmtree(moved)
    assert run.end() == 5
    assert f"error: the run directory {path} was deleted" in run.output()
