"""A tensor over an address keeps its memory alive, and reports when its last view is collected."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from typing import Any

import pytest
import torch

from meshctl.runtime.devices import from_address
from meshctl.runtime.devices.from_address import tensor_at

CPU = torch.device("cpu")


class Owner:
    def __init__(self, nbytes: int) -> None:
        self.memory = torch.arange(nbytes, dtype=torch.uint8)

    def view(self, ended: list[int]) -> torch.Tensor:
        return tensor_at(
            self.memory.data_ptr(), self.memory.nbytes, CPU, self, lambda: ended.append(threading.get_ident())
        )


def derived(view: torch.Tensor) -> dict[str, Any]:
    return {
        "slice": view[3:5],
        "reshaped": view[:64].view(8, 8)[2:, 1],
        "dtype": view[:64].view(torch.int64),
        "numpy": view.numpy()[1:],
        "detached": view.detach(),
        "storage": view.untyped_storage(),
        "memoryview": memoryview(view.numpy()),
        "saved": (
            view[:64].view(torch.float64).clone().requires_grad_() * view[:64].view(torch.float64)
        ).sum(),
    }


@pytest.mark.parametrize("kind", derived(torch.zeros(64, dtype=torch.uint8)))
def test_the_end_of_a_tensor_is_that_of_the_last_thing_derived_from_it(kind: str) -> None:
    ended: list[int] = []
    before = {*from_address._kept}
    owner = Owner(100)
    alive = weakref.ref(owner)
    view = owner.view(ended)
    kept = derived(view)[kind]
    del view, owner
    gc.collect()
    assert not ended and alive()
    del kept
    gc.collect()
    assert ended == [threading.get_ident()] and not alive() and {*from_address._kept} <= before


def test_a_tensor_may_end_in_autograds_thread_and_in_the_collector() -> None:
    ended: list[int] = []

    class Circle:
        def __init__(self, view: torch.Tensor) -> None:
            self.view, self.me = view, self

    Circle(Owner(10).view(ended))
    gc.collect()
    assert len(ended) == 1
    factor = torch.ones(8, requires_grad=True)
    product = (factor * Owner(64).view(ended).view(torch.float64)).sum()
    product.backward()
    assert len(ended) == 2


def test_what_is_refused_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {*from_address._kept}
    monkeypatch.setattr(from_address, "_CPU", 99)
    with pytest.raises(BufferError):
        Owner(10).view([])
    assert {*from_address._kept} <= before


@pytest.mark.slow_suite
def test_tensors_may_outlive_everything_in_silence() -> None:
    program = """
import torch
from meshctl.runtime.devices.from_address import tensor_at
memory = torch.ones(10, dtype=torch.uint8)
torch.kept = tensor_at(memory.data_ptr(), 10, torch.device("cpu"), memory, lambda: print("said at the end"))
kept = tensor_at(memory.data_ptr(), 10, torch.device("cpu"), memory, lambda: print("said at the end"))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "") and "Exception ignored" not in done.stderr
