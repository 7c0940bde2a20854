"""Pairs of workers over gloo, with streams of the host in place of those of a device."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributed import ProcessGroupGloo, Store

from meshctl.runtime.devices.from_address import tensor_at
from meshctl.runtime.devices.nccl import Connect, Pair, pair_store
from tests.hang import HANG_S


class HostStreams:
    """CPU memory as a device whose queued work completes a little later."""

    device = torch.device("cpu")

    def __init__(self, gone: Callable[[], None] | None = None) -> None:
        self._gone = gone

    def empty(self, nbytes: int) -> Tensor:
        memory = bytearray(max(nbytes, 1))
        return tensor_at(address_of(memory), nbytes, self.device, memory, self._gone)

    def mark(self) -> Callable[[], None]:
        until = time.monotonic() + random.random() / 1000
        return lambda: time.sleep(max(0.0, until - time.monotonic()))

    def own(self) -> AbstractContextManager[Any]:
        return nullcontext()


def address_of(memory: bytearray) -> int:
    return torch.frombuffer(memory, dtype=torch.uint8).data_ptr()


def ended(pid: int) -> int:
    end = time.monotonic() + HANG_S
    while time.monotonic() < end:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return -signal.SIGKILL


def reported(folder: Path) -> list[str]:
    return [path.read_text() for path in sorted(folder.glob("*.txt"))]


def by_gloo(store: Store) -> Connect:
    def join(producer: int, consumer: int, rank: int) -> Pair:
        return cast(
            Pair, ProcessGroupGloo(pair_store(store, producer, consumer), rank, 2, timedelta(seconds=HANG_S))
        )

    return join
