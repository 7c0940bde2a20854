"""Whether the checkpoint of a run can be loaded on the meshes of a plan, before a worker starts."""

from __future__ import annotations

from pathlib import Path

from meshctl.engines.engine import CannotStart
from meshctl.plan.model import Plan
from meshctl.run.varying_state import VaryingState


def check_resume(plan: Plan, checkpoint: Path) -> None:
    """Raises `CannotStart` for a component whose state differs between ranks along dims whose sizes have
    changed since the checkpoint."""
    for component in plan.components:
        if component.frozen:
            continue
        try:
            varying = VaryingState.read(checkpoint / component.name)
        except ValueError as error:
            raise CannotStart(str(error)) from error
        if reason := varying.refusal(component.name, component.mesh):
            raise CannotStart(f"{checkpoint}: {reason}")
