"""The cases of the benchmark `faults`: what is done to a run, what a user may see then, and what is seen.

A module has the cases of one subject in its list `CASES`. A new case is a function and a line there. The
numbers are those of the list of 28 faults. Those that need several nodes (12, 13, 15, 24, 25, and
delays of the network in 16) have no case here. Most of 28 is tested by generated recipes (`make nightly`).
"""

from __future__ import annotations

from benchmarks.fault_cases import (
    checkpoints,
    deaths,
    disks,
    endings,
    errors,
    hangs,
    leftovers,
    machines,
    outputs,
)

CASES = [
    *deaths.CASES,
    *endings.CASES,
    *hangs.CASES,
    *errors.CASES,
    *machines.CASES,
    *disks.CASES,
    *outputs.CASES,
    *checkpoints.CASES,
    *leftovers.CASES,
]
