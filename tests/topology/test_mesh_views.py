"""Sub-meshes, flattened meshes, views, neighbours, and a mesh that knows its own rank."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshctl.topology.mesh import DIMS, DeviceMesh, MeshError
from meshctl.topology.sizes import divisors
from tests.examples import examples
from tests.topology.mesh_strategies import meshes
from tests.topology.meshes import MESHES

# Sub-meshes, flattened meshes


@given(meshes(), st.lists(st.sampled_from(DIMS), unique=True, min_size=1), st.data())
def test_a_sub_mesh_is_the_group_of_its_dims(mesh: DeviceMesh, dims: list[str], data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, mesh.world_size - 1))
    part = mesh.at(rank)[tuple(dims)]
    assert part.mesh_dim_names == tuple(dims)
    assert part.ranks() == mesh.ranks_along(dims, rank)
    assert rank in part
    for other in part.ranks():
        assert part.coordinate(other) == {dim: mesh.dim_rank(other, dim) for dim in dims}
        assert part.rank(part.coordinate(other)) == other
        assert all(part.ranks_along(dim, other) == mesh.ranks_along(dim, other) for dim in dims)
        assert part.at(other)[dims[0]] == mesh.at(other)[dims[0]]
    assert all(other not in part for other in range(mesh.world_size) if other not in part.ranks())


@given(meshes(), st.lists(st.sampled_from(DIMS), unique=True, min_size=1))
def test_a_flattened_dim_runs_through_all_of_its_dims(mesh: DeviceMesh, dims: list[str]) -> None:
    flat = mesh.flatten(*dims, name="flat")
    assert sorted(flat.ranks()) == list(range(mesh.world_size))
    assert flat.size("flat") == prod(map(mesh.size, dims))
    for rank in range(mesh.world_size):
        assert flat.ranks_along("flat", rank) == mesh.ranks_along(dims, rank)
        assert all(flat.dim_rank(rank, dim) == mesh.dim_rank(rank, dim) for dim in DIMS if dim not in dims)


@given(meshes(), st.sampled_from((*DIMS, "ulysses")), st.data())
def test_a_dim_parted_and_joined_again_is_the_same(mesh: DeviceMesh, dim: str, data: st.DataObject) -> None:
    inner = data.draw(st.sampled_from(divisors(mesh.size(dim))))
    parted = mesh.unflatten(dim, {"outer": mesh.size(dim) // inner, "inner": inner})
    joined = parted.flatten("outer", "inner", name="joined")
    for rank in range(mesh.world_size):
        along = mesh.ranks_along(dim, rank)
        assert parted.ranks_along(("outer", "inner"), rank) == along == joined.ranks_along("joined", rank)
        place = parted.dim_rank(rank, "outer") * inner + parted.dim_rank(rank, "inner")
        assert place == mesh.dim_rank(rank, dim)


def test_joining_a_dim_of_a_view() -> None:
    mesh = DeviceMesh.from_sizes(dp_size=2, fsdp_size=2, tp_size=2, ulysses_size=2)
    flat = mesh.at(5).flatten("ulysses", "tp", name="sequence")
    assert flat.mesh_dim_names == ("pp", "data", "sequence", "cp")
    joined = mesh.view("data").flatten("ulysses", "tp").ranks_along("ulysses_tp", 5)
    assert flat["sequence"].ranks() == (4, 5, 6, 7) == joined
    mesh = DeviceMesh.from_sizes(dp_size=4, tp_size=2, ulysses_size=2)
    assert [mesh["dp"].data_rank(rank) for rank in (0, 2, 4, 6)] == [0, 0, 1, 1]
    with pytest.raises(MeshError, match="a dim must be named once, but tp is named 2 times"):
        mesh.flatten("tp", "tp")


def test_what_is_left_of_a_mesh_when_dims_are_joined_or_parted() -> None:
    mesh = DeviceMesh.from_sizes(
        pp_size=2, dp_size=2, fsdp_size=2, cp_size=2, tp_size=2, ulysses_size=2, ep_size=4, vpp_size=3
    )
    for other in (mesh.flatten("cp", "tp"), mesh.unflatten("tp", {"a": 2, "b": 1}), mesh.flatten("dp")):
        assert [other.data_rank(rank) for rank in range(32)] == [mesh.data_rank(rank) for rank in range(32)]
        assert other.pp_stages == 6
        assert other.collect_ranks() == mesh.collect_ranks()
    flat = mesh.flatten("dp", "fsdp")
    with pytest.raises(MeshError, match=r"dim 'fsdp' does not exist; available: pp, dp_fsdp, cp, tp$"):
        flat.data_rank(0)
    with pytest.raises(MeshError, match=r"dim 'ulysses' does not exist; available: pp, dp_fsdp, cp, tp$"):
        flat.size("ulysses")
    with pytest.raises(
        MeshError,
        match="a mesh of pp, data, ulysses, cp, tp has no views: use the mesh that it was made from",
    ):
        mesh.view("data").view("expert")


def test_a_dim_that_is_parted_wrongly() -> None:
    mesh = DeviceMesh.from_sizes(tp_size=4)
    with pytest.raises(MeshError, match="a 2 x b 3 is not the 4 of tp"):
        mesh.unflatten("tp", {"a": 2, "b": 3})
    with pytest.raises(
        MeshError, match="'dp' is a dim of the mesh already and cannot be the name of a part of tp"
    ):
        mesh.unflatten("tp", {"dp": 2, "b": 2})


# Views


@st.composite
def expert_meshes(draw: st.DrawFn) -> DeviceMesh:
    mesh = draw(meshes())
    stage = mesh.world_size // mesh.size("pp")
    ep = draw(st.sampled_from(divisors(stage)))
    return replace(mesh, ep_size=ep, etp_size=draw(st.sampled_from(divisors(stage // ep))))


@given(expert_meshes(), st.sampled_from(["data", "expert"]))
def test_a_view_is_the_same_ranks_by_other_dims(mesh: DeviceMesh, name: str) -> None:
    view = mesh.view(name)
    assert sorted(view.ranks()) == list(range(mesh.world_size))
    for dim in view.mesh_dim_names:
        groups = list(view.process_groups(dim))
        assert sorted(rank for group in groups for rank in group) == list(range(mesh.world_size))
        assert list(mesh.process_groups(dim)) == groups or dim in DIMS
        for group in groups:
            assert {mesh.ranks_along(dim, rank) for rank in group} == {group} or dim in DIMS
    for rank in range(mesh.world_size):
        assert view.rank(view.coordinate(rank)) == rank
        assert all(mesh.dim_rank(rank, dim) == index for dim, index in view.coordinate(rank).items())


@settings(max_examples=examples(25, 300))
@given(expert_meshes())
def test_the_dims_of_views(mesh: DeviceMesh) -> None:
    for rank in range(mesh.world_size):
        assert mesh.dim_rank(rank, "data") == mesh.data_rank(rank)
        flat = mesh.dim_rank(rank, "dp") * mesh.size("fsdp") + mesh.dim_rank(rank, "fsdp")
        assert mesh.dim_rank(rank, "ulysses") == flat % mesh.ulysses_size
        same, stage = ("ulysses", "cp", "tp", "pp"), ("ep_fsdp", "ep", "etp")
        assert {mesh.data_rank(peer) for peer in mesh.ranks_along(same, rank)} == {mesh.data_rank(rank)}
        assert {mesh.dim_rank(peer, "pp") for peer in mesh.ranks_along(stage, rank)} == {
            mesh.dim_rank(rank, "pp")
        }
    first = mesh.ranks_along([dim for dim in mesh.mesh_dim_names if dim != "pp"], 0)
    experts = [first[start : start + mesh.etp_size] for start in range(0, len(first), mesh.etp_size)]
    assert [group for group in mesh.process_groups("etp") if group[0] in first] == experts, "etp is innermost"
    assert mesh.size("ep_fsdp") == mesh.ep_fsdp_size


# The pipeline, rings, ends


def test_neighbours() -> None:
    mesh = DeviceMesh.from_sizes(pp_size=3, cp_size=4)
    assert [mesh.neighbour(rank, "pp") for rank in (0, 5, 10)] == [4, 9, None]
    assert [mesh.neighbour(rank, "pp", -1) for rank in (0, 5, 10)] == [None, 1, 6]
    assert [mesh.neighbour(rank, "cp", ring=True) for rank in range(4)] == [1, 2, 3, 0]
    assert [mesh.neighbour(rank, "cp", -1, ring=True) for rank in range(4)] == [3, 0, 1, 2]
    assert mesh.neighbour(3, "tp") is None
    assert mesh.neighbour(3, "tp", ring=True) == 3


def test_pipeline_stages() -> None:
    mesh = DeviceMesh.from_sizes(pp_size=2, dp_size=2, vpp_size=3)
    assert mesh.pp_stages == 6
    assert [mesh.pp_stages_of(rank) for rank in range(4)] == [(0, 2, 4), (0, 2, 4), (1, 3, 5), (1, 3, 5)]
    assert [mesh.is_first(rank, "pp") for rank in range(4)] == [True, True, False, False]
    assert [mesh.is_last(rank, "pp") for rank in range(4)] == [False, False, True, True]
    assert mesh.ranks_at("pp", 1) == (2, 3)
    alone = DeviceMesh.from_sizes(dp_size=2)
    assert alone.is_first(1, "pp") and alone.is_last(1, "pp") and alone.pp_stages_of(1) == (0,)


@given(meshes())
def test_strides(mesh: DeviceMesh) -> None:
    for dim in DIMS:
        stride = mesh.stride(dim)
        group = mesh.ranks_along(dim, 0)
        assert [rank * (stride or 0) for rank in range(len(group))] == list(group)
    apart = DeviceMesh.from_sizes(dp_size=2, cp_size=2, fsdp_size=2, order=("dp", "cp", "fsdp", "pp", "tp"))
    assert apart.flatten("dp", "fsdp", name="x").stride("x") is None


# The mesh's own rank


@given(st.sampled_from(MESHES), st.data())
def test_a_mesh_with_a_rank_of_its_own_needs_none(mesh: DeviceMesh, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, mesh.world_size - 1))
    own = mesh.at(rank)
    assert own == mesh and own.own_rank == rank
    assert own.coordinate() == mesh.coordinate(rank) and own.data_rank() == mesh.data_rank(rank)
    assert own.pp_stages_of() == mesh.pp_stages_of(rank)
    for dim in (*DIMS, "data", "ulysses", "ep"):
        assert own.dim_rank(dim) == mesh.dim_rank(rank, dim) == own.dim_rank(rank, dim)
        assert own.is_first(dim) == mesh.is_first(rank, dim) and own.is_last(dim) == mesh.is_last(rank, dim)
        assert own.ranks_along(dim) == mesh.ranks_along(dim, rank)
        assert own.neighbour(dim, by=-1, ring=True) == mesh.neighbour(rank, dim, -1, ring=True)
    samples = [str(number) for number in range(data.draw(st.integers(0, 40)))]
    mine = samples[own.get_slice(len(samples))]
    assert mine == [samples[number] for number in own.sample_range(len(samples))]
    assert mine == samples[mesh.get_slice(len(samples), rank)]


def test_a_mesh_without_a_rank_of_its_own_asks_for_one() -> None:
    mesh = DeviceMesh.from_sizes(dp_size=2)
    for question in (mesh.coordinate, mesh.data_rank, lambda: mesh.dim_rank("dp"), lambda: mesh.get_slice(4)):
        with pytest.raises(MeshError, match=r"no rank of its own: pass a rank, or use mesh.at\(rank\)"):
            question()
    assert DeviceMesh.from_sizes().get_slice(4) == slice(0, 4)  # one rank is its own
