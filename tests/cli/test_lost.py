"""`show-topology --lost`: what would remain of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from meshctl.cli.show_topology import Options, show

RECIPE = """
name: lost
cluster: {nodes: 2, devices_per_node: 8}
groups:
  data: {ranks: 1, device_type: cpu, nodes: 0}
  train: {ranks: 16, device_type: cuda}
components:
  prompts: {_target_: parts.Prompts, group: data}
  actor: {_target_: parts.Actor, group: train, parallel: {fsdp_size: auto, tp_size: 4}}
pipeline:
  batch: {call: prompts.next, samples: 64}
  metrics: {call: actor.update, in: batch}
run: {steps: 200, checkpoint: {every: 50}, restarts: 3, elastic: {train: {min_ranks: 8}}}
"""
PARTS = """
from meshctl import Batch, Component, endpoint

class Prompts(Component):
    @endpoint
    def next(self, samples: range) -> Batch: ...

class Actor(Component):
    @endpoint
    def update(self, batch: Batch) -> dict[str, float]: ...
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lost.yaml").write_text(RECIPE)
    (tmp_path / "parts.py").write_text(PARTS)
    monkeypatch.chdir(tmp_path)


def shows(capsys: pytest.CaptureFixture[str], *lost: str, **options: Any) -> tuple[int, str, str]:
    code = show("lost.yaml", [], Options(lost=lost, **options))
    return code, *capsys.readouterr()


def test_the_picture_is_that_of_the_plan_that_remains(capsys: pytest.CaptureFixture[str]) -> None:
    code, picture, costs = shows(capsys, "train:3", format="json")
    data = json.loads(picture)
    assert code == 0 and [group["workers"] for group in data["groups"]] == [1, 12]
    assert costs.splitlines() == [
        "lost: cuda device 3",
        "goes on with 12 of 16 workers of train",
        "overrides: groups.train.ranks=[0,1,2,4,8,9,10,11,12,13,14,15] components.actor.parallel.fsdp_size=3 "
        "~run.elastic",
    ]


def test_a_lost_node_leaves_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    code, picture, costs = shows(capsys, "node:1")
    assert code == 0 and "8 of 16 workers of train" in costs and "train" in picture


@pytest.mark.parametrize(
    ("lost", "why"),
    [
        (("node:0",), "without `node:0` the run ends: `data` is not in `run.elastic`"),
        (
            ("node:1", "train:0"),
            "without `node:1` and `train:0` the run ends: `train` has 7 ranks left, and no layout",
        ),
        (("data:0",), "without `data:0` the run ends: `data` is not in `run.elastic`"),
    ],
)
def test_a_loss_that_ends_the_run(
    lost: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, picture, wrong = shows(capsys, *lost)
    assert (code, picture) == (1, "") and why in wrong


@pytest.mark.parametrize(
    ("lost", "why"),
    [
        ("node:2", "--lost node:2: the plan has 2 nodes, from 0"),
        ("train:16", "--lost train:16: `train` has 16 workers, from 0"),
        ("tain:1", "--lost must be GROUP:RANK, such as `data:0`, or `node:0`: tain:1"),
        ("train", "--lost must be GROUP:RANK, such as `data:0`, or `node:0`: train"),
    ],
)
def test_a_wrong_option(lost: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, picture, wrong = shows(capsys, lost)
    assert (code, picture) == (2, "") and why in wrong
