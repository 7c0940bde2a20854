"""Frames between threads of one process: the way of tests and notebooks, with the same slots as every other."""

from __future__ import annotations

from collections.abc import Mapping

from meshctl.runtime.transports.data_plane import Loan, Transport, Way


class MemoryTransport(Transport):
    def __init__(self, place: int, slots: Mapping[int, int], hub: dict[int, MemoryTransport]) -> None:
        """All transports of one job share the `hub`; each enters itself."""
        super().__init__(place, slots)
        self._hub, self._memory = hub, _Memory(place, hub)
        hub[place] = self

    def way(self, place: int) -> Way:
        return self._memory


class _Memory(Way):
    shares_memory = True

    def __init__(self, place: int, hub: dict[int, MemoryTransport]) -> None:
        self._place, self._hub = place, hub

    def post(self, to: int, lane: int, loan: Loan | None, *, write: bool = False) -> None:
        self._hub[to].arrived(self._place, lane, loan.frame if loan else None)
