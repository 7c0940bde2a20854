"""Resolves a recipe again without nodes, devices and processes that are lost. The supervisor, which does not
know recipes, calls it when a run loses workers for good. `show-topology --lost` draws the result
beforehand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

from meshctl.cli.load import Launchable, Unreadable, plan_of
from meshctl.diagnostics import RecipeError
from meshctl.engines.checks.resume import changed_meshes
from meshctl.plan.model import Plan
from meshctl.plan.resizing import CannotResize, Lost, resizings
from meshctl.run.directory import RunDir


class Resizing:
    def __init__(
        self,
        recipe: str,
        overrides: Sequence[str] = (),
        held: Mapping[str, bytes] = MappingProxyType({}),
        run: RunDir | None = None,
    ) -> None:
        """`recipe` is a file or a run directory, and `run` the run whose newest checkpoint the smaller plan
        must be able to load."""
        self._recipe, self._given, self._held, self._run = recipe, [*overrides], held, run
        self.overrides: list[str] = []
        """The overrides of the recipe that was found last."""

    @cached_property
    def whole(self) -> Launchable:
        return plan_of(self._recipe, self._given, self._held)

    def __call__(self, lost: Lost) -> Plan:
        """Returns the plan of `without`. Raises `CannotResize`, also if the recipe can no longer be read."""
        try:
            return self.without(lost).plan
        except (RecipeError, Unreadable) as error:
            reason = error.report.errors[0].message
            raise CannotResize(f"the recipe of the run cannot be resolved again: {reason}") from None

    def without(self, lost: Lost) -> Launchable:
        """Returns the recipe with the largest groups that use nothing of what is lost. Raises
        `CannotResize`."""
        assert self.whole.facts is not None
        reason, self.overrides = "", []
        for overrides in resizings(self.whole.facts.recipe, self.whole.plan, lost):
            try:
                found = plan_of(self._recipe, [*self._given, *overrides], self._held)
            except RecipeError as error:
                reason = reason or error.report.errors[0].message
                continue
            if not (refusal := self._refusal(found.plan)):
                self.overrides = overrides
                return found
            reason = reason or refusal
        if reason:
            raise CannotResize(reason)
        return self.whole

    def _refusal(self, plan: Plan) -> str:
        """Returns why the newest checkpoint does not fit a plan; empty if it does, or if there is none."""
        if self._run is None or not (step := self._run.saved()):
            return ""
        checkpoint = self._run.checkpoint(step)
        return next((reason for _, reason in changed_meshes(plan, checkpoint)), "")


def resizing_of(run: RunDir) -> Resizing:
    """Returns that of a run whose recipe is in its directory."""
    return Resizing(str(Path(run.path)), run=run)
