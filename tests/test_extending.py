"""Every example of docs/extending.md is executed as it stands, and is short."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from meshctl import trackers
from meshctl.diagnostics import Diagnostic
from meshctl.recipe import rules
from meshctl.recipe.load import load
from meshctl.run.directory import RunDir
from meshctl.trackers import tracker_named
from tests.command_server import call
from tests.paths import ROOT

TEXT = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
MAX_LINES = 30
EXAMPLES = {
    title: re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    for title, section in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", TEXT, re.DOTALL | re.MULTILINE)
}
RECIPE = """
name: extended
groups: {make: {ranks: 1, device_type: cpu}, work: {ranks: 2, device_type: cpu}}
components:
  numbers: {_target_: scale.Numbers, group: make}
  scale: {_target_: scale.Scale, group: work, args: {factor: 3.0}}
  trainer: {_target_: trainer.Trainer, group: work}
pipeline:
  batch: {call: numbers.next, samples: 8}
  scaled: {call: scale.apply, in: batch}
  seen: {call: trainer.note, in: batch}
  last: {call: trainer.report, in: seen}
run: {steps: 1}
"""
CONSUMER = """
from pathlib import Path
from meshctl import Batch, Component, ExecuteMode, RankSet, endpoint

ON_THE_LAST = ExecuteMode(only=RankSet.only(lambda mesh: mesh.world_size - 1))


class Trainer(Component):
    @endpoint(dispatch="modes:INTERLEAVED", collect="modes:LARGEST")
    def note(self, batch: Batch) -> float:
        Path(f"seen-{self.rank}.txt").write_text(str(batch["x"].tolist()))
        return float(batch["x"].max())

    @endpoint(execute="trainer:ON_THE_LAST", collect="first")
    def report(self, largest: float) -> None:
        Path(f"report-{self.rank}.txt").write_text(str(largest))
"""
LAUNCH = """
import sys
from meshctl.cli.launch import Options, launch
from meshctl.engines.engine import ENGINES
ENGINES["exec"] = "extension:ExecEngine"
sys.exit(launch("recipe.yaml", [], Options(engine="exec")))
"""


@pytest.mark.parametrize("title", EXAMPLES)
def test_each_example_is_short(title: str) -> None:
    [code] = EXAMPLES[title]
    assert len([line for line in code.splitlines() if line.strip()]) < MAX_LINES


def module(title: str) -> ModuleType:
    made = ModuleType("example")
    [code] = EXAMPLES[title]
    exec(compile(code, title, "exec"), made.__dict__)
    return made


@pytest.mark.slow
def test_a_component_a_mode_and_an_engine_run(tmp_path: Path) -> None:
    write_recipe(tmp_path)
    (tmp_path / "extension.py").write_text(EXAMPLES["An engine"][0])
    run = [sys.executable, "-c", LAUNCH]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    seen = [json.loads((tmp_path / f"seen-{rank}.txt").read_text()) for rank in range(2)]
    assert seen == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert [(path.name, path.read_text()) for path in tmp_path.glob("report-*")] == [("report-1.txt", "7.0")]
    [metrics] = tmp_path.glob("runs/extended/*/metrics.jsonl")
    [row] = map(json.loads, metrics.read_text().splitlines())
    assert row["scaled.x"] == 10.5


def write_recipe(folder: Path) -> None:
    for name, title in (("scale", "A component"), ("modes", "A mode")):
        (folder / f"{name}.py").write_text(EXAMPLES[title][0])
    (folder / "trainer.py").write_text(CONSUMER)
    (folder / "recipe.yaml").write_text(RECIPE)


def test_reading_commands_show_a_mode_and_import_nothing(tmp_path: Path) -> None:
    write_recipe(tmp_path)
    (tmp_path / "modes.py").write_text("raise SystemExit('imported')\n" + EXAMPLES["A mode"][0])
    checked = call(tmp_path, "validate", "recipe.yaml")
    assert checked.returncode == 0 and checked.stdout.count("note[MC527]") == 3, checked.stdout
    drawn = call(tmp_path, "show-topology", "recipe.yaml").stdout
    assert "by INTERLEAVED" in drawn and "by LARGEST" in drawn
    data = json.loads(call(tmp_path, "show-topology", "recipe.yaml", "--format", "json").stdout)
    assert "modes:INTERLEAVED" in {route["dispatch"]["mode"] for route in data["routes"]}


def test_a_rule(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(rules, "RULES", (*rules.RULES, *rules.rules_of(module("A rule"))))
    write_recipe(tmp_path)
    codes = [found.code for found in report(tmp_path, "name=short")]
    assert "MC599" not in codes
    [found] = [found for found in report(tmp_path, f"name={'long' * 11}") if found.code == "MC599"]
    assert found.message == "`name` has 44 characters, 40 fit" and found.primary is not None


def report(folder: Path, override: str) -> tuple[Diagnostic, ...]:
    return load("recipe.yaml", [override], folder).report.diagnostics


def test_a_tracker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "example", module("A tracker"))
    monkeypatch.setitem(trackers.TRACKERS, "csv", "example:Csv")
    tracker = tracker_named("csv", RunDir(tmp_path), metric="loss.mean")
    tracker.on_attempt(0, None)
    tracker.on_row({"step": 1, "time": 0.0, "loss.mean": 0.5})
    tracker.on_row({"step": 2, "time": 1.0})
    tracker.on_end(0, "")
    assert (tmp_path / "metrics.csv").read_text() == "step,value\n1,0.5\n2,\n"
