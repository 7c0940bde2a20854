"""The facts of a plan that decide whether a run may continue from a checkpoint: plain data for its
manifest."""

from __future__ import annotations

from typing import Any

from meshctl.plan.model import Plan, as_data

KEYS = ("seed", "components", "stages", "blocks")


def facts_of(plan: Plan) -> dict[str, Any]:
    """Returns the seed, the components with their meshes, the stages and the blocks, as in `plan.json`."""
    data: dict[str, Any] = as_data(plan)
    return {key: data[key] for key in KEYS if key in data}
