"""`meshctl mirror`: writes what has changed in a run directory, for a copy of it on another machine. Commands
there start this one (`run/mirror.py`)."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from meshctl.cli.output import refuse
from meshctl.run.directory import RunDir
from meshctl.run.mirror import changes


def mirror(path: Path) -> int:
    """Reads the files of the copy from the first line of the standard input. Returns 2 for another line, or
    if there is no such run."""
    run = RunDir(path)
    if not run.plan.is_file():
        return refuse(f"{path} is not a run directory")
    try:
        copied = json.loads(sys.stdin.readline())
        known = {str(name): [int(size), int(checksum)] for name, (size, checksum) in copied.items()}
    except (ValueError, TypeError, AttributeError):
        return refuse("the standard input must be a JSON object of {NAME: [BYTES, CHECKSUM]}")
    began = time.time()
    for item in changes(run, known):
        print(json.dumps(item))
    sys.stdout.flush()
    run.copied.touch()
    os.utime(run.copied, (began, began))
    return 0
