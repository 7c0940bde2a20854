"""The script that `launch` submits: the job's resources, and the head.

    #SBATCH --nodes=1 --gres=gpu:8        the first component
    #SBATCH hetjob
    #SBATCH --nodes=4 --gres=gpu:4        the second one
    exec meshctl head --plan RUN/plan.json

The shell becomes the head, so that signals to the batch step reach it.
"""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from meshctl.plan.model import Plan
from meshctl.plan.node_sets import NodeSet, node_sets
from meshctl.run.directory import RunDir
from meshctl.run.process import IN_JOB

if TYPE_CHECKING:
    from meshctl.engines.slurm.engine import SlurmOptions

GRES = {"cuda": "gpu", "npu": "npu"}
"""Device type -> its name for Slurm."""
NOTICE_S = 15
"""Seconds that the end of a run may take in addition to `run.grace`."""


def script_of(plan: Plan, run: RunDir, options: SlurmOptions, folder: str) -> str:
    """Returns the script. `folder` is the working directory of the launcher, and that of the head."""
    sets = node_sets(plan)
    lines = ["#!/bin/bash", *(f"#SBATCH {line}" for line in _job(plan, run, options))]
    for index, alike in enumerate(sets):
        if index:
            lines.append("#SBATCH hetjob")
        lines += [f"#SBATCH {line}" for line in (*_common(options), *_component(plan, alike, options))]
    head = [sys.executable, "-m", "meshctl", "head", "--plan", str(run.plan)]
    lines += ["", f"export {IN_JOB}=1", f"cd {shlex.quote(folder)} || exit 4", f"exec {shlex.join(head)}"]
    return "".join(f"{line}\n" for line in lines)


def _job(plan: Plan, run: RunDir, options: SlurmOptions) -> Iterator[str]:
    """Yields the options of the whole job."""
    yield f"--job-name={plan.name}"
    yield f"--output={shlex.quote(f'{run.path}/logs/slurm-%j.log')}"
    yield "--open-mode=append"
    yield f"--signal=B:USR2@{math.ceil(plan.run.grace) + NOTICE_S}"
    yield "--requeue" if options.requeue else "--no-requeue"
    if plan.run.restarts:
        yield "--no-kill"


def _common(options: SlurmOptions) -> Iterator[str]:
    """Yields the options that each component has."""
    for name in ("partition", "account", "qos", "time", "constraint"):
        if value := getattr(options, name):
            yield f"--{name}={shlex.quote(value)}"
    yield from options.sbatch


def _component(plan: Plan, alike: NodeSet, options: SlurmOptions) -> Iterator[str]:
    yield f"--nodes={alike.count}"
    yield "--ntasks-per-node=1"
    if options.cpus:
        yield f"--cpus-per-task={options.cpus}"
    if gres := gres_of(plan, alike, options.gres):
        yield f"--gres={shlex.quote(gres)}"


def gres_of(plan: Plan, alike: NodeSet, written: str) -> str:
    """Returns the devices that each node of a set is given; empty for none. `written` is the option, without
    a number or with one. Where the plan needs no devices at all, a number is for every node."""
    needed = {kind: count for kind, count in alike.devices.items() if kind in GRES}
    has_count = written.rpartition(":")[2].isdigit()
    if not needed:
        is_wanted = has_count and all(group.device_type == "cpu" for group in plan.groups)
        return written if is_wanted else ""
    if has_count:
        return written
    return ",".join(f"{written or GRES[kind]}:{count}" for kind, count in needed.items())
