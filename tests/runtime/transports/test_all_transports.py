"""The same pipelines in real processes over every transport. One set of workers runs them all, one after
another."""

from __future__ import annotations

import json
import os
import socket
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from torch.distributed import PrefixStore, Store, TCPStore

from meshctl.plan.model import Input, Plan
from meshctl.run.shutdown import Proposer, StopAgreement
from meshctl.runtime.batch.batch import Batch
from meshctl.runtime.loop import Loop
from meshctl.runtime.loop_context import LoopContext
from meshctl.runtime.rank_context import RankContext
from meshctl.runtime.routes.end import TAGS_PER_ROUTE
from meshctl.runtime.transports.context import Context
from meshctl.runtime.transports.data_plane import DataPlane
from meshctl.runtime.transports.tcp.transport import TcpTransport
from meshctl.runtime.world import connect_all
from meshctl.topology.cluster import Cluster
from meshctl.topology.modes import Dispatch
from tests.hang import HANG_S
from tests.runtime import in_process
from tests.runtime.in_process import KeptEvents
from tests.runtime.pipelines import made, pipelines
from tests.runtime.plans import call, plan

JOB_SIZE = 5
pytestmark = pytest.mark.slow


@cache
def jobs() -> list[Plan]:
    """Returns two opposite orders and a few random ones, the same in every process."""
    components = {
        "source-a": ("a", {}),
        "source-b": ("b", {}),
        "echo-a": ("a", {}),
        "echo-b": ("b", {"tp_size": 2}),
    }
    crossed = [
        call("l", "source-a.next", samples=4),
        call("r", "source-b.next", samples=4),
        call("rl", "echo-b.take", "l"),
        call("lr", "echo-a.take", "r"),
        call("back", "echo-a.take", "rl"),
        call("forth", "echo-b.take", "lr"),
        call(
            "pair",
            "echo-a.pair",
            Input(("back",), "first", Dispatch(balance="tokens")),
            Input(("l",), "second"),
        ),
    ]
    modes = [
        call("l", "source-a.next", samples=6),
        call("peers", "echo-b.take", Input(("l",), dispatch=Dispatch("slice")), execute="peer"),
        call("many", "echo-a.thrice", "l"),
        call("judged", "echo-b.take", Input(("many",), dispatch=Dispatch(balance="tokens"))),
        call("home", "echo-a.take", Input(("judged",), dispatch=Dispatch(home="many"))),
        call("first", "echo-b.take", Input(("l",), dispatch=Dispatch("all")), execute="first"),
        call("loss", "echo-b.loss", "l", collect="mean"),
        call("every", "echo-b.loss", "l", collect="none"),
        call(
            "told",
            "echo-a.pair",
            Input(("l",), "first"),
            Input(("loss",), "second", Dispatch("all")),
            every=2,
        ),
        call("heard", "echo-a.pair", Input(("l",), "first"), Input(("every",), "second", Dispatch("all"))),
    ]
    large = [
        call("l", "source-a.next", samples=8000),
        call("r", "echo-b.take", "l"),
        call("lr", "echo-a.take", "r"),
    ]
    found = [
        plan({"a": 2, "b": 2}, components, crossed, steps=20),
        plan({"a": 2, "b": 2}, components, modes, steps=5),
        plan({"a": 1, "b": 4}, components, large, steps=3),
    ]

    @settings(
        max_examples=3,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(pipelines())
    def collect(job: Plan) -> None:
        if job.job_size <= JOB_SIZE:
            found.append(job)

    collect()
    return found


def by_tcp(job: Plan, job_rank: int, store: Store) -> DataPlane:
    transport = DataPlane(Context(job_rank, slots_of(job)))
    tcp = TcpTransport(transport, "token")
    store.set(f"{job_rank}", tcp.address)
    tcp.connect({other: store.get(f"{other}").decode() for other in range(job.job_size)})
    return transport


def reached(job: Plan, job_rank: int, store: Store) -> DataPlane:
    return connect_all(job, job_rank, store)


def slots_of(job: Plan) -> dict[int, int]:
    return {index * TAGS_PER_ROUTE: route.slots for index, route in enumerate(job.routes)}


def spread(job: Plan) -> Plan:
    """The same plan on two nodes, each with ranks of every group."""
    return replace(job, cluster=Cluster(nodes=2))


def apart(job: Plan) -> Plan:
    """The same plan with one node per group."""
    groups = [
        replace(group, device_type="npu", devices=((8 * node, 8 * node + group.workers),))
        for node, group in enumerate(job.groups)
    ]
    return replace(job, groups=tuple(groups), cluster=Cluster.of(len(groups), npu=8))


def same(job: Plan) -> Plan:
    return job


@dataclass(frozen=True)
class Case:
    reach: Callable[[Plan, int, Store], DataPlane]
    moved: Callable[[Plan], Plan] = same


WAYS = {
    "local": Case(reached),
    "tcp": Case(by_tcp),
    "tcp and local": Case(reached, spread),
    "tcp to replicas": Case(reached, apart),
}


def work(way: str, job_rank: int, port: int, folder: Path) -> None:
    """Runs one worker, which takes part in every job that has its job rank."""
    answer: list[Any] = []
    case = WAYS[way]
    for number, job in enumerate(map(case.moved, jobs())):
        if job_rank >= job.job_size:
            continue
        clients = [
            TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=HANG_S)) for _ in "12"
        ]
        store, listener = (PrefixStore(f"{way}/{number}", client) for client in clients)
        group, rank = job.group_and_rank(job_rank)
        seen: list[Any] = []
        components = {}
        for placed in job.components_of(group):
            components[placed.name] = made(placed.name, seen)
            components[placed.name]._context = RankContext(placed.name, placed.mesh, rank)
        transport = case.reach(job, job_rank, store)
        ending = StopAgreement(
            PrefixStore("ending", store),
            PrefixStore("ending", listener),
            job_rank,
        )
        context = LoopContext(job, group, rank, components, transport, ending, KeptEvents([], group, rank))
        last = Loop(context).run()
        transport.close()
        answer.append([number, last, values_of(seen)])
    (folder / f"{way}-{job_rank}.json").write_text(json.dumps(answer))


def values_of(seen: list[Any]) -> list[Any]:
    """Returns the values that a worker's components received, as plain data."""
    return [
        [step, batch.ids.tolist(), *([] if isinstance(more, Batch) else [more] for more in rest)]
        for step, _, batch, *rest in seen
    ]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[int, list[Any]]]]:
    """Returns the values that every worker received, by job rank. Workers are forked before the store's
    threads exist."""
    folder = tmp_path_factory.mktemp("ways")
    jobs()  # before the fork
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    children = []
    for job_rank in range(JOB_SIZE):
        if pid := os.fork():
            children.append(pid)
            continue
        try:
            for way in WAYS:
                work(way, job_rank, port, folder)
        except BaseException:
            (folder / f"{job_rank}.txt").write_text(traceback.format_exc())
        finally:
            os._exit(0)
    store = TCPStore(
        "127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )
    end = time.monotonic() + HANG_S
    try:
        while children and time.monotonic() < end and not list(folder.glob("*.txt")):
            children = [pid for pid in children if os.waitpid(pid, os.WNOHANG)[0] == 0]
            time.sleep(0.01)
        assert not [path.read_text() for path in folder.glob("*.txt")]
        assert not children, "these jobs did not end"
        yield {
            way: {
                job_rank: json.loads((folder / f"{way}-{job_rank}.json").read_text())
                for job_rank in range(JOB_SIZE)
            }
            for way in WAYS
        }
    finally:
        for pid in children:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
        del store


def test_every_job_ends_with_all_samples_where_they_should_be(
    answers: dict[str, dict[int, list[Any]]],
) -> None:
    for number, job in enumerate(jobs()):
        seen: dict[tuple[str, int], list[Any]] = {}

        def component(name: str, rank: int, job: Plan = job, seen: Any = seen) -> Any:
            return made(name, seen.setdefault((job.component(name).group, rank), []))

        assert not in_process.run(job, component).faults
        for way, job_rank in product(WAYS, range(job.job_size)):
            [(last, got)] = [found for place, *found in answers[way][job_rank] if place == number]
            assert last == job.run.steps, (way, number)
            assert got == values_of(seen[job.group_and_rank(job_rank)]), (way, number, job_rank)


def test_nobody_listens_to_a_proposer_without_workers() -> None:
    from torch.distributed import HashStore

    proposer = Proposer(HashStore(), [])
    assert proposer.asked() is None and proposer.poll() is None
