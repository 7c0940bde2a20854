"""Transfers between devices, over pairs of one process. Those between processes are in `test_device_buffers.py`."""

from __future__ import annotations

import gc
import queue
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from meshctl.runtime.devices import nccl
from meshctl.runtime.devices.nccl import Pair, PairTransfers
from tests.hang import HANG_S
from tests.runtime.devices.host_pairs import HostStreams


class Never:
    """A pair whose other end does nothing until it is aborted."""

    def __init__(self) -> None:
        self.aborted = threading.Event()
        self.posted = threading.Event()

    def send(self, tensors: list[Tensor], rank: int, tag: int, /) -> Never:
        self.posted.set()
        return self

    recv = send

    def wait(self) -> bool:
        self.aborted.wait()
        return True  # as a kernel that was broken off ends as if it had done its work

    def abort(self) -> None:
        self.aborted.set()


class Wire:
    """A pair within one process."""

    def __init__(self) -> None:
        self._sent: queue.SimpleQueue[Tensor] = queue.SimpleQueue()

    def send(self, tensors: list[Tensor], rank: int, tag: int, /) -> Wire:
        [tensor] = tensors
        self._sent.put(tensor.clone())
        return self

    def recv(self, tensors: list[Tensor], rank: int, tag: int, /) -> Wire:
        [tensor] = tensors
        tensor.copy_(self._sent.get())
        return self

    def wait(self) -> bool:
        return True

    def abort(self) -> None: ...


KINDS = {
    "scalar": torch.tensor(3.5),
    "bool": torch.tensor([True, False, True]),
    "bfloat16": torch.arange(7, dtype=torch.bfloat16),
    "complex": torch.randn(3, 5, dtype=torch.complex128),
    "conjugate": torch.randn(3, dtype=torch.complex64).conj(),
    "transposed": torch.randn(4, 6).t(),
    "strided": torch.arange(40, dtype=torch.int16)[3::7],
    "expanded": torch.arange(5.0)[:, None].expand(5, 6),
    "learnt": torch.randn(3, 3, requires_grad=True),
    "empty": torch.empty(3, 0, 2),
}


@pytest.fixture
def wired() -> Iterator[PairTransfers]:
    wires: dict[tuple[int, int], Wire] = {}

    def join(producer: int, consumer: int, rank: int) -> Pair:
        return wires.setdefault((producer, consumer), Wire())

    transfers = PairTransfers(0, HostStreams(), join, lambda job_rank, error: None)
    yield transfers
    transfers.close()


@pytest.mark.parametrize(
    "kinds", [*([kind] for kind in KINDS), [*KINDS], []], ids=lambda kinds: "+".join(kinds) or "none"
)
def test_any_tensors_arrive_as_their_bytes(wired: PairTransfers, kinds: list[str]) -> None:
    """Transfers from this rank to itself."""
    tensors = [KINDS[kind] for kind in kinds]
    got: queue.SimpleQueue[list[Tensor]] = queue.SimpleQueue()
    done = threading.Event()
    wired.send(0, tensors, done.set)
    wired.expect(0, [tensor.nbytes for tensor in tensors], partial(wired.clear_to_send, 0), got.put)
    on_message = got.get()
    assert done.wait() and len(on_message) == len(tensors)
    for tensor, expected in zip(on_message, tensors, strict=True):
        assert tensor.dtype is torch.uint8 and tensor.shape == (expected.nbytes,)
        assert torch.equal(tensor.view(expected.dtype).view(expected.shape), expected)


@pytest.fixture
def errors() -> Iterator[list[Any]]:
    yield []


def test_nothing_is_posted_before_its_other_end_comes_and_no_other_pair_waits_for_it(
    errors: list[Any],
) -> None:
    pairs = {1: Never(), 2: Never()}
    transfers = PairTransfers(
        0,
        HostStreams(),
        lambda producer, consumer, rank: pairs[consumer],
        lambda _, error: errors.append(error),
    )
    ended = {other: threading.Event() for other in pairs}
    for other in pairs:
        transfers.send(other, [torch.ones(1)], ended[other].set)
    for other in (2, 1):
        assert not pairs[other].posted.is_set()
        transfers.clear_to_send(other)
        assert pairs[other].posted.wait() and not ended[other].is_set()
        pairs[other].abort()
        assert ended[other].wait()
    assert not errors
    transfers.close()


def test_what_is_under_way_is_broken_off_and_counts_for_nothing(
    errors: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nccl, "STOP_S", HANG_S)
    pair = Never()
    transfers = PairTransfers(
        0, HostStreams(), lambda producer, consumer, rank: pair, lambda job_rank, error: errors.append(error)
    )
    for source in (1, 4, 5):
        transfers.expect(source, [100], lambda: None, errors.append)
    transfers.expect(2, [], lambda: None, lambda tensors: None)
    transfers.send(3, [torch.ones(3)], lambda: errors.append("done"))  # nobody says "come"
    pair.posted.wait()
    transfers.close()
    assert not any(
        end._thread.is_alive() for end in (*transfers._senders.values(), *transfers._receivers.values())
    )
    assert not errors


def test_a_pair_that_cannot_be_made_is_reported_with_its_job_rank(errors: list[Any]) -> None:
    def join(producer: int, consumer: int, rank: int) -> Pair:
        raise RuntimeError(f"{producer} {consumer} {rank}")

    reported = threading.Semaphore(0)

    def broke(job_rank: int, error: Exception) -> None:
        errors.append((job_rank, str(error)))
        reported.release()

    transfers = PairTransfers(7, HostStreams(), join, broke)
    transfers.expect(4, [1], lambda: None, errors.append)
    assert reported.acquire()
    transfers.send(5, [torch.ones(1)], lambda: errors.append("done"))
    transfers.clear_to_send(5)
    assert reported.acquire()
    assert errors == [(4, "4 7 1"), (5, "7 5 0")]
    transfers.close()


def test_messages_without_a_byte_need_no_pair(errors: list[Any]) -> None:
    def join(producer: int, consumer: int, rank: int) -> Pair:
        raise AssertionError

    transfers = PairTransfers(0, HostStreams(), join, lambda job_rank, error: errors.append(error))
    ended = threading.Semaphore(0)
    transfers.send(1, [torch.empty(0), torch.empty(0, 5)], ended.release)
    transfers.clear_to_send(1)
    transfers.expect(
        2,
        [0, 0, 0],
        lambda: None,
        lambda tensors: (errors.append([len(tensor) for tensor in tensors]), ended.release())[0],
    )
    assert ended.acquire() and ended.acquire()
    assert errors == [[0, 0, 0]]
    transfers.close()


def test_what_was_received_dies_with_the_last_tensor_of_it() -> None:
    gone, received = threading.Event(), []
    pair = Never()
    pair.aborted.set()
    on_message = threading.Event()
    transfers = PairTransfers(
        0, HostStreams(gone.set), lambda producer, consumer, rank: pair, lambda job_rank, error: None
    )
    transfers.expect(
        1, [100, 8], lambda: None, lambda tensors: (received.extend(tensors), on_message.set())[1]
    )
    assert on_message.wait()
    kept = received[1].view(torch.int64)
    received.clear()
    gc.collect()
    assert not gone.is_set()
    del kept
    assert gone.wait()  # the thread that received it waits for the next message meanwhile
    transfers.close()
