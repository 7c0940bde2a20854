"""Reports connections that processes of the run have dropped, because their peers did not have its token: the
first ones at once, and the number at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from meshctl.network.strangers import Strangers
from meshctl.text.english import counted

HOSTS_MAX = 3
"""The number of hosts that a report names."""


class StrangerWatch:
    def __init__(self, sources: Callable[[], Iterable[Mapping[str, int]]]) -> None:
        """`sources` returns what the listeners of the head and of the nodes have counted."""
        self._sources = sources
        self._of_workers = Strangers()
        self._reported = 0

    def add(self, found: Mapping[str, int]) -> None:
        """Adds what a worker has counted."""
        self._of_workers.note_all(found)

    def first(self) -> Iterator[str]:
        """Yields a report, once, when the first ones were dropped."""
        if not self._reported:
            yield from self.at_end()

    def at_end(self) -> Iterator[str]:
        """Yields a report of all, unless it was given already."""
        found = Strangers(self._of_workers)
        for source in self._sources():
            found.note_all(source)
        total = sum(found.values())
        if total > self._reported:
            self._reported = total
            hosts = sorted(found, key=lambda host: (-found[host], host))
            more = len(hosts) - HOSTS_MAX
            names = ", ".join([*hosts[:HOSTS_MAX], *([f"{more} more"] if more > 0 else [])])
            were = "was" if total == 1 else "were"
            yield f"{counted(total, 'connection')} without the token of this run {were} dropped, from {names}"
