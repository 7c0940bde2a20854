"""Resolves a recipe again without nodes, devices and processes that are lost. The supervisor, which does not
know recipes, calls it when a run loses workers for good. `show-topology --lost` draws the result
beforehand."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType

from meshctl.cli.load import Launchable, Unreadable, plan_of
from meshctl.diagnostics import RecipeError
from meshctl.engines.checks.resume import changed_meshes
from meshctl.plan.model import Plan
from meshctl.plan.resizing import CannotResize, Device, Lost, resizings
from meshctl.run.directory import RunDir
from meshctl.text.english import counted, in_words

WORD = re.compile(r"(.+):([0-9]{1,9})")
NODE = "node"


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
            misfits: Iterable[tuple[str, str]] = ()  # of the newest checkpoint
            if self._run is not None and (step := self._run.saved()):
                misfits = changed_meshes(found.plan, self._run.checkpoint(step))
            if not (refusal := next((text for _, text in misfits), "")):
                self.overrides = overrides
                return found
            reason = reason or refusal
        if reason:
            raise CannotResize(reason)
        return self.whole


def lost_of(plan: Plan, words: Sequence[str]) -> Lost:
    """Returns what the options name: GROUP:RANK or node:N. Raises `ValueError` with a sentence."""
    nodes, devices, processes = set[int](), set[Device](), dict[str, int]()
    groups = {group.name: group for group in plan.groups}
    for word in words:
        found = WORD.fullmatch(word)
        name, number = (found[1], int(found[2])) if found else ("", 0)
        if name == NODE and number < plan.cluster.nodes:
            nodes.add(number)
        elif name == NODE:
            raise ValueError(f"--lost {word}: the plan has {counted(plan.cluster.nodes, 'node')}, from 0")
        elif name not in groups:
            raise ValueError(
                f"--lost must be GROUP:RANK, such as `{plan.groups[0].name}:0`, or `node:0`: {word}"
            )
        elif number >= groups[name].workers:
            raise ValueError(f"--lost {word}: `{name}` has {counted(groups[name].workers, 'worker')}, from 0")
        elif own := plan.worker(name, number).devices:
            devices.update((groups[name].device_type, device) for device in own)
        else:
            processes[name] = processes.get(name, 0) + 1
    return Lost(frozenset(nodes), frozenset(devices), processes)


def changes(resizing: Resizing, smaller: Plan, lost: Lost) -> list[str]:
    """Returns lines about what is lost, the groups that change their size, and the overrides for it."""
    names = [f"node {node}" for node in sorted(lost.nodes)]
    names += [f"{kind} device {number}" for kind, number in sorted(lost.devices)]
    names += [f"{counted(count, 'rank')} of {name}" for name, count in lost.processes.items()]
    found = [f"lost: {in_words(names)}"]
    groups = resizing.whole.plan.groups
    sizes = [
        f"{workers} of {counted(group.workers, 'worker')} of {group.name}"
        for group in groups
        if (workers := smaller.group(group.name).workers) != group.workers
    ]
    found.append(f"goes on with {in_words(sizes)}" if sizes else "no group has a worker there")
    return [*found, *([f"overrides: {' '.join(resizing.overrides)}"] if resizing.overrides else [])]
