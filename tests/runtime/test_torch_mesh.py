"""The torch mesh of a `DeviceMesh` has the same ranks, groups, coordinates, slices and flattened dims. With torch's
fake process group, one process can be any rank of any world, so random shapes and orders are compared without
processes. Communication is tested in four real processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations, permutations
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.device_mesh import DeviceMesh as TorchDeviceMesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from meshctl import Component, DeviceMesh
from meshctl.runtime.rank_context import RankContext
from meshctl.topology.mesh import DIMS, MeshError
from tests.runtime import worlds

SIZE = 4


@contextmanager
def fake_world(size: int, rank: int) -> Iterator[None]:
    """Makes this process one rank of a world without the other ranks."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def agree(mesh: DeviceMesh, theirs: TorchDeviceMesh, rank: int) -> None:
    """Whether both meshes agree for every dim and pair of dims. torch sorts the ranks of a process group. If
    they are not ascending along two flattened dims, as in a transposed mesh, `get_local_rank` differs from
    the coordinate, so only the coordinate is compared."""
    assert theirs.mesh_dim_names == mesh.mesh_dim_names
    assert tuple(theirs.shape) == mesh.shape
    assert theirs.mesh.tolist() == mesh.as_array()
    assert coordinate(theirs) == list(mesh.coordinate(rank).values())
    for dim in mesh.mesh_dim_names:
        along = mesh.ranks_along(dim, rank)
        assert theirs[dim].mesh.tolist() == list(along) == list(mesh.at(rank)[dim].ranks())
        assert ranks_of(theirs, dim) == list(along)
        assert theirs.get_local_rank(dim) == mesh.dim_rank(rank, dim)
    for pair in combinations(mesh.mesh_dim_names, 2):
        ours, part = mesh.at(rank)[pair], theirs[pair]
        assert part.mesh.tolist() == ours.as_array()
        assert coordinate(part) == list(ours.coordinate(rank).values())
        for dim in pair:
            assert ranks_of(part, dim) == ranks_of(theirs, dim)
        flat, along = part._flatten("_".join(pair)), mesh.ranks_along(pair, rank)
        assert flat.mesh.tolist() == list(along) == list(ours.flatten().ranks())
        assert ranks_of(flat) == sorted(along)
        assert coordinate(flat) == [along.index(rank)]
        if list(along) == sorted(along):
            assert flat.get_local_rank() == along.index(rank)


def coordinate(theirs: TorchDeviceMesh) -> list[int]:
    found = theirs.get_coordinate()
    assert found is not None
    return list(found)


def ranks_of(theirs: TorchDeviceMesh, dim: str | None = None) -> list[int]:
    return dist.get_process_group_ranks(theirs.get_group(dim))


@st.composite
def meshes(draw: st.DrawFn) -> DeviceMesh:
    sizes: dict[str, Any] = {f"{dim}_size": draw(st.integers(1, 3)) for dim in DIMS}
    order = draw(st.sampled_from(list(permutations(DIMS))))
    return DeviceMesh.from_sizes(**sizes, **draw(carved(sizes)), order=order)


@st.composite
def carved(draw: st.DrawFn, sizes: dict[str, int]) -> dict[str, int]:
    """Draws valid sizes of the views."""
    data = sizes["dp_size"] * sizes["fsdp_size"]
    stage = data * sizes["cp_size"] * sizes["tp_size"]
    ep = draw(st.sampled_from([size for size in range(1, stage + 1) if stage % size == 0]))
    return {
        "ulysses_size": draw(st.sampled_from([size for size in range(1, data + 1) if data % size == 0])),
        "ep_size": ep,
    }


@st.composite
def explicit(draw: st.DrawFn) -> DeviceMesh:
    shape = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    names = draw(st.permutations(["pp", "dp", "fsdp", "cp", "tp", "experts"]))[: len(shape)]
    ranks = torch.arange(torch.Size(shape).numel()).view(shape)
    ranks = ranks.permute(draw(st.permutations(range(len(shape)))))
    return DeviceMesh.from_ranks((ranks + draw(st.integers(0, 3))).tolist(), names)


@settings(max_examples=60)
@given(st.one_of(meshes(), explicit()), st.data())
def test_torch_agrees_on_any_mesh(mesh: DeviceMesh, data: st.DataObject) -> None:
    rank = data.draw(st.sampled_from(sorted(mesh.ranks())))
    with fake_world(max(mesh.ranks()) + 1, rank):  # the world may have ranks that the mesh has not
        agree(mesh, mesh.to_torch(), rank)


@settings(max_examples=30)
@given(meshes(), st.sampled_from(["data", "expert"]), st.data())
def test_torch_agrees_on_any_view(mesh: DeviceMesh, name: str, data: st.DataObject) -> None:
    rank, view = data.draw(st.integers(0, mesh.world_size - 1)), mesh.view(name)
    groups = [group for dim in view.mesh_dim_names for group in view.process_groups(dim)]
    with fake_world(mesh.world_size, rank):
        if all(list(group) == sorted(group) for group in groups):
            agree(view, view.to_torch(), rank)
        else:  # fsdp outside of dp: the data ranks go to and fro
            with pytest.raises(MeshError, match="torch requires ascending ranks in a process group"):
                view.to_torch()


def test_what_is_no_mesh_of_torchs_is_an_error_of_ours() -> None:
    mesh = DeviceMesh.from_sizes(dp_size=2, tp_size=2)
    with pytest.raises(MeshError, match=r"the mesh has 4 ranks, but torch\.distributed is not initialised"):
        mesh.to_torch()
    with fake_world(3, 0), pytest.raises(MeshError, match="the mesh has 4 ranks, but the world has 3"):
        mesh.to_torch()
    with fake_world(4, 0), pytest.raises(MeshError, match=r"mesh\.to_torch\(\)\['tp'\]"):
        mesh["tp"].to_torch()
    with fake_world(4, 0), pytest.raises(MeshError, match="has rank 7, but the world has the ranks 0 to 3"):
        DeviceMesh.from_ranks([0, 7], "tp").to_torch()
    with fake_world(4, 0), pytest.raises(MeshError, match="sub-mesh must be taken from torch's mesh of all"):
        mesh["tp"].flatten(name="part").to_torch()
    with pytest.raises(MeshError, match="device type 'tpu' does not exist; available: cuda, npu, mps, cpu"):
        DeviceMesh.from_sizes(device_type="tpu")


# Four processes

MESHES = (
    DeviceMesh.from_sizes(fsdp_size=2, cp_size=2, order=("cp", "fsdp", "pp", "dp", "tp")),
    DeviceMesh.from_ranks([[0, 2], [1, 3]], ("dp", "fsdp")),
)
CHECKS: list[worlds.Check] = []


def check(function: worlds.Check) -> worlds.Check:
    CHECKS.append(function)
    return function


def component(rank: int, mesh: DeviceMesh) -> Component:
    made = Component()
    made._context = RankContext("it", mesh, rank)
    return made


@check
def groups_of_torch_and_ours_carry_the_same(rank: int) -> None:
    """Compares the sums over torch's process group and over ours of a value that only one rank has."""
    for mesh in MESHES:
        it = component(rank, mesh)
        for dim in mesh.mesh_dim_names:
            mine = torch.tensor(10**rank)
            dist.all_reduce(mine, group=it.torch_mesh.get_group(dim))
            expected = sum(10**other for other in mesh.ranks_along(dim, rank))
            assert mine.item() == expected == it.collective(dim).all_reduce(torch.tensor(10**rank)).item()


@check
def a_mesh_of_mps_has_groups_of_gloo(rank: int) -> None:
    made = component(rank, DeviceMesh.from_sizes(dp_size=2, tp_size=2, device_type="mps")).torch_mesh
    assert made.device_type == "mps" and made["tp"].get_local_rank() == rank % 2
    assert made["dp"].size() == 2 and made.get_coordinate() == (0, rank // 2, 0, 0, rank % 2)
    total = torch.tensor(rank)
    dist.all_reduce(total, group=made.get_group("tp"))
    assert total == 4 * (rank // 2) + 1


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return worlds.run(SIZE, CHECKS, tmp_path_factory.mktemp("torch_mesh"))


@pytest.mark.slow
@pytest.mark.parametrize("name", [function.__name__ for function in CHECKS])
def test_four_processes(results: dict[str, str], name: str) -> None:
    assert results[name] == worlds.PASSED, results[name]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
def test_cuda_alone() -> None:
    mesh = DeviceMesh.from_sizes(device_type="cuda")
    try:
        assert mesh.to_torch().device_type == "cuda"
    finally:
        dist.destroy_process_group()
