"""Pairs of workers over gloo, with streams of the host in place of those of a device."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
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


def by_gloo(store: Store) -> Connect:
    def join(producer: int, consumer: int, rank: int) -> Pair:
        return cast(
            Pair, ProcessGroupGloo(pair_store(store, producer, consumer), rank, 2, timedelta(seconds=HANG_S))
        )

    return join
