"""From which checkpoint a run continues, and whether it can be loaded on the meshes of a plan, before a
worker starts."""

from __future__ import annotations

from pathlib import Path

from meshctl.engines.engine import CannotStart
from meshctl.plan.model import Plan
from meshctl.run.directory import RunDir
from meshctl.run.saved_checkpoints import NoneWhole, Whole, newest_whole
from meshctl.run.varying_state import VaryingState


def checked_resume(plan: Plan, run: RunDir) -> Whole:
    """Returns the newest whole checkpoint of a run, after comparing it with the plan. Raises
    `CannotStart`."""
    try:
        whole = newest_whole(run)
    except NoneWhole as error:
        help = f"to start from the beginning, remove {run.checkpoints}"
        raise CannotStart(f"{error}; {help}") from error
    except OSError as error:
        raise CannotStart(f"{error.filename} cannot be read: {error.strerror}") from error
    if whole.path:
        check_resume(plan, whole.path)
    return whole


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
