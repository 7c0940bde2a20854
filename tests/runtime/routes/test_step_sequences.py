"""Several steps of one route: no value of a step is used in the next one, and no producer is left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from meshctl.runtime.batch.batch import Batch
from meshctl.runtime.routes.channel import Channel
from meshctl.runtime.transports.errors import PeerLost
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.modes import DISPATCH, Dispatch, Route
from meshctl.topology.samples import RouteError, Run, SampleTable
from tests.runtime.routes.test_channel import run

ROUTE = Route("a -> b", "a", "b")
INT64_MAX = 2**63 - 1


def received(
    steps: Sequence[Sequence[Any]], consumers: int = 1, route: Route = ROUTE
) -> dict[int, list[Batch]]:
    """Returns what each consumer receives in each step, where `steps` has the value of each producer."""

    def send(channel: Channel, rank: int) -> None:
        for step, values in enumerate(steps, 1):
            channel.send(values[rank], step)

    def receive(channel: Channel, rank: int) -> list[Batch]:
        return [channel.receive(step).value for step in range(1, len(steps) + 1)]

    meshes = [DeviceMesh.from_sizes(dp_size=size) for size in (len(steps[0]), consumers)]
    return run(route, *meshes, send, receive)


def _by_parity(table: SampleTable, parts: int, options: Dispatch) -> list[list[Run]]:
    positions: list[list[int]] = [[] for _ in range(parts)]
    for position, id in enumerate(table.ids_of(table.in_order)):
        positions[id[0] % parts].append(position)
    return [table.select(some) for some in positions]


BY_PARITY = replace(DISPATCH["slice_dp"], partition=_by_parity)


def test_groups_are_kept_in_parts_of_many_runs() -> None:
    ids = torch.stack([torch.arange(900) // 2, torch.arange(900) % 2], 1)
    x = torch.arange(900, dtype=torch.float64)
    batches = [
        Batch({"x": x[start:stop]}, ids=ids[start:stop], group_depth=1)
        for start, stop in ((0, 10), (10, 900))
    ]
    route = replace(ROUTE, dispatch=Dispatch(f"{__name__}:BY_PARITY"))
    for part, [batch] in received([batches], 2, route).items():
        rows = ids[:, 0] % 2 == part
        assert batch.group_depth == 1 and torch.equal(batch.ids, ids[rows])
        assert torch.equal(batch["x"], x[rows])


def test_a_users_mode_that_reads_the_ids_reads_those_of_each_step() -> None:
    steps = [[Batch({"x": torch.arange(4)}, ids=torch.arange(4) + 3 * step)] for step in range(2)]
    route = replace(ROUTE, dispatch=Dispatch(f"{__name__}:BY_PARITY"))
    found = received(steps, 2, route)
    assert [batch.ids[:, 0].tolist() for batch in found[0]] == [[0, 2], [4, 6]]
    assert [batch["x"].tolist() for batch in found[1]] == [[1, 3], [0, 2]]


@pytest.mark.parametrize(
    "first",
    [[], [[Batch({"x": [1]}, ids=torch.tensor([0])), Batch({}, ids=torch.empty(0, 1, dtype=torch.int64))]]],
)
def test_a_list_and_a_batch_in_one_step_are_an_error(first: list[Any]) -> None:
    mixed = [Batch({"x": torch.arange(4)}, ids=torch.arange(4)), [1, 2, 3]]
    with pytest.raises((RouteError, PeerLost), match="`a` returned a Batch on some of its ranks"):
        received([*first, mixed])


def test_a_tensor_without_values_is_an_error() -> None:
    batch = Batch({"x": torch.empty(4, device="meta")}, ids=torch.arange(4))
    with pytest.raises((ValueError, PeerLost), match="column 'x': a tensor on meta has no values"):
        received([[batch]])


@pytest.mark.parametrize("count", [4, 100_000])
def test_a_tensor_of_zeros_without_memory_arrives_as_zeros(count: int) -> None:
    zeros = torch._efficientzerotensor(count)
    found = received([[Batch({"x": zeros}, ids=torch.arange(count))], [Batch({"x": [zeros]})]])[0]
    assert not found[0]["x"].any() and not found[1]["x"][0].any()


@pytest.mark.parametrize(
    "ids", [[INT64_MAX], [INT64_MAX - 1, INT64_MAX], [INT64_MAX, -INT64_MAX - 1], [-INT64_MAX - 1]]
)
def test_ids_may_be_any_int64(ids: list[int]) -> None:
    batch = Batch({"x": torch.tensor(ids)}, ids=torch.tensor(ids))
    [found] = received([[batch]])[0]
    assert found.ids[:, 0].tolist() == found["x"].tolist() == sorted(ids)
