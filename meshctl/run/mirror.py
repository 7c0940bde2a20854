"""Copies the files of a run directory that another machine cannot see, as far as people and commands read
them: the state, events, metrics, logs and media, and no checkpoints.

    machine of the run     `meshctl mirror RUN` writes what the copy lacks: changes(run, known)
    machine of the copy    mirror.known(), and mirror.apply(lines)

Both sides exchange JSON, a line for each item. A file that grows is continued, and one that was written anew
is sent whole. Its checksum shows this, because a new file may have the inode and the size of the old one.

    copy -> run    {NAME: [bytes, checksum], ...}
    run -> copy    {"file": NAME, "at": bytes, "data": BASE64}, {"gone": NAME}, {"saved": STEP}
    run -> copy    {"end": true}, so that a broken connection is noticed
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from sys import maxsize
from typing import Any, BinaryIO

from meshctl.run.directory import RunDir, write_whole
from meshctl.run.reading import DAMAGED, decoded, opened, text_of

PARTS = ("events", "logs", "media")
"""The folders that are copied."""
FILES = ("state.json", "metrics.jsonl", "metrics.lost.jsonl", "trace.json")
CHUNK_BYTES = 8 << 20
"""The largest part of a file in one answer."""
REWRITTEN = ("state.json", "trace.json")
"""The files that are written anew when they change, and whose checksum is that of the whole copy."""
TAIL_BYTES = 4096
"""The end of the copy of another file, of which the checksum is."""
Known = dict[str, list[int]]
"""Name -> bytes and checksum of the files that the copy has."""


def changes(run: RunDir, known: Known) -> Iterator[dict[str, Any]]:
    """Yields what has changed in a run directory. The state comes last, so that the copy is never behind
    it."""
    found = sorted(_files(run), key=lambda name: name == run.state.name)
    yield from ({"gone": name} for name in sorted(known.keys() - set(found)))
    for name in found:
        with suppress(OSError), opened(run.path / name, maxsize) as file:
            at, checksum = known.get(name, [0, 0])
            size = os.fstat(file.fileno()).st_size
            if size < at or _checksum(name, file, at) != checksum:
                at = 0
            elif name in known and at == size:
                continue
            file.seek(at)
            data = base64.b64encode(file.read(CHUNK_BYTES)).decode("ascii")
            yield {"file": name, "at": at, "data": data}
    if saved := run.saved():
        yield {"saved": saved}
    yield {"end": True}


def _checksum(name: str, file: BinaryIO, size: int) -> int:
    """Returns the checksum of the first `size` bytes of a file, or of their end."""
    start = 0 if name in REWRITTEN else max(0, size - TAIL_BYTES)
    file.seek(start)
    return zlib.crc32(file.read(size - start))


def _files(run: RunDir) -> Iterator[str]:
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
        """Returns the files of the copy, as far as they were written."""
        found: Known = {}
        for name, size in self._sizes().items():
            with suppress(OSError, ValueError), opened(_inside(self._run, name), maxsize) as file:
                found[name] = [size, _checksum(name, file, size)]
        return found

    def _sizes(self) -> dict[str, int]:
        with suppress(OSError, *DAMAGED):
            data = decoded(text_of(self._file))
            return {str(name): int(size) for name, size in data.items()}
        return {}

    def apply(self, lines: Iterable[str]) -> bool:
        """Applies an answer. Returns whether it was complete. What came before a break is kept. Raises
        `OSError`, and `ValueError` for something else than an answer."""
        sizes, is_whole = self._sizes(), False
        try:
            for line in lines:
                item = json.loads(line)
                if "file" in item:
                    self._write(sizes, item)
                elif "gone" in item:
                    _inside(self._run, item["gone"]).unlink(missing_ok=True)
                    sizes.pop(item["gone"], None)
                elif "saved" in item and self._run.saved() != int(item["saved"]):
                    self._run.checkpoints.mkdir(exist_ok=True)
                    self._run.publish_checkpoint(int(item["saved"]))
                is_whole = is_whole or "end" in item
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(str(error)) from None
        finally:
            write_whole(self._file, json.dumps(sizes) + "\n")
        return is_whole

    def _write(self, sizes: dict[str, int], item: dict[str, Any]) -> None:
        path, data = _inside(self._run, item["file"]), base64.b64decode(item["data"])
        at = int(item["at"])
        if at:
            with path.open("r+b") as file:
                file.truncate(at)
                file.seek(at)
                file.write(data)
        else:
            write_whole(path, data)
        sizes[item["file"]] = at + len(data)

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
