"""The launches of a run: `launches.jsonl` in the run directory has an object for each, with its overrides,
versions and machine. `git.txt` has the state of the recipe's repository at the last one: the commit, the
branch, and the first change that is not committed.

    record_launch(run, ["run.steps=5"])
    launches(run)[-1]["python"]
    record_git_state(run, folder)        starts git, and does not wait for it
    git_state(run)                       {"commit": "7bdc96b...", "branch": "main", "dirty": False}
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from meshctl.package import OUR_VERSION, installed_version
from meshctl.run import clock
from meshctl.run.directory import RunDir
from meshctl.run.reading import appended, bytes_of, decoded, opened
from meshctl.text.redaction import redact

LIBRARIES = ("torch", "transformers", "vllm", "numpy")
GPUS = "/proc/driver/nvidia/gpus"
COMMANDS = "rev-parse HEAD && {git} rev-parse --abbrev-ref HEAD && {git} status --porcelain -uno"
MAX_BYTES = 1 << 20
"""Bytes at the end of the file that are read."""


def record_launch(run: RunDir, overrides: Sequence[str]) -> None:
    """Appends what is known about a launch. A disk that does not take it is no reason to fail."""
    libraries = [(name, installed_version(name)) for name in LIBRARIES]
    data = {
        "time": clock.now(),
        "overrides": [redact(override) for override in overrides],
        "host": socket.gethostname(),
        "folder": os.getcwd(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {"meshctl": OUR_VERSION} | {name: version for name, version in libraries if version},
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "gpus": _gpus(),
    }
    with suppress(OSError), open(appended(run.launches), "a", encoding="utf-8") as file:
        file.write(json.dumps(data, separators=(",", ":")) + "\n")


def launches(run: RunDir) -> list[dict[str, Any]]:
    """Returns the launches of a run, the first one first."""
    try:
        with opened(run.launches) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - MAX_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return []
    found = list[dict[str, Any]]()
    for line in lines:
        with suppress(ValueError):
            if isinstance(data := decoded(line.decode()), dict):
                found.append(data)
    return found


def _gpus() -> list[str]:
    found = list[str]()
    with suppress(OSError):
        for folder in sorted(Path(GPUS).iterdir()):
            if name := re.search(r"^Model:\s*(.+)$", (folder / "information").read_text(), re.MULTILINE):
                found.append(name[1].strip())
    return found


def record_git_state(run: RunDir, folder: str) -> None:
    """Starts a process that writes the file; an empty one outside of a repository. The status of a large
    repository takes seconds."""
    git, part = f"git -C {shlex.quote(folder)}", shlex.quote(str(run.git.with_suffix(".part")))
    commands = (
        f"({git} {COMMANDS.format(git=git)}) | head -n 3 >{part}; mv {part} {shlex.quote(str(run.git))}"
    )
    with suppress(OSError):  # there is no shell
        subprocess.Popen(
            ["sh", "-c", commands],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            start_new_session=True,
        )


def git_state(run: RunDir) -> dict[str, Any]:
    """Returns `commit`, `branch` and `dirty`; nothing outside of a repository, and where git has not
    answered."""
    try:
        lines = bytes_of(run.git).decode(errors="replace").splitlines()
    except OSError:
        return {}
    return {"commit": lines[0], "branch": lines[1], "dirty": len(lines) > 2} if len(lines) > 1 else {}
