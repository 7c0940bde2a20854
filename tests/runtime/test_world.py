"""The handshake between the workers of a plan: the addresses on which they listen, and the values on which
they must agree."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.distributed import HashStore, PrefixStore, distributed_c10d

from meshctl.plan.model import Plan
from meshctl.runtime import user_modes, world
from meshctl.runtime.devices.backend import DEVICES
from meshctl.runtime.transports.buffers.frames import Frame
from meshctl.runtime.transports.errors import ConnectError, PeerLost
from meshctl.runtime.transports.local.transport import LocalTransport
from meshctl.runtime.transports.tcp.transport import TcpTransport
from meshctl.runtime.world import Handshake
from meshctl.topology.cluster import DIRECT, Cluster
from meshctl.topology.modes import Dispatch
from tests.runtime.devices.standin import Standin
from tests.runtime.plans import call, plan


def job(samples: int = 2, ranks: int = 1, nodes: int = 1) -> Plan:
    made = plan(
        {"a": ranks, "b": ranks},
        {"source": ("a", {}), "echo": ("b", {})},
        [call("s", "source.next", samples=samples), call("t", "echo.take", "s")],
    )
    return replace(made, cluster=Cluster(nodes=nodes))


def apart(samples: int = 2) -> Plan:
    """Two workers on separate nodes."""
    made = job(samples)
    groups = [
        replace(group, device_type="npu", devices=((node, node + 1),))
        for node, group in enumerate(made.groups)
    ]
    return replace(made, groups=tuple(groups), cluster=Cluster.of(2, npu=1))


def greeting(made: Plan, address: str, **facts: str) -> str:
    """What a worker publishes in the handshake."""
    return json.dumps({"address": address, "facts": {"plan": made.digest, **facts}})


def at_once(*works: Callable[[], object]) -> list[str]:
    """Returns the error message of each worker; empty if it raised none."""
    errors = [""] * len(works)

    def guarded(number: int) -> None:
        try:
            works[number]()
        except Exception as error:
            errors[number] = f"{type(error).__name__}: {error}"

    threads = [threading.Thread(target=guarded, args=(number,), daemon=True) for number in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def test_who_joins_waits_for_the_last_worker_of_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world.dist, "init_process_group", lambda *_, **__: None)
    store, group, order = HashStore(), job(ranks=2).group("a"), list[str]()
    first = threading.Thread(target=lambda: [world.join(store, group, 0), order.append("the first is in")])
    first.start()
    while PrefixStore("world/a", store).add("joined", 0) < 1:
        assert first.is_alive()
    first.join(0.1)
    order.append("the last one comes")
    world.join(store, group, 1)
    first.join()
    assert order == ["the last one comes", "the first is in"]


def test_each_peer_is_reached_by_the_way_to_its_node() -> None:
    """Four workers on two nodes: a:0 and b:0, a:1 and b:1."""
    store, made, seen = HashStore(), job(ranks=2, nodes=2), dict[tuple[int, int], str]()

    def work(job_rank: int) -> None:
        transport = Handshake(made, job_rank, store).connect()
        others = [other for other in range(4) if other != job_rank]
        for other in others:
            seen[job_rank, other] = type(transport.transport_to(other)).__name__
            transport.send(other, 4, Frame([job_rank, other]))
        assert [transport.receive(other, 4).value() for other in others] == [
            [other, job_rank] for other in others
        ]
        transport.close()

    assert at_once(*(partial(work, job_rank) for job_rank in range(4))) == [""] * 4
    near = {(0, 2), (2, 0), (1, 3), (3, 1)}
    assert (
        seen == {pair: LocalTransport.__name__ if pair in near else TcpTransport.__name__ for pair in seen}
        and len(seen) == 12
    )


def test_a_peer_that_only_its_own_node_can_reach_is_reported() -> None:
    store, made = HashStore(), apart()
    store.set(f"{world.FAR}/1", greeting(made, "10.77.0.2 1"))
    [error] = at_once(lambda: Handshake(made, 0, store).connect())
    which = "b:0 listens on 10.77.0.2 and a:0 on 127.0.0.1"
    assert (
        error
        == f"ConnectError: other nodes: {which}: the head's address must be one by which every node reaches it"
    )


def test_who_does_not_come_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "JOIN", timedelta(seconds=1))
    with pytest.raises(PeerLost, match=r"^other nodes: b:0 did not connect within 1 s$"):
        Handshake(apart(), 0, HashStore()).connect()


def test_another_plan_is_an_error() -> None:
    store = HashStore()
    errors = at_once(*(Handshake(apart(2 + job_rank), job_rank, store).connect for job_rank in (0, 1)))
    assert errors == [
        f"ConnectError: other nodes: {them} has another plan than {us}"
        for us, them in (("a:0", "b:0"), ("b:0", "a:0"))
    ]


def test_a_handshake_that_fails_leaves_no_socket_open() -> None:
    store, made = HashStore(), job()
    store.set(f"{world.NEAR}/1", greeting(apart(), "1 00"))
    before = {*Path("/proc/self/fd").iterdir()}
    for _ in range(3):
        with pytest.raises((ConnectError, PeerLost)):
            Handshake(made, 0, store).connect()
    assert {*Path("/proc/self/fd").iterdir()} <= before  # a socket of an earlier test may have been collected


def test_another_source_of_a_users_mode_is_an_error_that_names_the_route(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_modes.py").write_text("from meshctl import DispatchMode\nEVEN = DispatchMode()\n")
    monkeypatch.syspath_prepend(tmp_path)
    made = apart()
    routes = tuple(replace(route, dispatch=Dispatch("own_modes:EVEN")) for route in made.routes)
    made = replace(made, routes=routes)
    ours = user_modes.source_digests(made, made.routes)
    assert list(ours) == ["s -> t"] and ours == user_modes.source_digests(made, made.routes)
    store = HashStore()
    store.set(f"{world.FAR}/1", greeting(made, "nowhere", **{"source of the modes of `s -> t`": "another"}))
    with pytest.raises(ConnectError, match="b:0 has another source of the modes of `s -> t` than a:0"):
        Handshake(made, 0, store).connect()
    (tmp_path / "own_modes.py").write_text("from meshctl import DispatchMode\nEVEN = DispatchMode()  # new\n")
    assert user_modes.source_digests(made, made.routes) != ours


def test_a_plan_states_whether_tensors_bypass_the_cpu() -> None:
    assert set(DEVICES) == set(DIRECT)


def test_tensors_on_devices_reach_another_group_through_host_memory_if_one_is_restartable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The ranks of a group share their devices with each other in both cases."""
    monkeypatch.setattr(world, "memory_of", lambda device: Standin(str(device)))
    monkeypatch.setattr(world, "transfers_of", lambda *_: SimpleNamespace(close=lambda: None))
    assert paths(restartable=False) == {("a", "a"): "device", ("a", "b"): "device", ("b", "b"): "device"}
    assert paths(restartable=True) == {("a", "a"): "device", ("a", "b"): "cpu", ("b", "b"): "device"}


def paths(*, restartable: bool) -> dict[tuple[str, str], str]:
    """Returns how tensors move between the groups of a job on one node."""
    made, store, found = job(ranks=2), HashStore(), dict[tuple[str, str], set[str]]()
    groups = [
        replace(group, device_type="cuda", devices=((first, first + 2),), restartable=flag)
        for group, first, flag in zip(made.groups, (0, 2), (restartable, False), strict=True)
    ]
    made = replace(made, groups=tuple(groups), cluster=Cluster.of(1, cuda=4))

    def work(job_rank: int) -> None:
        transport = Handshake(made, job_rank, store, torch.device("cuda", job_rank)).connect()
        for other in {*range(4)} - {job_rank}:
            device = transport.transport_to(other).pool.device
            assert device is not None
            ends = sorted(made.group_and_rank(each)[0] for each in (job_rank, other))
            way = "device" if device.readers([other]) else "nccl" if device.needs_transfer(other) else "cpu"
            found.setdefault((ends[0], ends[1]), set()).add(way)
        transport.close()

    assert at_once(*(partial(work, job_rank) for job_rank in range(4))) == [""] * 4
    return {pair: ", ".join(ways) for pair, ways in found.items()}


def test_groups_that_torch_makes_itself_have_no_timeout_that_a_job_reaches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(distributed_c10d, "default_pg_timeout", timedelta(minutes=30))
    monkeypatch.setattr(distributed_c10d, "default_pg_nccl_timeout", None)
    world.lift_timeouts()
    assert distributed_c10d.default_pg_timeout == world.RUNNING
    assert distributed_c10d.default_pg_nccl_timeout is None, "a torch without NCCL"
    monkeypatch.setattr(distributed_c10d, "default_pg_nccl_timeout", timedelta(minutes=10))
    world.lift_timeouts()
    assert distributed_c10d.default_pg_nccl_timeout == world.RUNNING
