"""The rule about methods that return nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshctl.recipe.load import load

CLASSES = """
import functools
import torch
from meshctl import Batch, Component, endpoint

class Data(Component):
    @endpoint
    def next(self, samples): return Batch({"x": list(samples)})

    @endpoint
    def forgotten(self, samples):
        Batch({"x": list(samples)})

    @endpoint
    def ends(self, samples):
        return None

class Judge(Component):
    @endpoint
    def forgotten(self, batch):
        def inner():
            return batch
        self.kept = inner()

    @endpoint
    @torch.no_grad()
    def without_gradients(self, batch):
        if not batch:
            return
        self.kept = batch

    @endpoint
    def annotated(self, batch: Batch) -> None:
        self.kept = batch

    @endpoint
    def sometimes(self, batch):
        if len(batch):
            return batch

    @endpoint
    def yields(self, batch):
        yield batch

    @endpoint
    @functools.cache
    def wrapped(self, batch):
        self.kept = batch

    @endpoint
    def placeholder(self, batch): ...

    @endpoint
    def unfinished(self, batch):
        raise NotImplementedError

    @endpoint
    def update(self, batch): return {"loss": 1.0}
"""
RECIPE = """
groups:
  g: {{ranks: 1, device_type: cpu}}
components:
  data: {{_target_: judging.Data, group: g}}
  judge: {{_target_: judging.Judge, group: g}}
pipeline:
  batch: {{call: {source}, samples: 4}}
  scored: {{call: {call}, in: batch}}
  metrics: {{call: judge.update, in: {taken}, collect: mean}}
run: {{steps: 3}}
"""


def messages(
    folder: Path, source: str = "data.next", call: str = "judge.update", taken: str = "batch"
) -> list[str]:
    """The errors of a recipe with these methods; `taken` is the stage that the last one takes."""
    (folder / "judging.py").write_text(CLASSES)
    (folder / "recipe.yaml").write_text(RECIPE.format(source=source, call=call, taken=taken))
    loaded = load("recipe.yaml", (), folder, environ={}, detect=lambda: "cpu")
    return [f"{one.code} {one.message}" for one in loaded.report.diagnostics if one.severity == "error"]


@pytest.mark.parametrize("method", ["forgotten", "without_gradients", "annotated"])
@pytest.mark.parametrize("collect", ["flatten", "mean"])
def test_a_stage_whose_value_is_taken_returns_one(method: str, collect: str, tmp_path: Path) -> None:
    call = f"judge.{method}, collect: {collect}"
    assert messages(tmp_path, call=call, taken="scored") == [
        f"MC524 `judge.{method}` returns nothing, but another stage takes the value of stage `scored`"
    ]
    assert messages(tmp_path, call=call) == []


@pytest.mark.parametrize("collect", ["first", "none", "last_pp"])
def test_modes_that_join_nothing_also_pass_on_none(collect: str, tmp_path: Path) -> None:
    assert messages(tmp_path, call=f"judge.forgotten, collect: {collect}", taken="scored") == []


@pytest.mark.parametrize("method", ["sometimes", "yields", "wrapped", "placeholder", "unfinished"])
def test_only_a_proof_is_reported(method: str, tmp_path: Path) -> None:
    assert messages(tmp_path, call=f"judge.{method}", taken="scored") == []


@pytest.mark.parametrize("method", ["forgotten", "ends"])
def test_a_source_returns_batches(method: str, tmp_path: Path) -> None:
    message = f"MC524 `data.{method}` returns nothing, but a source must return batches"
    assert messages(tmp_path, source=f"data.{method}") == [message]
