"""The folder in which the workers of a node keep what only they may open: the stores of torch in an attempt
on one node, and the sockets of Python's `multiprocessing`.

A process that shares tensors makes a folder `pymp-*` for its sockets and removes it when it ends; a killed
one leaves it behind. Workers use one folder per node instead. Its name follows from the token of the run, so
that other users cannot guess it.

The node process and the process that writes logs have the folder locked. Whichever of them ends last removes
it. If both were killed, the launcher removes it, or the next node process of this user does.
"""

from __future__ import annotations

import fcntl
import hashlib
import multiprocessing.process
import os
import re
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

VARIABLE = "MESHCTL_SCRATCH"
"""The folder, in the environment of workers and of the processes that they start, by which these can be
recognized."""
MAX_TEMPORARY = 107 - len("/meshctl-0123456789abcdef/listener-abcdefgh")
"""The maximum length of the name of the temporary folder. Linux limits names of sockets to 107 bytes."""
_NAME = re.compile(r"meshctl-[0-9a-f]{16}")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Scratch:
    """The scratch folder of a node, in the process that uses it and in the forks of this process."""

    def __init__(self, token: str, node: int) -> None:
        """Makes the folder for this user alone. Removes folders that no process uses any more."""
        self.folder = scratch_folder(token, node)
        with suppress(OSError):
            for entry in os.scandir(self.folder.parent):
                if _NAME.fullmatch(entry.name) and entry.stat(follow_symlinks=False).st_uid == os.geteuid():
                    remove_unused(Path(entry.path))
        self.descriptor = _locked(self.folder)
        """The file descriptor that holds the lock; -1 without a folder. `multiprocessing` then makes other
        folders."""

    def release(self) -> None:
        """Ends the use of the folder by this process, and removes the folder if no other process uses it."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
        remove_unused(self.folder)


def scratch_folder(token: str, node: int) -> Path:
    """Returns the folder of a node of the run with this token: in `/tmp` if the name of the temporary folder
    is too long for sockets in it."""
    temporary = tempfile.gettempdir()
    name = hashlib.sha256(f"{token}/{node}".encode()).hexdigest()[:16]
    return Path(temporary if len(os.fsencode(temporary)) <= MAX_TEMPORARY else "/tmp") / f"meshctl-{name}"


def remove_scratch(token: str, node: int) -> None:
    """Removes the folder of a node whose processes are killed. They may hold the lock a moment longer."""
    shutil.rmtree(scratch_folder(token, node), ignore_errors=True)


def remove_unused(folder: Path) -> None:
    """Removes a folder unless a process uses it."""
    with suppress(OSError):
        descriptor = os.open(folder, _FOLDER)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
        finally:
            os.close(descriptor)


def use_scratch(folder: str) -> None:
    """Makes this process and its children keep their sockets in a folder, if it exists. `multiprocessing` has
    no public name for this."""
    config = getattr(multiprocessing.process.current_process(), "_config", None)
    if config is not None and Path(folder).is_dir():
        config["tempdir"] = folder


def _locked(folder: Path) -> int:
    """Makes a folder and locks it together with its other users. Returns the descriptor, or -1 if the file
    system is full or has no locks."""
    while True:
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            descriptor = os.open(folder, _FOLDER)
        except OSError:
            return -1
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(descriptor)
            return -1
        if os.fstat(descriptor).st_nlink:
            return descriptor
        os.close(descriptor)  # another process has removed the folder before it was locked
