"""`meshctl head`: the supervisor of a run whose nodes are started by others. It does what `launch` does
on one machine: it continues a run that was prepared, or that a head has left. Inside the job of a scheduler,
the engine starts the nodes there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from meshctl.cli.launch import Supervision, import_torch, reason_of_end, run
from meshctl.cli.load import Launchable
from meshctl.cli.output import REFUSED, refuse, why
from meshctl.diagnostics import Report
from meshctl.engines.engine import ENGINES, engine_named
from meshctl.engines.supervise.attempt import RunHeld, taken_up
from meshctl.network.addresses import address_of
from meshctl.plan.model import Plan
from meshctl.run.checkpoints.saved import NoWholeCheckpoint
from meshctl.run.directory import RunDir
from meshctl.run.process import IN_JOB
from meshctl.view.live.state_file import StateFile


def head(path: Path, host: str, port: int, environ: Mapping[str, str] = os.environ) -> int:
    """Supervises a run and returns its exit code: 2 if `path` is not the plan of a run directory, 4 if
    the head cannot listen or another one supervises the run. `host` is an address, a host name or an
    interface; empty for that of the engine. `port` 0 lets the system choose."""
    directory = RunDir.of_plan(path)
    try:
        plan, start = Plan.read(path), directory.read_start()
        composed = directory.recipe.read_text(encoding="utf-8") if directory.recipe.exists() else ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = why(error) if isinstance(error, OSError) else error
        return refuse(
            f"{path} is not the plan of a run: {reason}; `meshctl launch --engine commands` makes one"
        )
    choice = start.engine
    if choice.name not in ENGINES:
        return refuse(f"the run is of the engine `{choice.name}`, which this version does not have", REFUSED)
    if choice.options.get("secure"):
        return refuse("the run was to be encrypted, which meshctl no longer does: launch it again", REFUSED)
    engine = engine_named(choice.name, choice.options)
    if engine.supervisor == "inside":
        os.environ[IN_JOB] = "1"
    if why_over := reason_of_end(plan, directory, directory.saved()):
        print(f"{directory.path}: the run is complete: {why_over}")
        return 0
    import_torch()
    try:
        listens = address_of(host) if host else ""
        attempt = taken_up(plan, directory)
    except OSError as error:
        what = f"{host}: " if host else ""
        return refuse(f"the head cannot start: {what}{why(error)}", REFUSED)
    except (RunHeld, NoWholeCheckpoint) as error:
        return refuse(error, REFUSED)
    ready = Launchable(plan, composed, start.path, Report(), start=attempt.start)
    supervision = Supervision(engine, listens, port, environ)
    return run(ready, attempt, supervision, StateFile(plan, directory))
