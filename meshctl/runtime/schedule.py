"""Computes the steps in which stages run. Every worker computes it for all stages, with the same result."""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

from meshctl.plan.model import Plan, Stage


class ScheduledStep(NamedTuple):
    """The stages of one step, and whether it ends with a checkpoint."""

    stages: frozenset[str]
    """The stages that run, on any worker, and the sources whose values are replayed."""
    is_saved: bool
    """True if a checkpoint is saved after it."""


class Schedule:
    """The stages of a plan by step. A stage runs if it is due and all stages that are its inputs run."""

    def __init__(self, plan: Plan) -> None:
        self._checkpoint = plan.run.checkpoint
        self._stages = [(stage, plan.inputs_of[stage.name]) for stage in plan.stages]
        self._blocks = {
            block.name: frozenset(stage.name for stage in plan.stages if stage.block == block.name)
            for block in plan.blocks
        }
        intervals = {stage.every for stage in plan.stages}
        if plan.run.checkpoint and plan.run.checkpoint.every:
            intervals.add(plan.run.checkpoint.every)
        self._intervals = sorted(intervals - {1})
        self._known: dict[tuple[object, ...], ScheduledStep] = {}

    def at(
        self, step: int, announced: int, *, is_open_ended: bool, replayed: Set[str], is_cut: bool = False
    ) -> ScheduledStep:
        """Returns what runs in a step. `announced` is the run's last step as far as it is known; with
        `is_open_ended`, a stream may end the run earlier. `replayed` are the sources whose values are
        replayed. `is_cut` is whether a checkpoint was requested after the step."""
        divides = tuple([step % interval == 0 for interval in self._intervals]) if self._intervals else ()
        key: tuple[object, ...] = (divides, step == 1, step == announced, is_open_ended, is_cut)
        if replayed:
            key = (*key, *replayed)
        found = self._known.get(key)
        if found is None:
            is_last = step == announced
            every = self._checkpoint.every if self._checkpoint else 0
            is_due = is_last or is_cut or (every > 0 and step % every == 0)
            is_saved = self._checkpoint is not None and is_due
            due = {"start": step == 1, "end": is_last and not is_open_ended, "checkpoint": is_saved}
            running = set(replayed)
            for stage, inputs in self._stages:
                runs = due[stage.when] if stage.when else step % stage.every == 0
                if runs and running.issuperset(inputs):
                    running.add(stage.name)
            found = self._known[key] = ScheduledStep(frozenset(running), is_saved)
        return found

    def together(self, stage: Stage) -> frozenset[str]:
        """Returns the stages of the block that a stage belongs to; none if it belongs to none."""
        return self._blocks.get(stage.block, frozenset())

    def outdated_syncs(self, ran: Set[str]) -> frozenset[str]:
        """Returns the syncs that sent weights before a later stage of the step called their component. `ran`
        are the stages that ran in the step."""
        called: set[str] = set()
        outdated: set[str] = set()
        for stage, _ in reversed(self._stages):
            if stage.kind == "call" and stage.name in ran:
                called.add(stage.component)
            elif stage.kind == "sync" and stage.name in ran and stage.component in called:
                outdated.add(stage.name)
        return frozenset(outdated)

    @property
    def late_stages(self) -> frozenset[str]:
        """The stages that may run after an unannounced end: those with `when: end` or `checkpoint`, and those
        that have such a stage as an input."""
        late: set[str] = set()
        for stage, inputs in self._stages:
            if stage.when in ("end", "checkpoint") or (not stage.when and not late.isdisjoint(inputs)):
                late.add(stage.name)
        return frozenset(late)

    def closing_stages(self, last: int, ran: Set[str], *, saves: bool) -> frozenset[str]:
        """Returns the stages that run after an unannounced end. `ran` are the stages that ran in the last
        step, before it was known to be the last; `saves` is whether a checkpoint is written now."""
        due = {"start": False, "end": True, "checkpoint": saves}
        running: set[str] = set()
        for stage, inputs in self._stages:
            is_due = last % stage.every == 0 and not running.isdisjoint(inputs)
            if stage.when:
                is_due = due[stage.when]
            if is_due and stage.name not in ran and inputs <= running | ran:
                running.add(stage.name)
        return frozenset(running)
