"""The needs of a recipe in memory and on disk, and what they require of this machine."""

from __future__ import annotations

from collections import Counter

from meshctl.cli.load import Launchable
from meshctl.engines.checks.device_files import requirements_on
from meshctl.engines.checks.requirements import Needs, Requirements
from meshctl.recipe.rules.memory import checkpoint_bytes_of, copy_bytes_of, memory_of
from meshctl.run.checkpoints import steps_of


def requirements_of(ready: Launchable, needs: Needs) -> Requirements:
    """Returns the requirements of a recipe on this machine."""
    return requirements_on(ready.plan, str(ready.resume.path if ready.resume else ready.plan.run.dir), needs)


def needs_of(ready: Launchable) -> Needs:
    """Returns the needs of a recipe. Bytes that are not known count as 0."""
    plan, facts, saving = ready.plan, ready.facts, ready.plan.run.checkpoint
    if facts is None:
        return Needs(checkpoints=further_checkpoints(ready))
    models, copies = Counter[str](), Counter[str]()
    for one in memory_of(facts).components:
        if not one.unknown:
            models[plan.component(one.component).group] += one.total
    if saving and saving.is_async:
        for component, size in copy_bytes_of(facts).items():
            copies[plan.component(component).group] += size
    checkpoint_bytes = checkpoint_bytes_of(facts) if saving else 0
    return Needs(dict(models), dict(copies), checkpoint_bytes, further_checkpoints(ready))


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
