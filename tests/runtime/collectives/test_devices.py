"""Collectives of tensors on devices."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from meshctl import Component, DeviceMesh
from meshctl.runtime.collectives.collective import Collective
from meshctl.runtime.rank_context import RankContext
from meshctl.topology.mesh import even_split
from tests.paths import ROOT
from tests.runtime.collectives.cases import given, reduced, same

# Devices


def every_operation(it: Collective, device: torch.device) -> None:
    """Runs every operation. Results are on the device of the inputs."""
    assert it.device == device

    def brought(rank: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return given(rank, dtype, (4, 2)).to(device)

    for dtype in (torch.bool, torch.int16, torch.bfloat16, torch.float32):
        expected, mine = [brought(other, dtype) for other in it.ranks], brought(it.rank, dtype)
        for one, other in zip(it.all_gather(mine), expected, strict=True):
            same(one, other)
        same(it.all_gather_joined(mine, uneven=True), torch.cat(expected))
        for one, other in zip(it.all_to_all([mine] * it.size), expected, strict=True):
            same(one, other)
        same(it.broadcast(mine.clone(), it.size - 1), expected[-1])
        most = reduced([part.cpu() for part in expected], "max").to(device)
        same(it.all_reduce(mine.clone(), "max"), most)
        same(
            it.reduce_scatter(mine, "max"),
            most[even_split(4, it.size, it.rank).start : even_split(4, it.size, it.rank).stop],
        )
    same(
        it.all_reduce(brought(it.rank), "mean"),
        reduced([brought(other).cpu() for other in it.ranks], "mean").to(device),
    )
    assert it.broadcast_object({"t": brought(0)})["t"].device == torch.device("cpu")
    it.barrier()


def on_one(device: torch.device) -> None:
    made = Component()
    made._context = RankContext("it", DeviceMesh.from_sizes(), device=device)
    every_operation(made.collective("tp"), device)


def one_of_two(rank: int, port: int, backend: str, kind: str) -> None:
    """Runs one of two processes on accelerators."""
    device = torch.device(kind, rank % torch.cuda.device_count() if kind == "cuda" else None)
    if kind == "cuda":
        torch.cuda.set_device(device)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group(backend, store=store, rank=rank, world_size=2)
    made = Component()
    made._context = RankContext("it", DeviceMesh.from_sizes(tp_size=2), rank, device)
    every_operation(made.collective("tp"), device)
    dist.barrier()
    dist.destroy_process_group()


def on_two(backend: str, kind: str) -> None:
    """Runs in new processes, because a fork cannot use a device that its parent has initialized."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    code = "import os, sys; from tests.runtime.collectives.test_devices import one_of_two as do; do(int(sys.argv[1]), {}, {!r}, {!r}); os._exit(0)"
    words = [sys.executable, "-c", code.format(store.port, backend, kind)]
    both = [
        subprocess.Popen([*words, str(rank)], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    errors = [process.communicate()[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], "\n".join(errors)


CUDA = torch.cuda.device_count()


WITH_CUDA = pytest.mark.skipif(not CUDA, reason="there is no CUDA device here")


WITH_TWO = pytest.mark.skipif(CUDA < 2, reason="there are no two CUDA devices here")


WITH_MPS = pytest.mark.skipif(not torch.backends.mps.is_available(), reason="there is no MPS device here")


@pytest.mark.parametrize(
    "kind", [pytest.param("cuda:0", marks=WITH_CUDA), pytest.param("mps:0", marks=WITH_MPS)]
)
def test_one_process_on_a_device(kind: str) -> None:
    on_one(torch.device(kind))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "kind"),
    [
        pytest.param("cpu:gloo,cuda:nccl", "cuda", marks=WITH_TWO, id="nccl"),
        pytest.param("gloo", "cuda", marks=WITH_CUDA, id="gloo from cuda"),
        pytest.param("gloo", "mps", marks=WITH_MPS, id="gloo from mps"),
    ],
)
def test_two_processes_on_devices(backend: str, kind: str) -> None:
    on_two(backend, kind)
