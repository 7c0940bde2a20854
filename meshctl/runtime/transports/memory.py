"""Frames between threads of one process: the transport of tests and notebooks, with the same slots as every other."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from meshctl.runtime.transports import Transport


class MemoryTransport(Transport):
    def __init__(self, place: int, slots: Mapping[int, int], hub: dict[int, MemoryTransport]) -> None:
        """All transports of one job share the `hub`; each enters itself."""
        super().__init__(place, slots)
        self._hub = hub
        hub[place] = self

    def _post(self, to: int, lane: int, frame: Tensor | None) -> None:
        self._hub[to]._deliver(self.place, lane, frame)
