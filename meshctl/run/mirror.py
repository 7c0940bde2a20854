"""Copies the files of a run directory that another machine cannot see, as far as people and commands read
them: the state, events, metrics, logs and media, and no checkpoints.

    machine of the run     `meshctl mirror RUN` writes what the copy lacks: changes(run, known)
    machine of the copy    mirror.known(), and mirror.apply(lines)

Both sides exchange JSON, a line for each item. A file that grows is continued, and one that was written anew
is sent whole.

    copy -> run    {NAME: [inode, bytes], ...}
    run -> copy    {"file": NAME, "inode": n, "at": bytes, "data": BASE64}, {"gone": NAME}, {"saved": STEP}
    run -> copy    {"end": true}, so that a broken connection is noticed
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from meshctl.run.directory import RunDir, write_whole

PARTS = ("events", "logs", "media")
"""The folders that are copied."""
FILES = ("state.json", "metrics.jsonl", "metrics.lost.jsonl", "trace.json")
CHUNK_BYTES = 8 << 20
"""The largest part of a file in one answer."""
Known = dict[str, list[int]]
"""Name -> inode and bytes of the files that the copy has."""


def changes(run: RunDir, known: Known) -> Iterator[dict[str, Any]]:
    """Yields what has changed in a run directory. The state comes last, so that the copy is never behind
    it."""
    found = sorted(_files(run), key=lambda name: name == run.state.name)
    yield from ({"gone": name} for name in sorted(known.keys() - set(found)))
    for name in found:
        with suppress(OSError), (run.path / name).open("rb") as file:
            status = os.fstat(file.fileno())
            inode, size = known.get(name, [0, 0])
            at = size if inode == status.st_ino and size <= status.st_size else 0
            if name in known and at == status.st_size == size and inode == status.st_ino:
                continue
            file.seek(at)
            data = base64.b64encode(file.read(CHUNK_BYTES)).decode("ascii")
            yield {"file": name, "inode": status.st_ino, "at": at, "data": data}
    if saved := run.saved():
        yield {"saved": saved}
    yield {"end": True}


def known_of(data: Any) -> Known:
    """Returns the files of a copy from plain data. Raises `ValueError`, `TypeError` or `AttributeError` for
    something else."""
    return {str(name): [int(inode), int(size)] for name, (inode, size) in data.items()}


def _files(run: RunDir) -> Iterator[str]:
    """Yields the names of the files, relative to the run directory."""
    yield from (name for name in FILES if (run.path / name).is_file())
    for part in PARTS:
        for file in (run.path / part).rglob("*"):
            if file.is_file() and not file.name.startswith("."):
                yield file.relative_to(run.path).as_posix()


class Mirror:
    """The copy of a run directory."""

    def __init__(self, run: RunDir) -> None:
        self._run, self._file = run, run.path / ".mirror.json"

    def known(self) -> Known:
        """Returns the files of the copy that are as they were written."""
        with suppress(OSError, ValueError, TypeError, AttributeError):
            return known_of(json.loads(self._file.read_text(encoding="utf-8")))
        return {}

    def apply(self, lines: Iterable[str]) -> bool:
        """Applies an answer. Returns whether it was complete. What came before a break is kept. Raises
        `OSError`, and `ValueError` for something else than an answer."""
        known, is_whole = self.known(), False
        try:
            for line in lines:
                item = json.loads(line)
                if "file" in item:
                    self._write(known, item)
                elif "gone" in item:
                    _inside(self._run, item["gone"]).unlink(missing_ok=True)
                    known.pop(item["gone"], None)
                elif "saved" in item and self._run.saved() != int(item["saved"]):
                    self._run.checkpoints.mkdir(exist_ok=True)
                    self._run.publish_checkpoint(int(item["saved"]))
                is_whole = is_whole or "end" in item
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(str(error)) from None
        finally:
            write_whole(self._file, json.dumps(known) + "\n")
        return is_whole

    def _write(self, known: Known, item: dict[str, Any]) -> None:
        path, data = _inside(self._run, item["file"]), base64.b64decode(item["data"])
        at = int(item["at"])
        path.parent.mkdir(parents=True, exist_ok=True)
        if at:
            with path.open("r+b") as file:
                file.truncate(at)
                file.seek(at)
                file.write(data)
        else:
            part = path.with_name(f".{path.name}.part")
            part.write_bytes(data)
            part.rename(path)
        known[item["file"]] = [int(item["inode"]), at + len(data)]

    def lock(self) -> int | None:
        """Takes the lock of the copy. Returns its descriptor, which releases it when it is closed; None if
        another process copies. Raises `OSError`."""
        descriptor = os.open(self._run.path / ".mirror.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor


def _inside(run: RunDir, name: str) -> Path:
    """Returns the path of a copied file. Raises `ValueError` for a name that is not one."""
    parts = PurePosixPath(name).parts
    is_right = name in FILES or (len(parts) > 1 and parts[0] in PARTS and ".." not in parts)
    if not is_right:
        raise ValueError(f"{name!r} is no file of a run")
    return run.path.joinpath(*parts)
