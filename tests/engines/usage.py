"""The processes of a run, and what they use: open files, memory, shared memory and disk."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from processes import family, name_of

SAMPLE_S = 1.0


@dataclass(frozen=True)
class Usage:
    processes: int
    launcher_files: int
    launcher_bytes: int
    node_files: int
    """Open files of the node process; 0 where there is none."""
    node_bytes: int
    shared_bytes: int
    """Bytes of all anonymous shared files (`memfd_create`) that processes of the run have open."""
    disk_bytes: int


def usage(launcher: int, folder: Path) -> Usage:
    """Returns what a run uses now. `folder` is that of its files."""
    pids = family(launcher)
    node = next((pid for pid in pids if name_of(pid) == "meshctl-fork"), 0)
    sizes = {inode: size for pid in pids for inode, size in anonymous_files(pid)}
    return Usage(
        len(pids),
        len(list(files_of(launcher))),
        own_bytes(launcher),
        len(list(files_of(node))),
        own_bytes(node),
        sum(sizes.values()),
        disk_bytes_below(folder),
    )


def files_of(pid: int) -> Iterator[Path]:
    with suppress(OSError):
        yield from Path(f"/proc/{pid}/fd").iterdir()


def anonymous_files(pid: int) -> Iterator[tuple[int, int]]:
    """Yields the inode and the size of each anonymous shared file that a process has open."""
    for file in files_of(pid):
        with suppress(OSError):
            if os.readlink(file).startswith("/memfd:"):
                found = file.stat()
                yield found.st_ino, found.st_size


def own_bytes(pid: int) -> int:
    """Returns the bytes of memory of a process that no file has."""
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) * 1024
    return 0  # the process has ended


def disk_bytes_below(folder: Path) -> int:
    """Returns the bytes of all files below a folder. Files and folders may vanish meanwhile."""
    return sum(size_of(Path(path, name)) for path, _, names in os.walk(folder) for name in names)


def size_of(path: Path) -> int:
    with suppress(OSError):
        return path.lstat().st_size
    return 0  # it has been deleted


class Recorder:
    """Records the usage of a run every second, in a thread."""

    def __init__(self, launcher: int, folder: Path) -> None:
        self.usages: list[Usage] = []
        self.pids = set[int]()
        """All processes that were seen."""
        self._launcher, self._folder = launcher, folder
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._record, daemon=True)
        self._thread.start()

    def _record(self) -> None:
        while not self._end.wait(SAMPLE_S):
            self.pids.update(family(self._launcher))
            self.usages.append(usage(self._launcher, self._folder))

    def end(self) -> None:
        self._end.set()
        self._thread.join()

    def growth(self, of: Callable[[Usage], float]) -> tuple[float, float]:
        """Returns the medians of the second and of the last quarter of the records, without those in which
        there is no process to look at."""
        quarter = len(self.usages) // 4
        early, late = self.usages[quarter : 2 * quarter], self.usages[-quarter:]
        return middle(map(of, early)), middle(map(of, late))


def middle(values: Iterable[float]) -> float:
    return median([value for value in values if value] or [0])
