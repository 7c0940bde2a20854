"""The requirements of a recipe on this machine, for `doctor` and for the preflight of `launch`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from meshctl.cli.load import Launchable
from meshctl.engines.checks.device_files import devices_of_workers
from meshctl.engines.checks.requirements import Needs, Requirements
from meshctl.recipe.rules.memory import checkpoint_bytes_of, copy_bytes_of, memory_of
from meshctl.run.checkpoints.saved import steps_of


def requirements_of(ready: Launchable) -> Requirements:
    """Returns the requirements of a recipe. Bytes that are not known count as 0."""
    plan, facts, saving = ready.plan, ready.facts, ready.plan.run.checkpoint
    bytes_of = bytes_by_group(ready)
    devices = devices_of_workers(plan)
    device_bytes = Counter[str]()
    for group, names in devices.items():
        device_bytes.update(dict.fromkeys(names, bytes_of[group]))
    uses = Counter(name for keys in devices.values() for key in keys for name in key.split(","))
    on_cpu = [group for group in plan.groups if group.device_type == "cpu"]
    return Requirements(
        str(ready.resume.path if ready.resume else plan.run.dir),
        ready.path,
        sorted({group.device_type for group in plan.groups}),
        plan.job_size,
        checkpoint_bytes=checkpoint_bytes_of(facts) if facts and saving else 0,
        checkpoints=further_checkpoints(ready),
        model_bytes=sum(bytes_of[group.name] * group.workers for group in on_cpu),
        device_bytes=dict(device_bytes),
        shared_devices=[name for name, count in uses.items() if count > 1],
        copy_bytes=bytes_of_copies(ready),
    )


def needs_of(ready: Launchable) -> Needs:
    """Returns what a recipe needs, for its nodes. Bytes that are not known count as 0."""
    return Needs(requirements_of(ready), dict(bytes_by_group(ready)))  # `asdict` copies no Counter


def bytes_by_group(ready: Launchable) -> Mapping[str, int]:
    """Returns group -> the bytes of its models on the rank with the most."""
    found = Counter[str]()
    for one in memory_of(ready.facts).components if ready.facts else ():
        if not one.unknown:
            found[ready.plan.component(one.component).group] += one.total
    return found


def bytes_of_copies(ready: Launchable) -> int:
    """Returns the memory of the copies that asynchronous checkpoints write: one of the state of each
    worker."""
    saving = ready.plan.run.checkpoint
    if not (saving and saving.is_async and ready.facts):
        return 0
    workers = {one.name: ready.plan.group(one.group).workers for one in ready.plan.components}
    return sum(size * workers[name] for name, size in copy_bytes_of(ready.facts).items())


def further_checkpoints(ready: Launchable) -> int:
    """Returns the greatest number of checkpoints that the run adds to those on its disk. It includes the one
    that is being written."""
    run = ready.plan.run
    if run.checkpoint is None:
        return 0
    keep = run.checkpoint.keep + (run.checkpoint.best.keep if run.checkpoint.best else 0)
    is_single = not run.checkpoint.every and not run.checkpoint.seconds
    most = 1 if is_single else keep + 1
    if run.steps and run.checkpoint.every:
        most = min(most, -(-run.steps // run.checkpoint.every))
    saved = len(steps_of(ready.resume)) if ready.resume else 0
    return max(1, most - saved)
