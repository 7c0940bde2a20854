"""Writing this rank's part of checkpoints, in one process."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
import torch

from meshctl.plan.model import Checkpoint
from meshctl.run.directory import RunDir
from meshctl.run.events import Follower, Journal
from meshctl.runtime.checkpoint import load
from meshctl.runtime.checkpoint_writer import CheckpointWriter
from meshctl.runtime.progress import Progress
from meshctl.topology.mesh import DeviceMesh
from tests.hang import HANG_S

ALONE = DeviceMesh.from_sizes().at(0)


def writer_of(
    run: RunDir, weight: torch.Tensor, options: Checkpoint, advanced: threading.Event
) -> CheckpointWriter:
    states = {"actor": (lambda: {"w": weight}, ALONE)}
    journal = Journal(run.journal("train-0"), "train", 0)
    progress = Progress()
    progress.enter = lambda *_: advanced.set()  # type: ignore[method-assign]
    return CheckpointWriter(run, "train", 0, states, journal, options, progress)


def names(run: RunDir) -> list[tuple[str, int | None]]:
    return [(event.name, event.step) for event in Follower(run.events).new()]


def test_a_wait_advances_while_files_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that waits for a large checkpoint at its end does not hold up the run."""
    advanced, fsync = threading.Event(), os.fsync

    def wait_and_sync(descriptor: int) -> None:
        assert advanced.wait(HANG_S), "the wait has not advanced"
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", wait_and_sync)
    run, weight = RunDir(tmp_path / "run"), torch.ones(3)
    writer = writer_of(run, weight, Checkpoint(is_async=True), advanced)
    writer.save(2, {}, {})
    weight.zero_()
    writer.wait()
    assert names(run) == [("saving", 2), ("saved", 2)]
    assert load(run.checkpoint(2), "actor", {}, ALONE)["w"].tolist() == [1.0] * 3


def test_without_options_nothing_is_in_flight(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    writer_of(run, torch.ones(3), Checkpoint(), threading.Event()).save(2, {}, {})
    assert names(run) == [("saved", 2)]


def test_a_checkpoint_that_cannot_be_written_is_unsaved(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    writer = writer_of(run, torch.ones(1), Checkpoint(is_async=True), threading.Event())
    run.checkpoint(2).parent.mkdir(parents=True)
    run.checkpoint(2).touch()  # a file where the folder belongs
    writer.save(2, {}, {})
    writer.wait()
    [saving, unsaved] = Follower(run.events).new()
    assert (saving.name, unsaved.name) == ("saving", "unsaved")
    assert str(run.checkpoint(2)) in unsaved.value["error"]
