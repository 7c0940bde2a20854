"""The groups of a recipe whose ranks are kept in one rack."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshctl.recipe.allocation import allocation_of
from meshctl.recipe.load import load

RECIPE = """
cluster: {nodes: 4, devices_per_node: 4, DOMAINS}
groups:
  other: {ranks: 6, device_type: cuda}
  train: {ranks: 8, device_type: cuda}
components:
  rows: {_target_: parts.Rows, group: other}
  actor: {_target_: parts.Rows, group: train, parallel: {fsdp_size: 8}}
pipeline:
  batch: {call: rows.next, samples: 8}
  more: {call: actor.next, samples: 8}
run: {steps: 1}
"""
PARTS = """
from meshctl import Component, endpoint


class Rows(Component):
    @endpoint
    def next(self):
        return {"x": 1}
"""


@pytest.mark.parametrize(
    ("domains", "devices"),
    [("domains: {rack: 2}", ((8, 16),)), ("domains: {rack: 1}", ((6, 14),)), ("", ((6, 14),))],
)
def test_fsdp_is_in_one_rack_where_it_fits_there(
    tmp_path: Path, domains: str, devices: tuple[tuple[int, int], ...]
) -> None:
    (tmp_path / "parts.py").write_text(PARTS)
    text = RECIPE.replace(", DOMAINS", f", {domains}" if domains else "")
    (tmp_path / "recipe.yaml").write_text(text)
    loaded = load("recipe.yaml", (), tmp_path)
    assert allocation_of(loaded.recipe).devices["train"] == devices
