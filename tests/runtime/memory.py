"""Frames between threads of one process, with the same slots as every transport."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meshctl.runtime.transports.context import Context
from meshctl.runtime.transports.data_plane import DataPlane
from meshctl.runtime.transports.transport import Lease, Transport


class MemoryTransport(Transport):
    shares_memory = True
    inline_max = 4096

    def __init__(self, job_rank: int, hub: Mapping[int, DataPlane]) -> None:
        self._job_rank, self._hub = job_rank, hub

    def post(self, to: int, tag: int, lease: Lease, *, write: bool = False) -> None:
        self._hub[to].on_message(self._job_rank, tag, lease.frame)

    def post_inline(self, to: Sequence[int], tag: int, frame: bytes) -> None:
        for receiver in to:
            self._hub[receiver].on_message(self._job_rank, tag, frame)

    def credit(self, to: int, tag: int) -> None:
        self._hub[to].on_credit(self._job_rank, tag)


class MemoryDataPlane(DataPlane):
    def __init__(self, job_rank: int, slots: Mapping[int, int], hub: dict[int, MemoryDataPlane]) -> None:
        """All data planes of one job share the `hub`; each adds itself."""
        super().__init__(Context(job_rank, slots))
        self._memory = MemoryTransport(job_rank, hub)
        hub[job_rank] = self

    def transport_to(self, job_rank: int) -> Transport:
        return self._memory
