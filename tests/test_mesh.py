"""The algebra of meshes; vectors of other systems and the views come with the topologies."""

from __future__ import annotations

from itertools import permutations
from math import prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshctl.mesh import DIMS, DeviceMesh, MeshError, share, share_of


@st.composite
def meshes(draw: st.DrawFn) -> DeviceMesh:
    sizes: dict[str, Any] = {f"{dim}_size": draw(st.integers(1, 3)) for dim in DIMS}
    divisors = [size for size in range(1, 17) if sizes["dp_size"] * sizes["fsdp_size"] % size == 0]
    order = draw(st.sampled_from(list(permutations(DIMS))))
    return DeviceMesh.from_sizes(**sizes, ulysses_size=draw(st.sampled_from(divisors)), order=order)


@given(meshes())
def test_a_rank_and_its_coordinate_are_the_same(mesh: DeviceMesh) -> None:
    for rank in range(mesh.world_size):
        assert mesh.rank(mesh.coordinate(rank)) == rank


@given(meshes(), st.lists(st.sampled_from(DIMS), unique=True, min_size=1))
def test_process_groups_partition_the_ranks(mesh: DeviceMesh, dims: list[str]) -> None:
    groups = list(mesh.process_groups(dims))
    assert sorted(rank for group in groups for rank in group) == list(range(mesh.world_size))
    assert {len(group) for group in groups} == {prod(mesh.size(dim) for dim in dims)}
    for group in groups:
        assert all(mesh.ranks_along(dims, rank) == group for rank in group)


@given(meshes(), st.integers(0, 50))
def test_slices_partition_the_samples_and_representatives_rise(mesh: DeviceMesh, total: int) -> None:
    ranks = mesh.collect_ranks()
    assert [mesh.data_rank(rank) for rank in ranks] == list(range(mesh.data_size))
    assert [sample for rank in ranks for sample in mesh.get_slice(total, rank)] == list(range(total))
    assert max(len(mesh.get_slice(total, rank)) for rank in ranks) - min(len(mesh.get_slice(total, rank)) for rank in ranks) <= 1


def test_the_first_shares_have_one_more() -> None:
    assert [len(share(5, 3, part)) for part in range(3)] == [2, 2, 1]


@given(st.integers(1, 60), st.integers(1, 20), st.data())
def test_the_share_of_an_index(total: int, parts: int, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, total - 1))
    assert index in share(total, parts, share_of(total, parts, index))


@pytest.mark.parametrize(
    ("sizes", "shape"),
    [
        ({"world_size": 8, "tp_size": 2}, {"dp": 4, "tp": 2}),
        ({"world_size": 8, "fsdp_size": "auto", "dp_size": 2}, {"dp": 2, "fsdp": 4}),
        ({"dp_size": 2, "pp_size": 2}, {"dp": 2, "pp": 2}),
        ({}, {}),
    ],
)
def test_what_is_left_out_is_inferred(sizes: dict[str, Any], shape: dict[str, int]) -> None:
    mesh = DeviceMesh.from_sizes(**sizes)
    assert {dim: mesh.size(dim) for dim in DIMS} == {**dict.fromkeys(DIMS, 1), **shape}


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"world_size": 8, "tp_size": 3}, "tp 3 = 3 does not divide the 8 ranks"),
        ({"world_size": 8, "dp_size": 2, "tp_size": 2}, "dp 2 x tp 2 = 4, and there are 8 ranks"),
        ({"tp_size": 0}, "tp_size must be a whole number from 1 or auto, it is 0"),
        ({"tp_size": True}, "it is True"),
        ({"tp_size": 2.0}, "it is 2.0"),
        ({"tp_size": "auto"}, "the number of ranks is not known"),
        ({"world_size": 4, "tp_size": "auto", "dp_size": "auto"}, "only one size can be auto, here are dp_size, tp_size"),
        ({"fsdp_size": 4, "ulysses_size": 3}, "ulysses_size 3 is carved out of dp x fsdp and does not divide 4"),
        ({"order": ("tp", "dp")}, "must name pp, dp, fsdp, cp, tp"),
    ],
)
def test_sizes_that_make_no_mesh(sizes: dict[str, Any], message: str) -> None:
    with pytest.raises(MeshError, match=message):
        DeviceMesh.from_sizes(**sizes)


def test_a_million_ranks_are_no_list() -> None:
    mesh = DeviceMesh.from_sizes(pp_size=16, dp_size=128, fsdp_size=64, tp_size=8)
    assert mesh.world_size == 1 << 20
    assert mesh.ranks_along("tp", 999_999) == tuple(range(999_992, 1_000_000))
    assert mesh.coordinate(999_999) == {"pp": 15, "dp": 33, "fsdp": 7, "cp": 0, "tp": 7}


def test_questions_about_what_is_not_there() -> None:
    mesh = DeviceMesh.from_sizes(dp_size=2)
    with pytest.raises(MeshError, match="rank 2 is not in the mesh, it has the ranks 0 to 1"):
        mesh.data_rank(2)
    with pytest.raises(MeshError, match="there is no dim 'ep'"):
        mesh.size("ep")
    with pytest.raises(MeshError, match="dp has the indices 0 to 1, not 2"):
        mesh.rank({"dp": 2})
