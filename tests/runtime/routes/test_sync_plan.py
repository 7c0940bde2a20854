"""The links of a sync cover what is wanted exactly once, in bounded buckets, by the nearest givers in turn."""

from __future__ import annotations

from collections import Counter
from itertools import product

import torch
from hypothesis import given
from hypothesis import strategies as st

from meshctl.runtime.routes.sync_plan import Box, Bucket, Layouts, Near, Parameter
from meshctl.topology.mesh import even_split

SHAPES = {"w": (6, 5), "b": (5,), "s": (), "t": (2, 3, 4)}
WHOLE = {name: Box((0,) * len(shape), shape) for name, shape in SHAPES.items()}
PARAMETERS = {name: Parameter(shape, torch.float32) for name, shape in SHAPES.items()}


def cut(shape: tuple[int, ...], parts: tuple[int, ...]) -> list[Box]:
    """A grid of boxes over a whole, as a sharding of several dims gives it."""
    edges = [
        [even_split(size, count, part) for part in range(count)]
        for size, count in zip(shape, parts, strict=True)
    ]
    return [Box(tuple(r.start for r in ranges), tuple(len(r) for r in ranges)) for ranges in product(*edges)]


def link(
    layouts: Layouts, most: int = 64, node_of: tuple[int, ...] = (), far: Near = lambda giver, takers: 1
) -> list[Bucket]:
    return layouts.buckets(lambda taker: node_of[taker] if node_of else 0, far, most, most // 2)


@st.composite
def held(draw: st.DrawFn) -> list[dict[str, Box]]:
    """What some ranks hold: every parameter cut in its own way, in as many copies as there are ranks for."""
    count = draw(st.integers(1, 6))
    ranks: list[dict[str, Box]] = [{} for _ in range(count)]
    for name, shape in SHAPES.items():
        grid = [box for box in cut(shape, tuple(draw(st.integers(1, 3)) for _ in shape)) if box.count]
        grid = grid if len(grid) <= count else [WHOLE[name]]
        for rank in range(count):
            ranks[rank][name] = grid[rank % len(grid)]
    return ranks


@given(held(), held(), st.integers(4, 200), st.data())
def test_every_taker_gets_exactly_what_it_wants(
    givers: list[dict[str, Box]], takers: list[dict[str, Box]], most: int, data: st.DataObject
) -> None:
    nodes = tuple(data.draw(st.integers(0, 1)) for _ in takers)
    layouts = Layouts(PARAMETERS, givers, takers)
    got = [
        {name: torch.zeros(box.size, dtype=torch.int64) for name, box in layouts.wanted(taker).items()}
        for taker in range(len(takers))
    ]
    for bucket in link(layouts, most, nodes):
        assert (
            bucket.nbytes
            == 4 * sum(item.box.count for item in bucket.items)
            <= (most if len(bucket.items) == 1 else most // 2)
        )
        assert len({nodes[taker] for taker in bucket.takers}) == 1 and bucket.teller in bucket.givers
        for item, giver, taker in product(bucket.items, bucket.givers, bucket.takers):
            part = item.box.meet(givers[giver][item.name])
            assert part is not None
            part.of(got[taker][item.name], takers[taker][item.name]).add_(1)
    assert all(bool((tensor == 1).all()) for mine in got for tensor in mine.values())


@given(held(), held())
def test_parameters_come_in_order(givers: list[dict[str, Box]], takers: list[dict[str, Box]]) -> None:
    """A bucket begins no earlier than the one before it: what a taker opens for a parameter is the next
    bucket that is its."""
    order = [*SHAPES]
    begins = [order.index(bucket.items[0].name) for bucket in link(Layouts(PARAMETERS, givers, takers))]
    assert begins == sorted(begins)


def test_takers_of_one_node_get_it_together() -> None:
    found = link(Layouts(PARAMETERS, [WHOLE], [None, WHOLE, None]), 1 << 10, (0, 0, 1))
    assert [bucket.takers for bucket in found] == [(0, 1), (2,)]


def test_replicas_are_read_in_turn_and_the_nearest_first() -> None:
    layouts = Layouts(PARAMETERS, [WHOLE] * 4, [WHOLE] * 2)
    turns = Counter(giver for bucket in link(layouts, 16) for giver in bucket.givers)
    assert set(turns) == {0, 1, 2, 3} and max(turns.values()) - min(turns.values()) <= 1
    near = link(layouts, 16, (0, 1), lambda giver, takers: 1 if giver % 2 == takers[0] else 2)
    assert all(giver % 2 == bucket.takers[0] for bucket in near for giver in bucket.givers)


@given(st.lists(st.integers(1, 5), max_size=3).map(tuple), st.integers(1, 30))
def test_slabs_are_in_order_and_in_one_piece(shape: tuple[int, ...], most: int) -> None:
    whole = Box((0,) * len(shape), shape)
    tensor = torch.arange(whole.count).view(shape)
    found = [slab.of(tensor, whole) for slab in whole.slabs(most)]
    assert all(part.is_contiguous() and part.numel() <= most for part in found)
    assert torch.equal(torch.cat([part.reshape(-1) for part in found]), tensor.reshape(-1))
