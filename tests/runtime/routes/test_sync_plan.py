"""The links of a sync transfer each requested element exactly once, in bounded buckets, from the nearest
producers in turn."""

from __future__ import annotations

from collections import Counter
from itertools import product

import torch
from hypothesis import given
from hypothesis import strategies as st

from meshctl.runtime.routes.sync_plan import Bucket, Distance, Parameter, Shard, SyncPlan
from meshctl.topology.mesh import even_split

SHAPES = {"w": (6, 5), "b": (5,), "s": (), "t": (2, 3, 4)}
WHOLE = {name: Shard((0,) * len(shape), shape) for name, shape in SHAPES.items()}
PARAMETERS = {name: Parameter(shape, torch.float32) for name, shape in SHAPES.items()}


def cut(shape: tuple[int, ...], parts: tuple[int, ...]) -> list[Shard]:
    """Returns a grid of shards of a tensor that is sharded over several dims."""
    edges = [
        [even_split(size, count, part) for part in range(count)]
        for size, count in zip(shape, parts, strict=True)
    ]
    return [
        Shard(tuple(r.start for r in ranges), tuple(len(r) for r in ranges)) for ranges in product(*edges)
    ]


def link(
    plan: SyncPlan,
    most: int = 64,
    node_of: tuple[int, ...] = (),
    far: Distance = lambda producer, consumers: 1,
) -> list[Bucket]:
    return plan.buckets(lambda consumer: node_of[consumer] if node_of else 0, far, most, most // 2)


@st.composite
def held(draw: st.DrawFn) -> list[dict[str, Shard]]:
    """Draws the shards of some ranks: every parameter is sharded in its own way, with as many replicas as
    there are ranks for."""
    count = draw(st.integers(1, 6))
    ranks: list[dict[str, Shard]] = [{} for _ in range(count)]
    for name, shape in SHAPES.items():
        grid = [shard for shard in cut(shape, tuple(draw(st.integers(1, 3)) for _ in shape)) if shard.count]
        grid = grid if len(grid) <= count else [WHOLE[name]]
        for rank in range(count):
            ranks[rank][name] = grid[rank % len(grid)]
    return ranks


@given(held(), held(), st.integers(4, 200), st.data())
def test_every_consumer_receives_exactly_its_samples(
    producers: list[dict[str, Shard]], consumers: list[dict[str, Shard]], most: int, data: st.DataObject
) -> None:
    nodes = tuple(data.draw(st.integers(0, 1)) for _ in consumers)
    plan = SyncPlan(PARAMETERS, producers, consumers)
    got = [
        {name: torch.zeros(shard.size, dtype=torch.int64) for name, shard in plan.wanted(consumer).items()}
        for consumer in range(len(consumers))
    ]
    for bucket in link(plan, most, nodes):
        assert (
            bucket.nbytes
            == 4 * sum(item.shard.count for item in bucket.items)
            <= (most if len(bucket.items) == 1 else most // 2)
        )
        assert (
            len({nodes[consumer] for consumer in bucket.consumers}) == 1 and bucket.leader in bucket.producers
        )
        for item, producer, consumer in product(bucket.items, bucket.producers, bucket.consumers):
            part = item.shard.intersection(producers[producer][item.name])
            assert part is not None
            part.view_of(got[consumer][item.name], consumers[consumer][item.name]).add_(1)
    assert all(bool((tensor == 1).all()) for mine in got for tensor in mine.values())


@given(held(), held())
def test_parameters_come_in_order(
    producers: list[dict[str, Shard]], consumers: list[dict[str, Shard]]
) -> None:
    """A bucket does not begin before the previous one, so the bucket that a consumer opens for a parameter is
    its next one."""
    order = [*SHAPES]
    begins = [
        order.index(bucket.items[0].name) for bucket in link(SyncPlan(PARAMETERS, producers, consumers))
    ]
    assert begins == sorted(begins)


def test_consumers_of_one_node_receive_it_together() -> None:
    found = link(SyncPlan(PARAMETERS, [WHOLE], [None, WHOLE, None]), 1 << 10, (0, 0, 1))
    assert [bucket.consumers for bucket in found] == [(0, 1), (2,)]


def test_replicas_are_read_in_turn_and_the_nearest_first() -> None:
    plan = SyncPlan(PARAMETERS, [WHOLE] * 4, [WHOLE] * 2)
    turns = Counter(producer for bucket in link(plan, 16) for producer in bucket.producers)
    assert set(turns) == {0, 1, 2, 3} and max(turns.values()) - min(turns.values()) <= 1
    near = link(plan, 16, (0, 1), lambda producer, consumers: 1 if producer % 2 == consumers[0] else 2)
    assert all(producer % 2 == bucket.consumers[0] for bucket in near for producer in bucket.producers)


@given(st.lists(st.integers(1, 5), max_size=3).map(tuple), st.integers(1, 30))
def test_slabs_are_in_order_and_in_one_piece(shape: tuple[int, ...], most: int) -> None:
    whole = Shard((0,) * len(shape), shape)
    tensor = torch.arange(whole.count).view(shape)
    found = [slab.view_of(tensor, whole) for slab in whole.slabs(most)]
    assert all(part.is_contiguous() and part.numel() <= most for part in found)
    assert torch.equal(torch.cat([part.reshape(-1) for part in found]), tensor.reshape(-1))
