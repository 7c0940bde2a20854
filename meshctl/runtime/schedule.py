"""Which stages run in which step, on any worker: the same answer everywhere."""

from __future__ import annotations

from collections.abc import Set

from meshctl.plan.model import Plan, Stage


class Schedule:
    """The stages of a plan by step. A stage runs where it is due and all stages that it takes run."""

    def __init__(self, plan: Plan) -> None:
        self._checkpoint = plan.run.checkpoint
        self._stages = [
            (stage, frozenset(name for part in stage.inputs for name in part.stages)) for stage in plan.stages
        ]
        self._intervals = sorted({stage.every for stage in plan.stages} - {1})
        self._known: dict[tuple[object, ...], frozenset[str]] = {}

    def has_checkpoint(self, step: int, announced: int) -> bool:
        """Returns whether a checkpoint is saved after a step; `announced` is the run's last one."""
        if self._checkpoint is None:
            return False
        every = self._checkpoint.every
        return step == announced or (every > 0 and step % every == 0)

    def stages(self, step: int, *, is_last: bool, is_saved: bool, replayed: Set[str]) -> frozenset[str]:
        """Returns the stages of a step, by name, and the sources whose values are `replayed` in it."""
        divides = tuple([step % interval == 0 for interval in self._intervals])
        key = (divides, step == 1, is_last, is_saved, frozenset(replayed))
        found = self._known.get(key)
        if found is None:
            due = {"start": step == 1, "end": is_last, "checkpoint": is_saved}
            running = set(replayed)
            for stage, inputs in self._stages:
                is_due = due[stage.when] if stage.when else step % stage.every == 0
                if is_due and running.issuperset(inputs):
                    running.add(stage.name)
            found = self._known[key] = frozenset(running)
        return found

    def closing_stages(self) -> frozenset[str]:
        """Returns the stages that run once more after an unannounced end: those with `when: end`, and those
        that take nothing else."""
        running: set[str] = set()
        for stage, inputs in self._stages:
            takes_closing = bool(inputs) and not stage.when and running.issuperset(inputs)
            if takes_closing or (stage.when == "end" and running.issuperset(inputs)):
                running.add(stage.name)
        return frozenset(running)


def bounds_run(stage: Stage) -> bool:
    """Returns whether the run ends with this source's data; a source that runs at certain times only repeats
    itself."""
    return stage.is_source and not stage.when
