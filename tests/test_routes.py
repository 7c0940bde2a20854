"""For all pairs of meshes up to 16 ranks and all modes: every sample arrives once where it should, and comes back in order."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshctl.mesh import DeviceMesh
from meshctl.routes import (
    COLLECT,
    DISPATCH,
    EXECUTE,
    Dispatch,
    RouteError,
    heard_by,
    peer_span,
    speakers,
)
from meshctl.shares import Table, align, order, shares_for


def meshes(most: int) -> list[DeviceMesh]:
    found = {}
    for pp, dp, fsdp, cp, tp in product(*[(1, 2, 3, 4, 8, 16)] * 5):
        if pp * dp * fsdp * cp * tp <= most:
            for ulysses in {1, *(size for size in (2, 4) if dp * fsdp % size == 0)}:
                made = DeviceMesh.from_sizes(pp_size=pp, dp_size=dp, fsdp_size=fsdp, cp_size=cp, tp_size=tp, ulysses_size=ulysses)
                found[made] = None
    return list(found)


MESHES = meshes(16)


def table(mesh: DeviceMesh, total: int, collect: str = "flatten", **more: Any) -> Table:
    """What the speakers of a mesh hold of 0 .. total - 1."""
    who = speakers(mesh, collect)
    return Table(tuple(tuple((n,) for n in mesh.get_slice(total, rank)) for rank in who), **more)


@pytest.mark.parametrize("mode", sorted(DISPATCH))
@pytest.mark.parametrize("balance", ["", "tokens"])
def test_all_pairs_of_meshes(mode: str, balance: Any) -> None:
    total = 21
    dispatch = Dispatch(mode, balance, allow_empty=True)
    givers = {mesh.data_size: mesh for mesh in MESHES}  # what is held depends on the giver through its data ranks alone
    for giver, taker in product(givers.values(), MESHES):
        held = table(giver, total, lengths=tuple(tuple(1 + n % 7 for n in giver.get_slice(total, rank)) for rank in giver.collect_ranks()))
        shares = shares_for("all", dispatch, taker, held)
        assert set(shares) == set(range(taker.world_size))
        ids = {rank: [held.ids[s][i][0] for s, i in mine] for rank, mine in shares.items()}
        assert all(mine == sorted(mine) for mine in ids.values())
        by_share = {DISPATCH[mode].share_of(taker, rank): mine for rank, mine in ids.items()}
        assert all(by_share[DISPATCH[mode].share_of(taker, rank)] == mine for rank, mine in ids.items())  # peers hear the same
        assert sorted(n for mine in by_share.values() for n in mine) == list(range(total))  # each sample in one share
        if mode == "slice_dp" and not balance:
            assert all(mine == list(taker.get_slice(total, rank)) for rank, mine in ids.items())
        back = Table(tuple(tuple((n,) for n in ids[rank]) for rank in taker.collect_ranks()))
        if mode == "slice_dp":
            assert [back.ids[s][i][0] for s, i in order(back)] == list(range(total))


@settings(max_examples=400)
@given(
    st.sampled_from(MESHES),
    st.sampled_from(MESHES),
    st.integers(0, 40),
    st.sampled_from([name for name, mode in COLLECT.items() if mode.join in ("samples", "first")]),
    st.sampled_from(sorted(DISPATCH)),
    st.sampled_from(EXECUTE),
    st.sampled_from(EXECUTE),
)
def test_all_pairs_of_modes(
    giver: DeviceMesh, taker: DeviceMesh, total: int, collect: str, mode: str, called: str, execute: str
) -> None:
    """What the speakers hold is heard once per share, by exactly those that are called, in sample order."""
    who = speakers(giver, collect, called)
    ids = [tuple((n,) for n in (range(total) if called == "first" else giver.get_slice(total, rank))) for rank in who]
    held = Table(tuple(ids))
    shares = shares_for(execute, Dispatch(mode, allow_empty=True), taker, held)
    heard = {rank: [(s, i) for s, i in mine] for rank, mine in shares.items()}
    everything = {(s, i) for s, mine in enumerate(ids) for i in range(len(mine))}
    assert {at for mine in heard.values() for at in mine} == everything
    for rank, mine in heard.items():
        assert len(set(mine)) == len(mine)
        assert [ids[s][i] for s, i in mine] == sorted(ids[s][i] for s, i in mine)
        assert {s for s, _ in mine} <= set(heard_by(taker, execute, len(who), rank))
    if execute == "first":
        assert set(heard) == {0}
    if execute == "all":
        by_share: dict[int, list[tuple[int, int]]] = {}
        for rank, mine in heard.items():
            assert by_share.setdefault(DISPATCH[mode].share_of(taker, rank), mine) == mine
        assert sorted(at for mine in by_share.values() for at in mine) == sorted(everything)


def test_one_representative_per_data_rank_speaks() -> None:
    for mesh in MESHES:
        who = speakers(mesh, "flatten")
        assert [mesh.data_rank(rank) for rank in who] == list(range(mesh.data_size))
        assert all(mesh.dim_rank(rank, "pp") == mesh.size("pp") - 1 for rank in who)
        assert speakers(mesh, "first") == who[:1]
        assert len(speakers(mesh, "none")) == mesh.world_size
        assert len(speakers(mesh, "last_pp")) * mesh.size("pp") == mesh.world_size
        assert all(speakers(mesh, collect, "first") == (0,) for collect in COLLECT)


@given(st.integers(1, 20), st.integers(1, 20))
def test_peers_share_the_workers_out(workers: int, producers: int) -> None:
    spans = [peer_span(workers, producer, producers) for producer in range(producers)]
    assert all(len(span) for span in spans)
    heard = sorted(rank for span in spans for rank in span)
    assert set(heard) == set(range(workers))
    assert workers < producers or heard == list(range(workers))


@given(st.sampled_from(MESHES), st.integers(1, 6), st.integers(0, 30), st.sampled_from(sorted(DISPATCH)))
def test_peer_gives_each_producers_samples_to_its_own_workers(mesh: DeviceMesh, producers: int, total: int, mode: str) -> None:
    giver = DeviceMesh.from_sizes(dp_size=producers)
    held = table(giver, total)
    shares = shares_for("peer", Dispatch(mode, allow_empty=True), mesh, held)
    for rank, mine in shares.items():
        assert {s for s, _ in mine} <= set(heard_by(mesh, "peer", producers, rank))
    assert {at for mine in shares.values() for at in mine} == {(s, i) for s, ids in enumerate(held.ids) for i in range(len(ids))}


@given(st.lists(st.integers(1, 5), min_size=1, max_size=20), st.integers(1, 4), st.booleans())
def test_groups_are_never_split(sizes: list[int], parts: int, balance: bool) -> None:
    ids = tuple((group, place) for group, size in enumerate(sizes) for place in range(size))
    held = Table((ids,), (tuple(1 + (g * 7 + p) % 5 for g, p in ids),), group_depth=1)
    mesh = DeviceMesh.from_sizes(dp_size=parts)
    shares = shares_for("all", Dispatch(balance="tokens" if balance else "", allow_empty=True), mesh, held)
    owners = {(held.ids[s][i][0], rank) for rank, mine in shares.items() for s, i in mine}
    assert len(owners) == len(sizes)


@given(st.lists(st.integers(1, 1000), min_size=64, max_size=200))
@settings(max_examples=30)
def test_balancing_evens_out_tokens(lengths: list[int]) -> None:
    held = Table((tuple((n,) for n in range(len(lengths))),), (tuple(lengths),))
    shares = shares_for("all", Dispatch(balance="tokens"), DeviceMesh.from_sizes(dp_size=4), held)
    loads = [sum(lengths[i] for _, i in mine) for mine in shares.values()]
    assert max(loads) - min(loads) <= max(lengths)


RECORDED = json.loads((Path(__file__).parent / "conformance" / "twinkle_infra.json").read_text())


@pytest.mark.parametrize("case", RECORDED["get_peer_index"], ids=str)
def test_peers_are_those_that_users_of_twinkle_know(case: dict[str, Any]) -> None:
    assert [*peer_span(case["target_size"], case["rank"], case["world_size"])] == [*range(*case["slice"])]


@pytest.mark.parametrize("case", [case for case in RECORDED["dispatch"] if "list_len" in case], ids=str)
def test_dispatch_is_what_users_of_twinkle_know(case: dict[str, Any]) -> None:
    mesh = DeviceMesh.from_sizes(**case["mesh"], order=("fsdp", "pp", "dp", "cp", "tp"))
    if case["dispatch"] not in DISPATCH or mesh.world_size != case["workers"]:
        return  # a mesh that is not its workers' is refused before anything runs
    total = case["list_len"]
    held = Table((tuple((n,) for n in range(total)),))
    dispatch = Dispatch(case["dispatch"], allow_empty=True)
    shares = {rank: [i for _, i in mine] for rank, mine in shares_for("all", dispatch, mesh, held).items()}
    if isinstance(case["result"], list):
        assert [[rank, [mine]] for rank, mine in shares.items()] == case["result"]
    else:  # too few for the data ranks: an error there and, without allow_empty, here
        with pytest.raises(RouteError):
            shares_for("all", Dispatch(case["dispatch"]), mesh, held)


def test_errors_name_the_numbers() -> None:
    two = DeviceMesh.from_sizes(dp_size=2)
    with pytest.raises(RouteError, match="1 samples for 2 shares: 1 of them would be empty"):
        shares_for("all", Dispatch(), two, Table((((0,),),)))
    with pytest.raises(RouteError, match="1 groups for 2 shares"):
        shares_for("all", Dispatch(), two, Table((((0, 0), (0, 1)),), group_depth=1))
    with pytest.raises(RouteError, match=r"sample 3\.1 is there twice"):
        order(Table((((3, 1),), ((3, 1),))))
    with pytest.raises(RouteError, match="sample 5 is missing"):
        align([(5,)], Table((((4,),),)))
