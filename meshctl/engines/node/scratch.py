"""The folder in which Python's `multiprocessing` keeps its sockets, for the workers of a node.

A process that shares tensors makes a folder `pymp-*` for its sockets and removes it when it ends; a killed
one leaves it behind. Workers use one folder per node instead. The node process makes it and removes it at its
own end; the launcher removes it if the node process was killed. Its name follows from the token of the run,
so that other users cannot guess it.
"""

from __future__ import annotations

import hashlib
import multiprocessing.process
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path


def scratch_folder(token: str, node: int) -> Path:
    """Returns the folder of a node of the run with this token."""
    name = hashlib.sha256(f"{token}/{node}".encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"meshctl-{name}"


def make_scratch(token: str, node: int) -> None:
    """Makes the folder for this user alone. Without it, processes make folders of their own."""
    with suppress(OSError):
        scratch_folder(token, node).mkdir(mode=0o700)


def remove_scratch(token: str, node: int) -> None:
    shutil.rmtree(scratch_folder(token, node), ignore_errors=True)


def use_scratch(folder: str) -> None:
    """Makes this process and its children keep their sockets in a folder, if it exists. `multiprocessing` has
    no public name for this."""
    config = getattr(multiprocessing.process.current_process(), "_config", None)
    if config is not None and Path(folder).is_dir():
        config["tempdir"] = folder
