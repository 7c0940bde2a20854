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

FAULTS = {
    1: "A worker is killed",
    2: "An agent or a node process is killed",
    3: "The launcher is killed",
    4: "A signal, a closed terminal, a time limit",
    5: "A worker ignores SIGTERM",
    6: "A process hangs or is stopped",
    7: "A component raises an exception",
    8: "A process ends too early with exit code 0",
    9: "Memory runs out",
    10: "A fatal signal",
    11: "Ports and run directories are in use",
    14: "There is no name server",
    16: "A rank is slow",
    17: "A disk is full, read-only, frozen, or the run directory is deleted",
    18: "Workers print very much",
    19: "Workers print bytes that are no text",
    20: "Terminals and pipes",
    21: "A clock is wrong",
    22: "A checkpoint is damaged",
    23: "A worker of an earlier attempt comes back",
    26: "Data loaders have processes of their own",
    27: "Many launches in a row",
    28: "A recipe is wrong",
}
"""Number of a fault -> its title."""
