"""Work that a program has queued on a device, and another thread that uses the device meanwhile."""

from __future__ import annotations

import threading
from functools import partial

import torch

from meshctl.runtime.devices.backend import finish
from meshctl.runtime.devices.nccl import own_stream
from meshctl.runtime.transports.turn import DataPlaneLock
from tests.runtime.devices.standin import gpus

LONG = 4_000_000_000
"""Cycles of a device, seconds of it."""


@gpus(1)
def test_another_thread_copies_while_the_device_does_what_the_program_has_queued() -> None:
    """A collective of a component may occupy the program's stream until its peers come."""
    device = torch.device("cuda", 0)
    kept, end = torch.arange(1 << 20, device=device), torch.cuda.Event()
    finish(device)
    torch.cuda._sleep(LONG)
    end.record()
    with own_stream(device):
        assert torch.equal(kept.cpu(), torch.arange(1 << 20))
    assert not end.query()
    end.synchronize()


@gpus(1)
def test_what_a_component_has_queued_is_done_before_the_program_goes_on() -> None:
    device, end = torch.device("cuda", 0), torch.cuda.Event()
    turn, taken = DataPlaneLock(partial(finish, device)), list[bool]()

    def call() -> None:
        torch.cuda._sleep(LONG)
        end.record()
        other.start()

    def take() -> None:
        with turn.wanted():
            taken.append(end.query())

    other = threading.Thread(target=take)
    with turn.held():
        turn.during(call)()
        assert end.query()
    other.join()
    assert taken == [False]
