"""User-defined modes, from the decorator to the samples that each rank receives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.commands import meshctl

MODES = """
from meshctl import CollectMode, DispatchMode, ExecuteMode, RankSet


def interleaved(table, parts, options):
    return [table.select(range(part, table.total, parts)) for part in range(parts)]


def largest(parts):
    return {"largest": max(value["largest"] for value, weight in parts)}


INTERLEAVED = DispatchMode(partition=interleaved)
LARGEST = CollectMode(join=largest)
ON_THE_LAST = ExecuteMode(only=RankSet.only(lambda mesh: mesh.world_size - 1))
NOT_A_MODE = interleaved
"""

PARTS = """
from pathlib import Path
import torch
from meshctl import Batch, Component, endpoint
from modes import INTERLEAVED, interleaved


class Maker(Component):
    @endpoint
    def next(self, samples: range) -> Batch:
        return Batch({"x": torch.arange(samples.start, samples.stop)})


class Trainer(Component):
    def note(self, name, text):
        Path(f"{name}-{self.rank}-{self.step}.txt").write_text(str(text))

    @endpoint(dispatch=INTERLEAVED, collect="modes:LARGEST")
    def update(self, batch: Batch) -> dict[str, float]:
        self.note("samples", batch["x"].tolist())
        return {"largest": float(batch["x"].max())}

    @endpoint(execute="modes:ON_THE_LAST", collect="first")
    def report(self, metrics: dict) -> dict[str, float]:
        self.note("report", metrics["largest"])
        return metrics
"""

RECIPE = """
name: own
groups:
  one: {ranks: 2, device_type: cpu}
  two: {ranks: 3, device_type: cpu}
components:
  maker: {_target_: parts.Maker, group: one}
  trainer: {_target_: parts.Trainer, group: two}
pipeline:
  batch: {call: maker.next, samples: 7}
  metrics: {call: trainer.update, in: batch}
  report: {call: trainer.report, in: metrics}
run: {steps: 2, dir: runs}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in (("modes.py", MODES), ("parts.py", PARTS), ("recipe.yaml", RECIPE)):
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.slow
def test_each_rank_receives_what_the_mode_assigns_to_it(folder: Path) -> None:
    done = meshctl(folder, "launch", "recipe.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    for step in (1, 2):
        for rank in range(3):
            samples = json.loads((folder / f"samples-{rank}-{step}.txt").read_text())
            assert samples == [*range(7 * (step - 1) + rank, 7 * step, 3)]
        reports = [path.name for path in folder.glob(f"report-*-{step}.txt")]
        assert reports == [f"report-2-{step}.txt"]  # the last rank alone is called
        assert (folder / reports[0]).read_text() == str(float(7 * step - 1))


def test_reading_commands_show_the_mode_and_import_nothing(folder: Path) -> None:
    (folder / "modes.py").write_text("raise SystemExit('imported')\n" + MODES)
    checked = meshctl(folder, "validate", "recipe.yaml")
    assert checked.returncode == 0 and checked.stdout.count("note[MC527]") == 3, checked.stdout
    drawn = meshctl(folder, "show-topology", "recipe.yaml").stdout
    assert "by INTERLEAVED" in drawn and "by LARGEST" in drawn
    data = json.loads(meshctl(folder, "show-topology", "recipe.yaml", "--format", "json").stdout)
    assert data["routes"][0]["dispatch"]["mode"] == "modes:INTERLEAVED"
    assert "by INTERLEAVED" in meshctl(folder, "show-topology", "recipe.yaml", "--rank", "two:1").stdout
