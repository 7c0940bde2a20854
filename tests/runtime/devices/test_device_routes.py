"""Batches and weights whose tensors are on devices."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from meshctl.runtime.batch.batch import Batch, Ragged
from meshctl.runtime.devices.backend import DEVICES
from meshctl.runtime.routes import rows, weights
from meshctl.runtime.routes.channel import Channel
from meshctl.runtime.routes.end import RouteContext, RouteSide
from meshctl.runtime.routes.sync_plan import Shard as Part
from meshctl.runtime.routes.weights import WeightChannel
from meshctl.runtime.transports.buffers import frames
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.modes import Dispatch, Route
from tests.runtime.devices.accesses import KINDS, Device
from tests.runtime.hostile_world import Worker, World

# Batches and weights


def everywhere(device: Device) -> None:
    """Makes this process treat memory of the stand-in as device memory."""
    for module in (frames, rows, weights):
        module.on_device = device.memory.holds  # type: ignore[attr-defined]
    DEVICES.add("cpu")


def ragged_batch(device: Device, rank: int, step: int) -> Batch:
    """Returns a batch of 12 samples with two columns on the device, one of them ragged, and two in CPU
    memory."""
    lengths = [1 + 700 * ((7 * row + step + rank) % 5) for row in range(12)]
    tokens = Ragged.of([torch.full((length,), length + step) for length in lengths])
    wide = torch.arange(12 * 1000).view(12, 1000) + 7 * rank + step
    columns = {
        "wide": device.tensor(wide),
        "tokens": Ragged(device.tensor(tokens.values), tokens.offsets),
        "near": torch.full((12, 3000), rank + step),
        "words": [f"{rank} {step} {row}" for row in range(12)],
    }
    return Batch(columns, ids=torch.arange(rank * 12, rank * 12 + 12))


def is_as_given(batch: Batch, step: int) -> bool:
    for index, (number,) in enumerate(batch.ids.tolist()):
        rank, row = divmod(number, 12)
        length = 1 + 700 * ((7 * row + step + rank) % 5)
        assert batch["wide"][index].tolist() == [
            *range(row * 1000 + 7 * rank + step, row * 1000 + 1000 + 7 * rank + step)
        ]
        assert batch["tokens"][index].tolist() == [length + step] * length
        assert batch["near"][index].eq(rank + step).all() and batch["words"][index] == f"{rank} {step} {row}"
    return bool(len(batch))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "balance", "producers"),
    [("read", "", 2), ("read", "tokens", 1), ("moved", "", 1), ("moved", "tokens", 2)],
)
def test_batches_on_devices(tmp_path: Path, kind: str, balance: Any, producers: int) -> None:
    sizes = dict.fromkeys(range(producers), DeviceMesh.from_sizes(dp_size=producers))

    def channel_of(worker: Worker) -> Channel:
        route = Route("a -> b", "a", "b", dispatch=Dispatch(balance=balance))
        consumer = RouteSide(DeviceMesh.from_sizes(dp_size=2), producers)
        return Channel(RouteContext(route, RouteSide(sizes[0], 0), consumer, worker.transport))

    def producer(worker: Worker) -> bool:
        device, channel = worker.device, channel_of(worker)
        everywhere(device)
        for step in range(6):
            channel.send(ragged_batch(device, worker.job_rank, step), step, 12)
        worker.transport.close()
        return True

    def consumer(worker: Worker) -> bool:
        device, channel = worker.device, channel_of(worker)
        everywhere(device)
        whole = False
        for step in range(6):
            batch = channel.receive(step).value
            assert is_as_given(batch, step)
            whole = whole or device.memory.holds(batch["wide"])
        worker.transport.close()
        return bool(balance) or whole == (kind == "read")

    with World(
        *[producer] * producers, consumer, consumer, device=partial(Device, KINDS[kind], tmp_path / "store")
    ) as world:
        assert world.results() == [True] * (producers + 2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["read", "moved"])
def test_weights_on_devices(tmp_path: Path, kind: str) -> None:
    """A sync from two ranks with halves of the weights to two ranks that need all of them, bucket by bucket.
    No rank writes to another rank's frame."""
    shapes = {"a": (64, 700), "b": (10,), "c": (128, 500)}

    def whole(name: str, step: int) -> Tensor:
        count = shapes[name][0] * (shapes[name][1] if len(shapes[name]) > 1 else 1)
        return (torch.arange(count, dtype=torch.float32) + step).view(shapes[name])

    def work(worker: Worker) -> bool:
        device = worker.device
        everywhere(device)
        mesh, gives = DeviceMesh.from_sizes(dp_size=2), worker.job_rank < 2
        context = RouteContext(
            Route("s", "s", "s", kind="weights"), RouteSide(mesh, 0), RouteSide(mesh, 2), worker.transport
        )

        def held(step: int) -> dict[str, Any]:
            found = {}
            for name, shape in shapes.items():
                half = shape[0] // 2
                box = Part((half * worker.job_rank, *(0 for _ in shape[1:])), (half, *shape[1:]))
                found[name] = Shard(
                    shape,
                    box,
                    device.tensor(whole(name, step)[half * worker.job_rank : half * (worker.job_rank + 1)]),
                )
            return found

        ends = (lambda: held(0), None) if gives else (None, lambda: {})
        channel = WeightChannel(context, *ends, checksum=True)
        channel.open()
        for step in range(1, 5):
            channel.send(held(step) if gives else None, step)
            if not gives:
                stream = channel.receive(step).value
                assert all(torch.equal(tensor, whole(name, step)) for name, tensor in stream)
        worker.transport.close()
        return True

    with World(*[work] * 4, device=partial(Device, KINDS[kind], tmp_path / "store")) as world:
        assert world.results() == [True] * 4


class Shard:
    """A shard with the interface of a DTensor."""

    def __init__(self, shape: tuple[int, ...], box: Part, local: Tensor) -> None:
        self.shape, self.dtype, self.ndim = shape, local.dtype, len(shape)
        self.offsets, self.sizes, self._local = box.start, box.size, local

    def __create_chunk_list__(self) -> Sequence[Shard]:
        return [self]

    def to_local(self) -> Tensor:
        return self._local
