"""Devices of host memory, and how peers access it."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

from torch import Tensor
from torch.distributed import FileStore

from meshctl.runtime.devices.backend import PeerAccess
from meshctl.runtime.devices.nccl import PairTransfers
from meshctl.runtime.transports.context import OnBroken
from tests.hang import HANG_S
from tests.runtime.devices.host_pairs import HostStreams, by_gloo
from tests.runtime.devices.standin import Standin

READ = PeerAccess(
    dict.fromkeys(range(4), "one"), {job_rank: frozenset(range(4)) - {job_rank} for job_rank in range(4)}
)
"""All ranks are on one device."""


MOVED = PeerAccess(
    {job_rank: f"device {job_rank}" for job_rank in range(4)},
    {job_rank: frozenset() for job_rank in range(4)},
)
"""No rank can read another rank's device."""


MIXED = PeerAccess(
    {job_rank: f"device {job_rank}" for job_rank in range(4)}, {0: frozenset({1, 2, 3}), 1: frozenset({0})}
)
"""Ranks 2 and 3 cannot read other devices."""


KINDS = {"read": READ, "moved": MOVED, "mixed": MIXED}


class Device:
    """A worker's stand-in device, whose tensors are allocated in one large piece."""

    def __init__(self, access: PeerAccess, store: Path, job_rank: int) -> None:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        self.memory, self.access = Standin(f"device {job_rank}"), access
        self._place, self._piece, self._at = job_rank, self.memory.make(64 << 20), 0
        self._store = FileStore(str(store), -1)
        self._store.set_timeout(timedelta(seconds=HANG_S))

    def make_transfers(self, on_broken: OnBroken) -> PairTransfers:
        return PairTransfers(self._place, HostStreams(), by_gloo(self._store), on_broken)

    def tensor(self, of: Tensor) -> Tensor:
        """A copy on the device."""
        if self._at + of.nbytes > self._piece.nbytes:
            self._at = 0
        at, self._at = self._at, self._at + -(-of.nbytes // 64) * 64
        return self._piece.view(at, of.nbytes).view(of.dtype).view(of.shape).copy_(of)
