"""The folder of `run.checkpoint.local_dir`, on a disk of this node: whether it can be written to, and its
free space. A recipe without one has no findings."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from meshctl.dataclass import dataclass
from meshctl.engines.checks import disk
from meshctl.engines.checks.requirements import Finding, Requirements, amount, failure, ok

NAME = "local_dir"
ELSEWHERE = "write elsewhere: run.checkpoint.local_dir=PATH"


@dataclass(frozen=True)
class Facts(disk.Facts):
    """The facts about the disk of `local_dir`."""


def measure(requirements: dict[str, Any]) -> dict[str, Any]:
    return _measured(requirements["local_dir"], os.getppid())


def measure_quickly(requirements: Requirements) -> dict[str, Any]:
    return _measured(requirements.local_dir, os.getpid())


def _measured(folder: str, pid: int) -> dict[str, Any]:
    return disk.measured(disk.scratch(folder, pid), is_flushed=False) if folder else {}


def clean(requirements: Requirements) -> None:
    if requirements.local_dir:
        disk.clean_up(requirements.local_dir)


def judge(facts: Facts, requirements: Requirements) -> Iterator[Finding]:
    if facts.error:
        remedy = f"look at the disk (df, mount), or {ELSEWHERE}"
        yield failure(NAME, f"the test of {requirements.local_dir or 'none'} failed: {facts.error}", remedy)
    elif not requirements.local_dir:
        return
    elif error := facts.errors.get("write"):
        yield failure(NAME, f"{facts.folder} cannot be written to: {error}", ELSEWHERE)
    else:
        found = disk.space_of(facts)
        if facts.free >= requirements.checkpoint_bytes:
            yield ok(NAME, found)
            return
        found += f", and a checkpoint takes at least {amount(requirements.checkpoint_bytes)}"
        yield failure(NAME, found, f"delete files there, or {ELSEWHERE}").of_recipe()
