"""Warnings about costs: devices that idle, and process groups across nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from meshctl.diagnostics import Diagnostic
from meshctl.recipe.load import load
from meshctl.recipe.rules import devices, rules_of
from meshctl.recipe.rules.devices import devices_are_used
from tests.paths import RECIPE_GOLDEN as GOLDEN
from tests.recipe.rules.facts import facts_of


def of_train(cluster: dict[str, Any], ranks: int, device_type: str = "cuda") -> list[Diagnostic]:
    groups = {"train": {"ranks": ranks, "device_type": device_type}}
    return list(devices_are_used(facts_of({"cluster": cluster, "groups": groups})))


def test_what_does_not_idle() -> None:
    """Devices beyond a cluster that the recipe does not state, and second mps devices, which no machine has."""
    assert not of_train({"nodes": 2}, 3) and of_train({"devices_per_node": 4}, 3)
    assert not of_train({"devices_per_node": 8}, 3, "cpu")
    assert not of_train({"nodes": 2, "devices_per_node": 2}, 1, "mps")
    (found,) = of_train({"nodes": 2, "devices_per_node": 1}, 1, "mps")
    assert found.message.startswith("1 of 2 mps devices is not used by any group, the first on node 1")


def test_a_hundred_thousand_ranks_across_nodes() -> None:
    parallel = {"pp_size": 10, "tp_size": 16, "ep_size": 8}
    recipe = {
        "cluster": {"nodes": 12_500, "devices_per_node": 8},
        "groups": {"train": {"ranks": 100_000, "device_type": "cuda"}},
        "components": {"actor": {"_target_": "arithmetic.Actor", "group": "train", "parallel": parallel}},
    }
    facts = facts_of(recipe)
    (found,) = (one for rule in rules_of(devices) for one in rule(facts) if one.code == "MC420")
    assert found.message == "all 6250 tp groups of `actor` cross nodes"
    assert found.help == "`tp_size: 8` stays inside a node"


WITHOUT_VLLM = {"MC322", "MC442"}
"""The notes that the interpreter or its library is not here."""


@pytest.mark.parametrize(
    "path", sorted((GOLDEN.parents[2] / "recipes").glob("*.yaml")), ids=lambda path: path.stem
)
def test_shipped_recipes_have_nothing_to_warn_of(path: Path) -> None:
    found = {one.code for one in load(path, [], path.parent).report.diagnostics}
    assert found <= (WITHOUT_VLLM if path.stem == "grpo_vllm" else set())
