"""The processes of the peers of a node, watched for their ends."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from meshctl.runtime.transports.data_plane import DataPlane


class PeerProcesses:
    def __init__(self, data_plane: DataPlane, on_end: Callable[[int], None]) -> None:
        """`on_end` is called with the job rank of a process that has ended, in a wait of the data plane."""
        self._data_plane, self._on_end = data_plane, on_end
        self._pidfds: dict[int, int] = {}

    def watch(self, peer: int, pid: int) -> None:
        try:
            file = os.pidfd_open(pid)
        except ProcessLookupError:
            self._data_plane.on_peer_ended(peer, "is gone")
        else:
            self._pidfds[peer] = file
            self._data_plane.add_file(file, partial(self._on_ended, peer))

    def _on_ended(self, peer: int) -> None:
        self.forget(peer)
        self._on_end(peer)

    def forget(self, peer: int) -> None:
        """Ends the watch of a process, if there is one."""
        if (file := self._pidfds.pop(peer, None)) is not None:
            self._data_plane.remove_file(file)
            os.close(file)

    def close(self) -> None:
        for peer in [*self._pidfds]:
            self.forget(peer)
