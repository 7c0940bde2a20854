"""The steps in which stages run, and their order in a step. Every worker computes them for all stages, with
the same result."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Set
from itertools import takewhile
from typing import NamedTuple

from meshctl.plan.model import Plan, Stage
from meshctl.runtime.user_modes import collect_mode, execute_mode
from meshctl.topology.modes import producer_set


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

    def at(
        self, step: int, announced: int, *, is_open_ended: bool, replayed: Set[str], is_cut: bool = False
    ) -> ScheduledStep:
        """Returns what runs in a step. `announced` is the run's last step as far as it is known; with
        `is_open_ended`, a stream may end the run earlier. `replayed` are the sources whose values are
        replayed. `is_cut` is whether a checkpoint was requested after the step."""
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
        return ScheduledStep(frozenset(running), is_saved)

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


class Gate(NamedTuple):
    """The place in a step where every worker learns whether some streams had data."""

    streams: tuple[Stage, ...]


class StreamOrder:
    """The order of the stages of a step where streams, which are sources without a length, may end the run.
    All workers compute the same.

    A step is part of the run only if every stream has data for it. No other stage may begin before that is
    known, because what it changes could not be undone:

        streams     are called first. Before a stream come only stages on which its call depends: those of its
                    component, the syncs of that component, and the stages that these need. A gate is also
                    between two streams of a group whose workers do not all learn of the first one's end.
        a gate      Every worker learns whether the streams before it had data. If one had none, nothing else
                    of the step is called, and the step before was the last one.
        the others  in the plan's order

    Most groups learn it from the value that they receive next: that of a stream, or that of a stage that
    another group called after the gate. The value is `END` if the data have ended. The other groups ask the
    store.
    """

    def __init__(self, plan: Plan, streams: Collection[str] = ()) -> None:
        """`streams` are the names of the sources that may end the run unannounced. Without any, the order is
        the plan's."""
        self._plan = plan
        self.items = tuple(self._ordered(streams))
        """The stages of a step and the gates."""
        self.asked = {
            stream.name: frozenset(
                group.name
                for group in plan.groups
                if plan.components_of(group.name) and not self._learns(group.name, stream, number)
            )
            for number, gate in enumerate(self.items, 1)
            if isinstance(gate, Gate)
            for stream in gate.streams
        }
        """Stream -> the names of the groups that ask the store whether it had data."""

    def readers(self, stream: str) -> int:
        """Returns the number of workers that ask the store for a stream."""
        return sum(self._plan.group(group).workers for group in self.asked.get(stream, ()))

    # Order

    def _ordered(self, streams: Collection[str]) -> list[Stage | Gate]:
        items: list[Stage | Gate] = []
        left = {stage.name: stage for stage in self._plan.stages}
        together: list[Stage] = []
        for stream in [stage for stage in self._plan.stages if stage.name in streams]:
            needed = self._needed(stream, left.values())
            group = self._plan.group_of(stream)  # whose workers may learn of the other streams' end or not
            is_unseen = self._plan.group(group).workers > 1 and any(
                group == self._plan.group_of(one) and not self._is_seen_by_all(one) for one in together
            )
            if together and (needed or is_unseen):
                items.append(Gate(tuple(together)))
                together = []
            together.append(stream)
            for stage in (*needed, stream):
                items.append(left.pop(stage.name))
        if together:
            items.append(Gate(tuple(together)))
        return [*items, *left.values()]

    def _needed(self, stream: Stage, stages: Iterable[Stage]) -> list[Stage]:
        """Returns those of the stages before a stream on which its call depends. A block is one unit."""
        units: dict[str, list[Stage]] = {}
        for stage in takewhile(lambda stage: stage.name != stream.name, stages):
            units.setdefault(stage.block or stage.name, []).append(stage)
        components, values, needed = {stream.component}, set[str](), list[list[Stage]]()
        for unit in reversed(units.values()):
            used = {name for stage in unit for name in (stage.component, stage.to) if name}
            if used.isdisjoint(components) and values.isdisjoint(stage.name for stage in unit):
                continue
            components |= used
            values |= {name for stage in unit for name in self._plan.inputs_of[stage.name]}
            needed.append(unit)
        return [stage for unit in reversed(needed) for stage in unit]

    # The groups that ask the store

    def _learns(self, group: str, stream: Stage, number: int) -> bool:
        """Returns whether all workers of a group learn of a stream's end before they call another stage: by
        themselves, or from an input of the first stage that they call. The item `number` is the first one
        after the gate."""
        if group == self._plan.group_of(stream) and self._is_seen_by_all(stream):
            return True
        after = [item for item in self.items[number:] if isinstance(item, Stage)]
        first = next((stage for stage in after if group in self._groups_of(stage)), None)
        if first is None or not self._runs_with(first, stream):
            return False
        return self._has_telling_input(first, stream, group, after)

    def _groups_of(self, stage: Stage) -> set[str]:
        return {self._plan.component(name).group for name in (stage.component, stage.to) if name}

    def _is_seen_by_all(self, stream: Stage) -> bool:
        """Returns whether every worker of a stream's group produces a share of it, and learns of the shares
        of the others when it sends its own."""
        mesh = self._plan.component(stream.component).mesh
        producers = producer_set(collect_mode(stream.collect), execute_mode(stream.execute))
        targets = [route.target for route in self._plan.routes if route.source == stream.name]
        is_sent = any(self._runs_with(self._plan.stage(target), stream) for target in targets)
        return is_sent and producers.count(mesh) == mesh.world_size

    def _has_telling_input(self, stage: Stage, stream: Stage, group: str, after: Iterable[Stage]) -> bool:
        """Returns whether every worker of a group learns from an input of a stage that the stream had data.
        Such an input is the value of the stream, or of a stage that another group calls after the gate."""
        if stage.kind != "call" or stage.block or not execute_mode(stage.execute).is_joint:
            return False
        telling = {
            other.name
            for other in after
            if not other.block and other.kind == "call" and self._plan.group_of(other) != group
        }
        return not self._plan.inputs_of[stage.name].isdisjoint(telling | {stream.name})

    def _runs_with(self, stage: Stage, stream: Stage) -> bool:
        if stage.when or stream.every % stage.every:
            return False
        known = {other.name: other for other in self._plan.stages}
        inputs = self._plan.inputs_of[stage.name]
        return all(name in known and self._runs_with(known[name], stream) for name in inputs)
