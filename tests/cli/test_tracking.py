"""`run.track` from the command line: a launch with a tracker of the user, and what it cannot disturb."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import meshctl
from meshctl.package import install_command
from tests.cli.small_launch import RECIPE, wait_for_processes
from tests.command_server import call

pytestmark = pytest.mark.slow
LOGGING = """
import os
import time
import meshctl
from meshctl import Batch, endpoint
from parts import Trainer

class Logging(Trainer):
    def setup(self) -> None:
        assert "WANDB_API_KEY" not in os.environ

    @endpoint(collect="mean")
    def update(self, batch: Batch) -> dict[str, float]:
        marker = self.run_dir / "failed"
        if self.mood == "fails" and self.step == 4 and self.rank == 0 and not marker.exists():
            marker.touch()
            while not (self.run_dir / "checkpoints" / "latest").exists():  # that of step 2
                time.sleep(0.01)
            raise ValueError("boom")
        self.log({"samples": meshctl.Table(["step"], [[self.step]])})
        return {"step": float(self.step)}
"""
TRACKER = """
import json, os, time

class Lines:
    def __init__(self, run, mood=""):
        self.file, self.mood = run.path / "lines.jsonl", mood
        self.write("key", os.environ["WANDB_API_KEY"])
    def on_attempt(self, number, step): self.write("attempt", number, step)
    def on_event(self, event): self.write("event", event.name, event.step, event.value)
    def on_row(self, row):
        self.write("row", row["step"], row["sum.step"])
        if self.mood == "fails":
            raise ConnectionError("the server is down")
    def on_end(self, code, reason): self.write("end", code, reason)
    def write(self, *what):
        with self.file.open("a") as file:
            file.write(json.dumps(what) + "\\n")
"""
KEY = {"WANDB_API_KEY": "0123456789abcdef-key"}
HIDDEN = "import meshctl.cli.launch as t; t.HIDDEN = {'own:Lines': ('WANDB_API_KEY',)}"
"""Makes the tracker one whose secret is kept from the workers."""
WITHOUT = """
from meshctl.cli import launch
from meshctl.recipe.rules import run
launch.installed_version = run.installed_version = lambda library: ""
"""


@pytest.fixture
def tracked(folder: Path) -> Path:
    (folder / "logging_parts.py").write_text(LOGGING)
    (folder / "own.py").write_text(TRACKER)
    track = "{every: 2}, track: {'own:Lines': {patience: 600}}}"
    text = RECIPE.replace("{every: 2}}", track).replace("parts.Trainer", "logging_parts.Logging")
    (folder / "recipe.yaml").write_text(text)
    return folder


def lines(run: Path) -> list[list[Any]]:
    return [json.loads(line) for line in (run / "lines.jsonl").read_text().splitlines()]


def test_a_run_that_restarts_and_is_resumed(tracked: Path) -> None:
    words = ["run.steps=4", "run.restarts=2", "components.trainer.args.mood=fails"]
    done = call(tracked, "launch", "recipe.yaml", *words, env=KEY, program=HIDDEN)
    assert done.returncode == 0, done.stderr
    [path] = (tracked / "runs" / "small").iterdir()
    done = call(tracked, "launch", str(path), "run.steps=6", env=KEY, program=HIDDEN)
    assert done.returncode == 0, done.stderr
    found = lines(path)
    assert [one for one in found if one[0] in ("attempt", "end")] == [
        *(["attempt", 0, None], ["attempt", 1, 2], ["end", 0, ""], ["attempt", 2, 4], ["end", 0, ""])
    ]
    steps = [step for name, step, *_ in found if name == "row"]
    assert steps[-4:] == [3, 4, 5, 6] and steps[:2] == [1, 2]
    events = {(name, step) for kind, name, step, *_ in ([*one[:3], None] for one in found) if kind == "event"}
    assert {("checkpoint", 2), ("checkpoint", 6), ("restarted", 2), ("media", 6)} <= events
    run = meshctl.open_run(path)
    assert [one.step for one in run.media("sum.samples")] == [1, 2, 3, 4, 5, 6] and run.media("x") == []
    assert run.media()[-1].read() == {"columns": ["step"], "rows": [[6]]}
    wait_for_processes(tracked)
    files = [one for one in path.rglob("*") if one.is_file() and one.name != "lines.jsonl"]
    assert not [one for one in files if KEY["WANDB_API_KEY"].encode() in one.read_bytes()]


def test_a_tracker_that_fails_does_not_change_the_run(tracked: Path) -> None:
    recipe = tracked / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("{patience: 600}", "{patience: 600, mood: fails}"))
    done = call(tracked, "launch", "recipe.yaml", env=KEY, program=HIDDEN)
    assert done.returncode == 0, done.stderr
    message = "tracker `own:Lines` is stopped: ConnectionError: the server is down; log: "
    assert message in done.stdout + done.stderr
    [path] = (tracked / "runs" / "small").iterdir()
    [warning] = [event for event in meshctl.open_run(path).events() if event.name == "warning"]
    assert message in warning.value["text"]
    assert "ConnectionError" in (path / "logs" / "tracker-own.Lines.log").read_text()


def test_a_library_that_is_not_installed(tracked: Path) -> None:
    done = call(tracked, "launch", "recipe.yaml", "run.track=wandb", program=WITHOUT)
    assert done.returncode == 4 and not (tracked / "runs").exists()
    assert f"tracker `wandb` needs wandb, which is not installed: {install_command('track')}" in done.stderr
    done = call(tracked, "validate", "recipe.yaml", "run.track=[tensorboard]", program=WITHOUT)
    assert done.returncode == 0 and "note[MC442]" in done.stdout + done.stderr
