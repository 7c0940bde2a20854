"""What stays where it is, held against batches and ranks that are really listed."""

from __future__ import annotations

from fractions import Fraction
from itertools import permutations
from math import prod
from random import Random

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from meshctl.topology.mesh import DIMS, DeviceMesh
from meshctl.topology.resharding import data_digits, holding, kept
from meshctl.topology.sizes import divisors

WORLDS = st.sampled_from([1, 2, 4, 6, 8, 12, 16, 18, 24, 30, 36])


@st.composite
def meshes(draw: st.DrawFn, world: int) -> DeviceMesh:
    sizes, left = {}, world
    for dim in draw(st.permutations(DIMS))[1:]:
        sizes[f"{dim}_size"] = draw(st.sampled_from(divisors(left)))
        left //= sizes[f"{dim}_size"]
    sizes[next(f"{dim}_size" for dim in DIMS if f"{dim}_size" not in sizes)] = left
    ulysses = draw(st.sampled_from(divisors(sizes["dp_size"] * sizes["fsdp_size"])))
    order = draw(st.sampled_from(list(permutations(DIMS))))
    return DeviceMesh.from_sizes(world_size=world, ulysses_size=ulysses, order=order, **sizes)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[DeviceMesh, DeviceMesh]:
    world = draw(WORLDS)
    return draw(meshes(world)), draw(meshes(world))


def seats_of(mesh: DeviceMesh, moved: bool, random: Random) -> list[int]:
    """The taker's rank at each rank: the same, or any."""
    seats = list(range(mesh.world_size))
    if moved:
        random.shuffle(seats)
    return seats


@settings(max_examples=300)
@given(pairs(), st.booleans(), st.randoms())
def test_kept_is_what_a_listed_batch_says(
    pair: tuple[DeviceMesh, DeviceMesh], moved: bool, random: Random
) -> None:
    giver, taker = pair
    seats = seats_of(giver, moved, random)
    assume(data_digits(giver) is not None and data_digits(taker) is not None)
    total = giver.data_size * taker.data_size
    stays = 0
    for sample in range(total):
        holders = {rank for rank in range(giver.world_size) if sample in giver.get_slice(total, rank)}
        stays += any(sample in taker.get_slice(total, seats[rank]) for rank in holders)
    assert kept(giver, taker, seats if moved else ()) == Fraction(stays, total)


@settings(max_examples=300)
@given(pairs(), st.booleans(), st.randoms())
def test_holding_is_what_listed_boxes_say(
    pair: tuple[DeviceMesh, DeviceMesh], moved: bool, random: Random
) -> None:
    giver, taker = pair
    seats = seats_of(giver, moved, random)
    dims = ["pp", "tp"] + ["fsdp"] * (
        giver.size("tp") == taker.size("tp") and giver.size("cp") == taker.size("cp") == 1
    )

    def meet(rank: int, dim: str) -> bool:
        x, y, n, m = (
            giver.dim_rank(rank, dim),
            taker.dim_rank(seats[rank], dim),
            giver.size(dim),
            taker.size(dim),
        )
        return max(x * m, y * n) < min((x + 1) * m, (y + 1) * n)

    assert holding(giver, taker, seats if moved else ()) == sum(
        all(meet(rank, dim) for dim in dims) for rank in range(giver.world_size)
    )


@given(WORLDS.flatmap(meshes))
def test_equal_meshes_keep_everything(mesh: DeviceMesh) -> None:
    assert kept(mesh, mesh) in (1, None) and holding(mesh, mesh) == mesh.world_size


def test_pp_in_the_way_of_dp() -> None:
    dp, pp = DeviceMesh.from_sizes(dp_size=8), DeviceMesh.from_sizes(pp_size=2, dp_size=4)
    inner = DeviceMesh.from_sizes(pp_size=2, dp_size=4, order=("dp", "fsdp", "pp", "cp", "tp"))
    assert (kept(dp, pp), kept(pp, dp), kept(dp, inner)) == (Fraction(1, 4), Fraction(1, 4), 1)


def test_a_hundred_thousand_ranks_are_counted() -> None:
    dp, pp = DeviceMesh.from_sizes(dp_size=100_000), DeviceMesh.from_sizes(pp_size=10, dp_size=10_000)
    assert kept(dp, pp) == Fraction(10, 100_000)
    five = {"pp_size": 10, "dp_size": 10, "fsdp_size": 10, "cp_size": 10, "tp_size": 10}
    one, other = DeviceMesh.from_sizes(**five), DeviceMesh.from_sizes(**five, order=DIMS[::-1])
    assert prod(one.shape) == 100_000
    assert kept(one, other) is not None and holding(one, other) is not None
