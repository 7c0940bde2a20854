"""Tensors on devices, sent out of band of frames, on a stand-in device: read in place or transferred, within
a node and between two nodes."""

from __future__ import annotations

import os
import random
import struct
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributed import FileStore

from meshctl.runtime.batch.batch import Batch, Ragged
from meshctl.runtime.devices.backend import DEVICES, DeviceError, PeerAccess
from meshctl.runtime.devices.device_buffers import DeviceBuffers
from meshctl.runtime.devices.nccl import PairTransfers
from meshctl.runtime.routes import rows, weights
from meshctl.runtime.routes.channel import Channel
from meshctl.runtime.routes.end import RouteContext, RouteSide
from meshctl.runtime.routes.sync_plan import Shard as Part
from meshctl.runtime.routes.weights import WeightChannel
from meshctl.runtime.transports.buffers import buffer_pool, frames
from meshctl.runtime.transports.buffers.arena import ArenaError
from meshctl.runtime.transports.buffers.buffer_pool import MAX_HELD
from meshctl.runtime.transports.data_plane import SLOTS, Context, DataPlane, OnBroken
from meshctl.runtime.transports.errors import BuffersHeld, OutOfMemory, PeerLost
from meshctl.runtime.transports.tcp.transport import TcpTransport
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.modes import Dispatch, Route
from tests.runtime.devices.host_pairs import HostStreams, by_gloo
from tests.runtime.devices.standin import Standin
from tests.runtime.hostile_world import Worker, World

TAG, BACK = 5, 6
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
        self._store.set_timeout(timedelta(seconds=60))

    def make_transfers(self, on_broken: OnBroken) -> PairTransfers:
        return PairTransfers(self._place, HostStreams(), by_gloo(self._store), on_broken)

    def tensor(self, of: Tensor) -> Tensor:
        """A copy on the device."""
        if self._at + of.nbytes > self._piece.nbytes:
            self._at = 0
        at, self._at = self._at, self._at + -(-of.nbytes // 64) * 64
        return self._piece.view(at, of.nbytes).view(of.dtype).view(of.shape).copy_(of)


def value(step: int, sizes: Sequence[int] = (3, 1000, 0, 70_000)) -> list[Tensor]:
    """Returns the same value on both sides. Some tensors are on the device, by the parity of their
    numbers."""
    dtypes = torch.int16, torch.uint8
    return [
        (torch.arange(size) * (step + number + 1) % 241).to(dtypes[number % 2])
        for number, size in enumerate(sizes)
    ]


def placed(device: Device, tensors: Sequence[Tensor]) -> list[Tensor]:
    return [
        device.tensor(tensor) if number % 2 and len(tensor) else tensor
        for number, tensor in enumerate(tensors)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("consumers", [1, 3])
def test_tensors_of_a_device_come_whole_by_every_way(tmp_path: Path, kind: str, consumers: int) -> None:
    steps = 40

    def producer(worker: Worker) -> int:
        device, to = worker.device, range(1, 1 + consumers)
        for step in range(steps):
            given = placed(device, value(step))
            frame = worker.transport.frame(to, given)
            assert len(frame.out_of_band) == 2
            worker.transport.send(to, TAG, frame)
            for tensor in given[1::2]:
                tensor.fill_(255)  # its maker uses it again at once
        for job_rank in to:
            assert worker.transport.receive_value(job_rank, BACK) == "all"
        worker.transport.close()
        assert worker.local.pool.device
        return worker.local.pool.device.arena.count((TAG, tuple(to)))

    def consumer(worker: Worker) -> bool:
        rng, device = random.Random(worker.job_rank), worker.device
        kept: list[tuple[int, list[Tensor]]] = []
        for step in range(steps):
            kept.append((step, worker.transport.receive_value(0, TAG)))
            while kept and (len(kept) > 3 or rng.random() < 0.5):
                of, came = kept.pop(0)
                assert all(torch.equal(one, other) for one, other in zip(came, value(of), strict=True)), of
                here = kind == "read" or (kind == "mixed" and worker.job_rank == 1)
                assert device.memory.holds(came[1]) == here and not device.memory.holds(came[0])
        del came
        worker.transport.send(0, BACK, worker.transport.frame((0,), "all"))
        worker.transport.close()
        return True

    with World(
        producer, *[consumer] * consumers, device=partial(Device, KINDS[kind], tmp_path / "store")
    ) as world:
        blocks, *ends = world.results()
    assert ends == [True] * consumers and blocks <= SLOTS + 1 + MAX_HELD and bool(blocks) == (kind != "moved")


@pytest.mark.slow
def test_a_job_rank_receives_what_it_sends_to_itself_and_others(tmp_path: Path) -> None:
    def producer(worker: Worker) -> bool:
        device = worker.device
        for step in range(20):
            given = placed(device, value(step))
            worker.transport.send((0, 1), TAG, worker.transport.frame((0, 1), given))
            for tensor in given[1::2]:
                tensor.fill_(255)
            assert all(map(torch.equal, worker.transport.receive_value(0, TAG), value(step)))
        worker.transport.close()
        return True

    def consumer(worker: Worker) -> bool:
        for step in range(20):
            assert all(map(torch.equal, worker.transport.receive_value(0, TAG), value(step)))
        worker.transport.close()
        return True

    with World(producer, consumer, device=partial(Device, READ, tmp_path / "store")) as world:
        assert world.results() == [True, True]


@pytest.mark.slow
def test_a_piece_that_is_too_small_is_closed_by_all_before_it_is_freed(tmp_path: Path) -> None:
    """The stand-in fills freed memory with 255."""

    def producer(worker: Worker) -> list[int]:
        device = worker.device
        for step in range(24):
            frame = worker.transport.frame((1, 2), placed(device, value(step, (1, 2000 << step // 2))))
            worker.transport.send((1, 2), TAG, frame)
            worker.poll(0.01)
        for job_rank in (1, 2):
            worker.transport.receive_value(job_rank, BACK)
        worker.poll(0.2)
        assert worker.local.pool.device
        arena = worker.local.pool.device.arena
        arena.has("nothing", 0)
        left = [arena.stats().dropped, arena.count((TAG, (1, 2))), len(device.memory.pieces) - 1]
        worker.transport.close()
        return left

    def consumer(worker: Worker) -> int:
        device = worker.device
        for step in range(24):
            assert all(
                map(torch.equal, worker.transport.receive_value(0, TAG), value(step, (1, 2000 << step // 2)))
            ), step
        worker.transport.send(0, BACK, worker.transport.frame((0,), "all"))
        worker.poll(0.2)
        left = len(device.memory.pieces) - 1
        worker.transport.close()
        return left

    with World(producer, consumer, consumer, device=partial(Device, READ, tmp_path / "store")) as world:
        [dropped, blocks, pieces], *opened = world.results()
    assert dropped == 0 and pieces == blocks <= SLOTS + 2 and opened == [blocks] * 2


@pytest.mark.slow
def test_one_who_keeps_tensors_of_a_device_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer_pool, "RETURN_WAIT_S", 0.05)

    def producer(worker: Worker) -> str:
        device = worker.device
        try:
            for step in range(100):
                worker.transport.send((1,), TAG, worker.transport.frame((1,), placed(device, value(step))))
        except BuffersHeld as held:
            return str(held)
        return ""

    def consumer(worker: Worker) -> None:
        kept = []
        with suppress(PeerLost):
            while True:
                kept.append(worker.transport.receive_value(0, TAG))

    with World(producer, consumer, device=partial(Device, READ, tmp_path / "store")) as world:
        [problem] = world.results(0)
        world.kill(0)
    assert problem == f"job rank 1 still holds {SLOTS + MAX_HELD} of the frames that were leased to it"


@pytest.mark.slow
def test_a_device_without_memory_is_an_error_that_names_the_use(tmp_path: Path) -> None:
    def refuse(nbytes: int) -> Any:
        raise DeviceError("cudaMalloc: out of memory")

    def producer(worker: Worker) -> list[Any]:
        device = worker.device
        tensors = placed(device, value(0))
        assert worker.local.pool.device
        worker.local.pool.device.arena.make = refuse
        with pytest.raises(OutOfMemory) as full:
            worker.transport.send((1,), TAG, worker.transport.frame((1,), tensors))
        return [str(full.value), sum(tensor.nbytes for tensor in tensors)]

    def consumer(worker: Worker) -> None:
        pass

    with World(producer, consumer, device=partial(Device, READ, tmp_path / "store")) as world:
        [[problem, nbytes]] = world.results(0)
    number = int(problem.removeprefix("cannot get ").split(" ")[0].replace(",", ""))
    assert problem.endswith(" bytes: cudaMalloc: out of memory") and nbytes < number < nbytes + 1000


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["read", "moved"])
@pytest.mark.parametrize("victim", [0, 1])
def test_who_waits_for_tensors_of_a_dead_peer_is_notified(tmp_path: Path, kind: str, victim: int) -> None:
    def producer(worker: Worker) -> None:
        device = worker.device
        for step in range(10_000):
            worker.transport.send((1,), TAG, worker.transport.frame((1,), placed(device, value(step))))
            if step == 20:
                worker.report("begun")

    def consumer(worker: Worker) -> None:
        for step in range(10_000):
            assert all(map(torch.equal, worker.transport.receive_value(0, TAG), value(step)))

    with World(producer, consumer, device=partial(Device, KINDS[kind], tmp_path / "store")) as world:
        assert world.receive(0) == "begun"
        killed = time.monotonic()
        world.kill(victim)
        problem, text, when = world.ends(1 - victim)
        assert (
            problem == "PeerLost"
            and text.startswith((f"job rank {victim} is gone", f"job rank {victim} broke off"))
            and when - killed < 1
        )


# Batches and weights


def everywhere(device: Device) -> None:
    """Makes this process treat memory of the stand-in as device memory."""
    for module in (frames, rows, weights):
        module.on_device = device.memory.holds  # type: ignore[attr-defined]
    DEVICES["cpu"] = DEVICES["cuda"]  # type: ignore[index]


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
@pytest.mark.parametrize("kind", ["read", "moved"])
@pytest.mark.parametrize("balance", ["", "tokens"])
@pytest.mark.parametrize("producers", [1, 2])
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
        channel.open(0)
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


# Between nodes


class Both(Standin):
    """The devices of two job ranks in one process. Memory in one of their pieces is device memory."""

    finished = 0

    def finish(self) -> None:
        self.finished += 1
        super().finish()


@pytest.mark.slow
def test_tensors_of_a_device_go_to_another_node_by_transfers(tmp_path: Path) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    transports, ways, memory = list[DataPlane](), list[TcpTransport](), Both()
    for job_rank in range(2):
        pairs = by_gloo(FileStore(str(tmp_path / "store"), -1))
        make = partial(PairTransfers, job_rank, HostStreams(), pairs)
        transports.append(DataPlane(Context(job_rank, make_transfers=make)))
        ways.append(TcpTransport(transports[-1], "token", memory=memory, devices=range(2)))
    for way in ways:
        way.connect({job_rank: other.address for job_rank, other in enumerate(ways)})
    piece = memory.make(1 << 20)
    tensors = [piece.view(number * 200_000, 70_000 * number).fill_(number) for number in range(1, 3)]

    def send_frame() -> None:
        for step in range(10):
            batch = Batch({"far": tensors[step % 2].view(10, -1), "near": torch.full((10,), step)})
            frame = transports[0].frame((1,), batch)
            assert len(frame.out_of_band) == 1
            transports[0].send((1,), TAG, frame)
            assert memory.finished == step + 1, "who takes it would wait for our device"
            transports[0].send((1,), TAG, transports[0].frame((1,), step))  # may not overtake it

    thread = threading.Thread(target=send_frame)
    thread.start()
    for step in range(10):
        batch = transports[1].receive_value(0, TAG)
        assert (
            torch.equal(batch["far"], tensors[step % 2].view(10, -1))
            and batch["near"].tolist() == [step] * 10
        )
        assert transports[1].receive_value(0, TAG) == step
    thread.join(20)
    closing = [threading.Thread(target=transport.close) for transport in transports]
    for one in closing:
        one.start()
    for one in closing:
        one.join(20)
    memory.close()


# What is said


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.one_of(
            st.builds(
                lambda number, size, at, nbytes, handle: (
                    struct.pack("<qqqq", number, size, at, nbytes) + handle
                ),
                st.integers(-2, 3),
                st.sampled_from([0, 1, -1, 100, 4096, 1 << 40, 2**63 - 1]),
                st.sampled_from([0, 0, 1, 512, -512, 2**62]),
                st.sampled_from([0, 1, -1, 100, 4096, 4097, 2**63 - 1]),
                st.one_of(st.just(b""), st.just(b"real"), st.binary(max_size=40)),
            ),
            st.binary(max_size=30),
        ),
        max_size=6,
    )
)
def test_hostile_words_are_an_error_or_a_view_of_what_is_there(words: list[bytes]) -> None:
    theirs, ours = Standin("theirs", 0), Standin("ours", 0)
    piece = theirs.make(4096)
    device = DeviceBuffers(0, ours, READ, lambda job_rank, number: None)
    try:
        for word in words:
            if word.endswith(b"real"):
                word = word[:-4] + piece.handle
            with suppress(ArenaError, DeviceError, struct.error):
                came = device.decode(1, word, lambda number: None)
                if isinstance(came, Tensor):
                    came.sum()
    finally:
        device.close_peers([1])
        ours.close()
        theirs.close()
