"""`EvenFlow` agrees with the sample table of an even batch, for every pair of meshes and of modes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshctl.topology.consumers import samples_by_rank
from meshctl.topology.flows import EvenFlow, Part, Ranks, along
from meshctl.topology.mesh import DIMS, DeviceMesh, even_split
from meshctl.topology.modes import COLLECT, DISPATCH, EXECUTE, Dispatch, part_count
from meshctl.topology.samples import SampleTable
from tests.examples import examples
from tests.topology.mesh_strategies import uneven_meshes as meshes


@st.composite
def routes(draw: st.DrawFn) -> EvenFlow:
    joins = [name for name, mode in COLLECT.items() if mode.join in ("samples", "first", "list")]
    modes, executes = st.sampled_from(sorted(DISPATCH)), st.sampled_from(sorted(EXECUTE))
    producer, consumer = draw(meshes()), draw(meshes())
    return EvenFlow(
        producer,
        consumer,
        draw(st.integers(0, 300)),
        COLLECT[draw(st.sampled_from(joins))],
        EXECUTE[draw(executes)],
        DISPATCH[draw(modes)],
        EXECUTE[draw(executes)],
    )


def listed(links: EvenFlow) -> dict[int, dict[int, list[int]]]:
    """Returns rank -> producer -> samples, from the table."""
    held = [even_split(links.total, links.producers, producer) for producer in range(links.producers)]
    table = SampleTable(tuple(tuple((n,) for n in mine) for mine in held))
    received: dict[int, dict[int, list[int]]] = {}
    for rank, samples in samples_by_rank(
        links.execute, links.mode, Dispatch(allow_empty=True), links.target, table
    ).items():
        for producer, index in samples:
            received.setdefault(rank, {}).setdefault(producer, []).append(held[producer][index])
    return received


def members(ranks: Ranks, of: set[int]) -> bool:
    """Whether `Ranks` is the abbreviated form of a set."""
    whole = sorted(of)
    return (
        ranks.count == len(whole)
        and set(ranks.first) | {ranks.last} <= of
        and (not ranks.is_whole or sorted(ranks.first) == whole)
    )


@settings(max_examples=examples(20, 150))
@given(routes())
def test_links_are_those_of_an_even_table(links: EvenFlow) -> None:
    received = listed(links)
    for rank in range(links.target.world_size):
        mine = received.get(rank, {})
        parts = {producer: links.part_of(rank, producer) for producer in links.producers_of(rank)}
        assert {producer: list(part.samples) for producer, part in parts.items() if part.samples} == mine
        assert links.samples_of(rank) == sum(map(len, mine.values()))
        if span := links.span_of(rank):
            assert list(span) == sorted(n for samples in mine.values() for n in samples)
    for producer in range(links.producers):
        for part in (links.part_for(producer, each) for run in links.shares_of(producer) for each in run):
            ranks = {
                rank
                for rank in received
                if part.samples and received[rank].get(producer) == list(part.samples)
            }
            among = {rank for rank in ranks if links.share_of(rank) == part.share}
            assert not part.samples or members(links.ranks_of(producer, part.share), among)
        parts = [links.part_for(producer, each) for run in links.shares_of(producer) for each in run]
        given = {n for mine in received.values() for n in mine.get(producer, ())}
        assert {n for part in parts for n in part.samples} == given == set(links.held(producer))


@settings(max_examples=examples(15, 100))
@given(routes())
def test_the_counts_of_producers_consumers_and_different_shares(links: EvenFlow) -> None:
    assert links.producer_set.count(links.source) == len(links.producer_set.ranks(links.source))
    who = links.producer_set.ranks(links.source)
    numbers = [links.producer_set.index_of(links.source, rank) for rank in range(links.source.world_size)]
    assert [numbers[rank] for rank in who] == list(range(len(who)))
    assert sum(number is not None for number in numbers) == len(who)
    many = EvenFlow(links.source, links.target, 2_000, links.collect, links.called, links.mode, links.execute)
    received = listed(many)
    assert len(received) == many.execute.workers.count(many.target)
    cuts = {(producer, tuple(samples)) for mine in received.values() for producer, samples in mine.items()}
    if many.execute.is_per_producer:
        assert len(cuts) == part_count(many.target, many.execute, many.mode, many.producers)
    else:
        different = {
            tuple((producer, tuple(samples)) for producer, samples in sorted(mine.items()))
            for mine in received.values()
        }
        assert len(different) == part_count(many.target, many.execute, many.mode, many.producers)


@pytest.mark.parametrize("dims", [("tp",), ("dp", "tp"), ("pp", "ulysses"), ("ep",), ("etp", "pp"), ("cp",)])
def test_ranks_along_dims_are_those_of_the_mesh(dims: tuple[str, ...]) -> None:
    for order in (DIMS, ("dp", "tp", "fsdp", "cp", "pp")):
        mesh = DeviceMesh.from_sizes(
            pp_size=2, dp_size=3, fsdp_size=4, tp_size=4, ulysses_size=2, ep_size=3, etp_size=2, order=order
        )
        for rank in range(0, mesh.world_size, 7):
            listed, folded = mesh.ranks_along(dims, rank), along(mesh, dims, rank)
            assert (folded.count, folded.last) == (len(listed), listed[-1]) and folded.first == listed[
                : len(folded.first)
            ]
            if folded.stride is not None:
                assert listed == tuple(range(listed[0], listed[-1] + 1, folded.stride))


def test_a_million_ranks_are_as_quick_as_eight() -> None:
    """A list of all ranks would take minutes."""
    mesh = DeviceMesh.from_sizes(pp_size=16, dp_size=256, fsdp_size=32, tp_size=8)
    for execute in EXECUTE:
        links = EvenFlow(mesh, mesh, 1 << 30, execute=EXECUTE[execute])
        received = links.producers_of(0)
        assert links.samples_of(0) == links.part_of(0, received[-1]).samples.stop
        assert links.part_for(0, 0) == Part(0, 0, links.part_of(0, 0).samples)
