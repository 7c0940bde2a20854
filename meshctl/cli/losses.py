"""`show-topology --lost`: what would remain of a run without a worker or a node, and what that would cost."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from meshctl.cli.load import Launchable
from meshctl.cli.resizing import Resizing
from meshctl.engines.checks.requirements import amount
from meshctl.plan.model import Plan
from meshctl.plan.resizing import Device, Lost, available
from meshctl.recipe.rules.memory import checkpoint_bytes_of
from meshctl.run.row_file import last_row
from meshctl.text.english import counted, in_units, in_words

WORD = re.compile(r"(.+):([0-9]{1,9})")
NODE = "node"


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


def costs(resizing: Resizing, smaller: Launchable, lost: Lost) -> list[str]:
    """Returns lines about the sizes that change, idle devices, lost steps and bytes that are re-sharded."""
    whole = resizing.whole
    changes, idle = [*_changes(whole.plan, smaller.plan, lost)], _idle(whole.plan, smaller.plan, lost)
    lines = [f"lost: {in_words([*_names(lost)])}"]
    lines.append(f"goes on with {in_words(changes)}" if changes else "no group has a worker there")
    if idle:
        lines.append(f"idle: {in_words(idle)}")
    if changes:
        lines.append(f"lost steps: {_steps(whole)}")
        size = checkpoint_bytes_of(whole.facts) if whole.facts and whole.plan.run.checkpoint else 0
        read = f"at least {amount(size)}, the state of the checkpoint" if size else "not known"
        lines.append(f"bytes to re-shard: {read}")
    if resizing.overrides:
        lines.append(f"overrides: {' '.join(resizing.overrides)}")
    return lines


def _names(lost: Lost) -> Iterator[str]:
    yield from (f"node {node}" for node in sorted(lost.nodes))
    yield from (f"{kind} device {number}" for kind, number in sorted(lost.devices))
    yield from (f"{counted(count, 'rank')} of {name}" for name, count in lost.processes.items())


def _changes(was: Plan, now: Plan, lost: Lost) -> Iterator[str]:
    for group in was.groups:
        if (workers := now.group(group.name).workers) != group.workers:
            yield f"{workers} of {counted(group.workers, 'worker')} of {group.name}"


def _idle(was: Plan, now: Plan, lost: Lost) -> list[str]:
    """Returns the ranks that are left and that no worker uses."""
    found = []
    for group in was.groups:
        count = available(was, group, lost).count
        used = now.group(group.name).workers * (1 if group.device_type == "cpu" else group.gpus_per_worker)
        if count > used:
            found.append(f"{counted(count - used, 'rank')} of {group.name}")
    return found


def _steps(whole: Launchable) -> str:
    """Returns the steps that would run again: those since the newest checkpoint of a run, or of any one."""
    saving, run = whole.plan.run.checkpoint, whole.resume
    if run is not None:
        row = last_row(run.metrics)
        done, saved = int(row["step"]) if row else 0, run.saved()
        where = f"the checkpoint of step {saved}" if saved else "the beginning"
        return f"{max(0, done - saved)}, from {where} to step {done}"
    if saving is None:
        return "all, because the recipe has no `run.checkpoint`"
    if saving.seconds:
        return f"those of up to {in_units(saving.seconds)}"
    return f"up to {saving.every}" if saving.every else "all, because a checkpoint is written at the end only"
