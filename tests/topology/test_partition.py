"""Every sample arrives exactly once at the right ranks and is collected in order, in all modes, for random pairs of
meshes up to 16 ranks. A batch with ids in a grid is partitioned without listing its samples, with the same result as
for listed ids."""

from __future__ import annotations

import random
from itertools import pairwise, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.modes import COLLECT, DISPATCH, EXECUTE, Dispatch
from meshctl.topology.partition import partition
from meshctl.topology.samples import Grid, Id, RouteError, Run, SampleTable, align, sample_order
from tests.examples import examples
from tests.topology.meshes import (
    MESHES,
    consumer_parts,
    parts_for,
    producer_ranks,
    producers_of,
    samples_by_rank,
)


@settings(max_examples=examples(100, 1000))
@given(
    st.sampled_from(MESHES),
    st.sampled_from(MESHES),
    st.integers(0, 40),
    st.sampled_from([name for name, mode in COLLECT.items() if mode.join in ("samples", "first")]),
    st.sampled_from(sorted(DISPATCH)),
    st.sampled_from(sorted(EXECUTE)),
    st.sampled_from(sorted(EXECUTE)),
)
def test_all_pairs_of_modes(
    producer: DeviceMesh, consumer: DeviceMesh, total: int, collect: str, mode: str, called: str, execute: str
) -> None:
    """Each share arrives once, at exactly the called ranks, in sample order."""
    who = producer_ranks(producer, collect, called)
    ids = [
        tuple((n,) for n in (range(total) if called == "first" else producer.sample_range(total, rank)))
        for rank in who
    ]
    held = SampleTable(tuple(ids))
    shares = samples_by_rank(execute, Dispatch(mode, allow_empty=True), consumer, held)
    received = {rank: [(s, i) for s, i in mine] for rank, mine in shares.items()}
    everything = {(s, i) for s, mine in enumerate(ids) for i in range(len(mine))}
    assert {at for mine in received.values() for at in mine} == everything
    for rank, mine in received.items():
        assert len(set(mine)) == len(mine)
        assert [ids[s][i] for s, i in mine] == sorted(ids[s][i] for s, i in mine)
        assert {s for s, _ in mine} <= set(producers_of(consumer, execute, len(who), rank))
    if execute == "first":
        assert set(received) == {0}
    if execute == "all":
        by_share: dict[int, list[tuple[int, int]]] = {}
        for rank, mine in received.items():
            assert by_share.setdefault(DISPATCH[mode].share_of(consumer, rank), mine) == mine
        assert sorted(at for mine in by_share.values() for at in mine) == sorted(everything)
        if mode == "slice_dp" and called == "all" and collect == "flatten":
            numbers = {rank: [ids[s][i][0] for s, i in mine] for rank, mine in received.items()}
            assert numbers == {rank: list(consumer.sample_range(total, rank)) for rank in received}


@given(st.lists(st.integers(1, 5), min_size=1, max_size=20), st.integers(1, 4), st.booleans())
def test_groups_are_never_split(sizes: list[int], parts: int, balance: bool) -> None:
    ids = tuple((group, place) for group, size in enumerate(sizes) for place in range(size))
    held = SampleTable((ids,), (tuple(1 + (g * 7 + p) % 5 for g, p in ids),), group_depth=1)
    mesh = DeviceMesh.from_sizes(dp_size=parts)
    shares = samples_by_rank(
        "all", Dispatch(balance="tokens" if balance else "", allow_empty=True), mesh, held
    )
    owners = {(held.ids[s][i][0], rank) for rank, mine in shares.items() for s, i in mine}
    assert len(owners) == len(sizes)


@settings(max_examples=examples(25, 200))
@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3000)), min_size=1, max_size=60),
    st.lists(st.integers(1, 5), min_size=1, max_size=5),
    st.integers(1, 9),
    st.booleans(),
    st.randoms(),
)
def test_balanced_shares_do_not_depend_on_who_holds_the_samples(
    groups: list[tuple[int, int]], producers: list[int], parts: int, equal_counts: bool, draw: random.Random
) -> None:
    """Every sample is in one share, groups are not divided, and the shares depend only on the samples."""
    tokens = {
        (group, place): total // (1 + place)
        for group, (size, total) in enumerate(groups)
        for place in range(size)
    }
    dispatch = Dispatch(balance="tokens", allow_empty=True, equal_counts=equal_counts)

    def shares_of(held: list[list[Id]]) -> list[list[Id]]:
        lengths = tuple([tokens[id] for id in ids] for ids in held)
        table = SampleTable(tuple(map(tuple, held)), lengths, group_depth=1)
        return [table.ids_of(part) for part in partition(table, parts, dispatch)]

    alone = shares_of([list(tokens)])
    held: list[list[Id]] = [[] for _ in producers]
    for id in draw.sample(list(tokens), len(tokens)):
        held[draw.choices(range(len(producers)), producers)[0]].append(id)
    assert shares_of(held) == alone
    assert sorted(id for share in alone for id in share) == list(tokens)
    assert all(share == sorted(share) for share in alone)
    owners = {(id[0], part) for part, share in enumerate(alone) for id in share}
    assert len(owners) == len(groups)
    counts = [len({id[0] for id in share}) for share in alone]
    assert (
        max(counts) - min(counts) <= 1 if equal_counts else sum(map(bool, alone)) == min(parts, len(groups))
    )


def test_errors_name_the_numbers() -> None:
    two = DeviceMesh.from_sizes(dp_size=2)
    with pytest.raises(RouteError, match="1 samples for 2 shares: 1 of them would be empty"):
        samples_by_rank("all", Dispatch(), two, SampleTable((((0,),),)))
    with pytest.raises(RouteError, match="1 groups for 2 shares"):
        samples_by_rank("all", Dispatch(), two, SampleTable((((0, 0), (0, 1)),), group_depth=1))
    with pytest.raises(RouteError, match=r"sample 3\.1 occurs twice"):
        sample_order(SampleTable((((3, 1),), ((3, 1),))))
    with pytest.raises(RouteError, match="sample 5 is missing"):
        align([(5,)], SampleTable((((4,),),)))
    with pytest.raises(RouteError, match=r"sample 3\.1 is missing"):
        align([(3,), (3, 1)], SampleTable((((3,),),)))


# Grids

small = st.integers(1, 4)
grids = st.builds(Grid, st.integers(0, 20), st.lists(small, min_size=1, max_size=3).map(tuple))


def listed(table: SampleTable) -> SampleTable:
    """Returns the same table with listed ids instead of grids."""
    return SampleTable(tuple(tuple(ids) for ids in table.ids), table.lengths, table.homes, table.group_depth)


@st.composite
def tables(draw: st.DrawFn, homes: int = 4) -> SampleTable:
    """Draws tables of some producers. Most have a grid that follows the previous one, some no samples, some
    listed samples in any order."""
    inner = tuple(draw(st.lists(small, max_size=2)))
    entries, start = list[Any](), draw(st.integers(0, 5))
    kinds = st.sampled_from(["grid", "grid", "grid", "other grid", "empty", "listed"])
    for kind in draw(st.lists(kinds, min_size=1, max_size=5)):
        count = draw(small)
        shape = inner if kind == "grid" else tuple(draw(st.permutations(inner)))
        ids: Any = () if kind == "empty" else Grid(start, (count, *shape))
        if kind == "listed":
            ids = tuple(draw(st.permutations(list(ids)))[: draw(st.integers(0, len(ids)))])
        start += count + draw(st.sampled_from([0, 0, 0, 1, -1]))
        entries.append(ids)
    if draw(st.booleans()):
        entries = draw(st.permutations(entries))

    def numbers(most: int) -> tuple[tuple[int, ...], ...] | None:
        if draw(st.booleans()):
            return None
        return tuple(tuple(draw(st.integers(0, most)) for _ in ids) for ids in entries)

    return SampleTable(tuple(entries), numbers(9), numbers(homes - 1), draw(st.integers(0, len(inner))))


modes = st.sampled_from(sorted(DISPATCH))
balances = st.sampled_from(["", "tokens"])
homes = st.sampled_from(["", "stage"])
dispatches = st.builds(Dispatch, modes, balances, homes, st.booleans(), st.booleans())


def outcome(execute: str, dispatch: Dispatch, mesh: DeviceMesh, table: SampleTable) -> Any:
    """Returns the parts, or the error message."""
    try:
        return parts_for(execute, dispatch, mesh, table)
    except RouteError as error:
        return str(error)


@given(grids, st.data())
def test_a_grid_is_its_list(grid: Grid, data: st.DataObject) -> None:
    whole = [(grid.start + number[0], *number[1:]) for number in product(*map(range, grid.shape))]
    assert list(grid) == whole and len(grid) == len(whole) and whole == sorted(whole)
    assert (grid.first, grid.last) == (whole[0], whole[-1])
    index = data.draw(st.integers(-len(whole), len(whole) - 1))
    cut = slice(
        *data.draw(st.tuples(*[st.none() | st.integers(-9, 9)] * 2)),
        data.draw(st.sampled_from([None, 1, 2, -1])),
    )
    assert grid[index] == whole[index] and grid[cut] == tuple(whole[cut])
    for beyond in (len(whole), -len(whole) - 1):
        with pytest.raises(IndexError):
            grid[beyond]


@settings(max_examples=examples(80, 600))
@given(tables(), dispatches, st.sampled_from(sorted(EXECUTE)), st.sampled_from(MESHES))
def test_parts_of_grids_are_those_of_the_listed_ids(
    table: SampleTable, dispatch: Dispatch, execute: str, mesh: DeviceMesh
) -> None:
    found = outcome(execute, dispatch, mesh, table)
    assert found == outcome(execute, dispatch, mesh, listed(table))
    if isinstance(found, str):
        return
    received = consumer_parts(mesh, execute, dispatch.mode, len(table.ids))
    assert len(found) == len(received.ranks) == len(received.producers)
    for part, may in zip(found, received.producers, strict=True):
        assert {run.producer for run in part} <= set(may)
        ids = table.ids_of(part)
        assert ids == sorted(set(ids)) and sum(map(len, part)) == len(ids)
        assert all(0 <= run.start < run.stop <= len(table.ids[run.producer]) for run in part)
        assert not [
            1 for one, other in pairwise(part) if (one.producer, one.stop) == (other.producer, other.start)
        ]
    everything = sorted(id for ids in table.ids for id in ids)
    held = [id for part in found for id in table.ids_of(part)]
    assert set(held) == set(everything)
    if execute == "all":
        assert sorted(held) == everything


@given(tables(), st.data())
def test_order_is_that_of_ids(table: SampleTable, data: st.DataObject) -> None:
    everything = sorted(id for ids in table.ids for id in ids)
    if len(set(everything)) < len(everything):
        with pytest.raises(RouteError, match="occurs twice"):
            _ = table.in_order
        return
    assert table.ids_of(table.in_order) == everything and table.total == len(everything)
    assert sample_order(table) == [
        (run.producer, index) for run in table.in_order for index in range(run.start, run.stop)
    ]
    wanted = data.draw(st.permutations(everything))
    assert [table.ids[producer][index] for producer, index in align(wanted, table)] == wanted


counts = st.lists(small, min_size=1, max_size=5)


@given(st.lists(small, max_size=2), counts, counts, st.sampled_from(MESHES))
def test_the_key_does_not_depend_on_the_holder_of_a_sample(
    inner: list[int], one: list[int], other: list[int], mesh: DeviceMesh
) -> None:
    def table(counts: list[int]) -> SampleTable:
        return SampleTable(
            tuple(Grid(sum(counts[:number]), (count, *inner)) for number, count in enumerate(counts))
        )

    ours, theirs = table(one), table(other)
    pairs = [parts_for("all", Dispatch(allow_empty=True), mesh, held) for held in (ours, theirs)]
    for mine, yours in zip(*pairs, strict=True):
        assert (ours.key_of(mine) == theirs.key_of(yours)) == (ours.ids_of(mine) == theirs.ids_of(yours))


def test_ids_of_one_number_and_of_several_are_not_confused() -> None:
    """Compares the first samples of two samples with two samples."""
    several, single = SampleTable((Grid(0, (2, 2)),)), SampleTable((Grid(0, (4,)),))
    assert several.key_of([Run(0, 0, 2)]) != single.key_of([Run(0, 0, 2)])


@given(
    st.sampled_from(MESHES),
    st.sampled_from(sorted(EXECUTE)),
    st.sampled_from(sorted(DISPATCH)),
    st.integers(1, 20),
)
def test_the_leader_sends_the_table_to_every_called_consumer(
    mesh: DeviceMesh, execute: str, mode: str, count: int
) -> None:
    received = consumer_parts(mesh, execute, mode, count)
    assert len(received.leaders) == len(received.ranks) and all(
        leader in may for leader, may in zip(received.leaders, received.producers, strict=True)
    )
    called = [rank for ranks in received.ranks for rank in ranks]
    assert sorted(called) == list(range(1 if execute == "first" else mesh.world_size))
    assert {producer for may in received.producers for producer in may} == set(range(count))
    for part, ranks in enumerate(received.ranks):
        assert all(
            received.part_of[rank] == part
            and producers_of(mesh, execute, count, rank) == received.producers[part]
            for rank in ranks
        )
    announced = [received.leaders.count(producer) for producer in range(count)]
    if execute == "all":
        assert max(announced) - min(announced) <= 1
