"""Tensors on devices, sent out of band of frames, on a stand-in device: read in place or transferred, within
a node and between two nodes."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed import FileStore

from meshctl.runtime.batch.batch import Batch
from meshctl.runtime.devices.backend import DeviceError
from meshctl.runtime.devices.nccl import PairTransfers
from meshctl.runtime.transports.buffers.buffer_pool import MAX_HELD
from meshctl.runtime.transports.context import SLOTS, Context
from meshctl.runtime.transports.data_plane import DataPlane
from meshctl.runtime.transports.errors import OutOfMemory
from meshctl.runtime.transports.tcp.transport import TcpTransport
from tests.runtime.devices.accesses import KINDS, READ, Device
from tests.runtime.devices.host_pairs import HostStreams, by_gloo
from tests.runtime.devices.standin import Standin
from tests.runtime.hostile_world import Worker, World

TAG, BACK = 5, 6


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
        assert worker.way.pool.device
        return worker.way.pool.device.arena.count((TAG, tuple(to)))

    def consumer(worker: Worker) -> bool:
        rng, device = random.Random(worker.job_rank), worker.device
        kept: list[tuple[int, list[Tensor]]] = []
        for step in range(steps):
            if step % 2:
                device.memory.settle()  # or a late thread would hold more frames than a receiver may
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
            device.memory.settle()
        worker.transport.close()
        return True

    def consumer(worker: Worker) -> bool:
        for step in range(20):
            assert all(map(torch.equal, worker.transport.receive_value(0, TAG), value(step)))
            worker.device.memory.settle()
        worker.transport.close()
        return True

    with World(producer, consumer, device=partial(Device, READ, tmp_path / "store")) as world:
        assert world.results() == [True, True]


@pytest.mark.slow
def test_a_piece_that_is_too_small_is_closed_by_all_before_it_is_freed(tmp_path: Path) -> None:
    """The stand-in fills freed memory with 255. A frame is sent once the last but one has come back."""
    steps = 24

    def producer(worker: Worker) -> list[int]:
        device = worker.device
        for step in range(steps + 1):
            if step < steps:
                frame = worker.transport.frame((1, 2), placed(device, value(step, (1, 2000 << step // 2))))
                worker.transport.send((1, 2), TAG, frame)
            if step:
                assert [worker.transport.receive_value(other, BACK) for other in (1, 2)] == [step - 1] * 2
                worker.poll()
        assert worker.way.pool.device
        arena = worker.way.pool.device.arena
        arena.has("nothing", 0)
        left = [len(arena.dropped), arena.count((TAG, (1, 2))), len(device.memory.pieces) - 1]
        worker.transport.close()
        return left

    def consumer(worker: Worker) -> int:
        device = worker.device
        for step in range(steps):
            assert all(
                map(torch.equal, worker.transport.receive_value(0, TAG), value(step, (1, 2000 << step // 2)))
            ), step
            device.memory.settle()
            worker.transport.send(0, BACK, worker.transport.frame((0,), step))
        left = len(device.memory.pieces) - 1
        worker.transport.close()
        return left

    with World(producer, consumer, consumer, device=partial(Device, READ, tmp_path / "store")) as world:
        [dropped, blocks, pieces], *opened = world.results()
    assert dropped == 0 and pieces == blocks <= 2 and opened == [blocks] * 2


@pytest.mark.slow
def test_a_device_without_memory_is_an_error_that_names_the_use(tmp_path: Path) -> None:
    def refuse(nbytes: int) -> Any:
        raise DeviceError("cudaMalloc: out of memory")

    def producer(worker: Worker) -> list[Any]:
        device = worker.device
        tensors = placed(device, value(0))
        assert worker.way.pool.device
        worker.way.pool.device.arena.make = refuse
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
            worker.device.memory.settle()

    with World(producer, consumer, device=partial(Device, KINDS[kind], tmp_path / "store")) as world:
        assert world.receive(0) == "begun"
        world.kill(victim)
        problem, text, _ = world.ends(1 - victim)
        assert problem == "PeerLost"
        assert text.startswith((f"job rank {victim} is gone", f"job rank {victim} broke off"))


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
    thread.join()
    closing = [threading.Thread(target=transport.close) for transport in transports]
    for one in closing:
        one.start()
    for one in closing:
        one.join()
    memory.close()
