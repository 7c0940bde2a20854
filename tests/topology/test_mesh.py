"""The algebra of meshes, compared with torch's meshes of the same shapes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshctl.topology.mesh import DIMS, DeviceMesh, MeshError, even_split, split_index
from tests.topology.mesh_strategies import meshes


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
    assert [sample for rank in ranks for sample in mesh.sample_range(total, rank)] == list(range(total))
    sizes = [len(mesh.sample_range(total, rank)) for rank in ranks]
    assert max(sizes) - min(sizes) <= 1


@given(meshes(), st.booleans(), st.randoms(use_true_random=False))
def test_the_smallest_rank_of_the_last_stage_sends_for_a_data_rank(
    mesh: DeviceMesh, explicit: bool, random: Any
) -> None:
    if explicit:
        ranks = random.sample(range(mesh.world_size), mesh.world_size)
        array = np.array(ranks).reshape(mesh.shape)
        mesh = replace(mesh, layout=DeviceMesh.from_ranks(array, mesh.mesh_dim_names).layout)
    last: dict[int, list[int]] = {}
    for rank in mesh.ranks_at("pp", mesh.size("pp") - 1):
        last.setdefault(mesh.data_rank(rank), []).append(rank)
    assert mesh.collect_ranks() == tuple(min(last[number]) for number in range(mesh.data_size))
    assert mesh.collect_ranks() == tuple(map(mesh.representative, range(mesh.data_size)))


@given(st.integers(1, 60), st.integers(1, 20), st.data())
def test_the_share_of_an_index(total: int, parts: int, data: st.DataObject) -> None:
    assert [len(even_split(5, 3, part)) for part in range(3)] == [2, 2, 1]
    index = data.draw(st.integers(0, total - 1))
    assert index in even_split(total, parts, split_index(total, parts, index))


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
        ({"tp_size": 0}, "tp_size must be a positive integer or auto, not 0$"),
        ({"world_size": 8, "tp_size": 2.9}, "not 2.9$"),
        (
            {"world_size": -8, "tp_size": 2},
            "world_size must be a positive integer, not -8$",
        ),
        ({"tp_size": "auto"}, "the number of ranks is not known"),
        (
            {"dp_size": 2, "sequence_parallel": True},
            "sequence_parallel needs tensor parallelism, but tp_size is 1; nearest that fit: tp 2$",
        ),
        (
            {"world_size": 1, "sequence_parallel": True},
            "tp_size is 1; nearest that fit: sequence_parallel false$",
        ),
        *(
            ({"order": order}, "the order of dims must name pp, dp, fsdp, cp, tp, each once, not")
            for order in (("tp", "dp"), 5, ("pp", "dp", "fsdp", "tp", "tp"))
        ),
    ],
)
def test_sizes_that_make_no_mesh(sizes: dict[str, Any], message: str) -> None:
    with pytest.raises(MeshError, match=message):
        DeviceMesh.from_sizes(**sizes)


@pytest.mark.parametrize(
    ("names", "shape", "more", "message"),
    [
        (("dp", "pp"), (4, 1), {"vpp_size": 2}, "vpp_size 2 needs a pipeline, but pp(_size)? is 1"),
        (("dp", "fsdp"), (2, 2), {"ulysses_size": 3}, "ulysses_size 3 does not divide dp x fsdp, which is 4"),
        (("pp", "dp"), (2, 2), {"ep_size": 4}, "ep 4 x etp 1 does not divide the ranks of a pipeline stage"),
    ],
)
def test_dims_and_a_shape_that_make_no_mesh(
    names: Any, shape: Any, more: dict[str, Any], message: str
) -> None:
    with pytest.raises(MeshError, match=message):
        DeviceMesh(names, shape, **more)


def test_a_million_ranks_are_no_list() -> None:
    mesh = DeviceMesh.from_sizes(pp_size=16, dp_size=128, fsdp_size=64, tp_size=8)
    assert mesh.world_size == 1 << 20
    assert mesh.ranks_along("tp", 999_999) == tuple(range(999_992, 1_000_000))
    assert mesh.coordinate(999_999) == {"pp": 15, "dp": 33, "fsdp": 7, "cp": 0, "tp": 7}


def test_questions_about_what_is_not_there() -> None:
    mesh = DeviceMesh.from_sizes(dp_size=2)
    with pytest.raises(MeshError, match="rank 2 is not in the mesh, which has the ranks 0 to 1"):
        mesh.data_rank(2)
    with pytest.raises(
        MeshError,
        match="dim 'expert' does not exist; available: pp, dp, fsdp, cp, tp; its views have data, ulysses, ep_fsdp, ep, etp",
    ):
        mesh.size("expert")
    with pytest.raises(MeshError, match="dp has the indices 0 to 1, not 2"):
        mesh.rank({"dp": 2})
    with pytest.raises(MeshError, match="tp has the index 0, not 1"):
        mesh.ranks_at("tp", 1)
    with pytest.raises(MeshError, match="dp and ep cannot be used together"):
        mesh.ranks_along(("dp", "ep"), 0)
    with pytest.raises(MeshError, match="a dim must be named once, but dp is named 2 times"):
        mesh["dp", "dp"]
    with pytest.raises(MeshError, match=r"view .* does not exist; available: data and expert"):
        mesh.view("experts")
    with pytest.raises(MeshError, match="dim 'expert' does not exist"):
        mesh.process_groups("expert")  # said when it is asked, and not when the groups are gone through
    with pytest.raises(MeshError, match="dim 'dp' does not exist; available: pp, data, ulysses, cp, tp"):
        mesh.view("data").size("dp")
    with pytest.raises(MeshError, match="the number of samples must be an integer of at least 0, not -1"):
        mesh.sample_range(-1, 0)


@pytest.mark.parametrize(
    ("ranks", "names", "message"),
    [
        ([], ("dp",), "at least one rank"),
        ([[0, 1], [2]], ("dp", "tp"), "the rows of the array have different lengths: 1 and 2"),
        ([0, [1]], ("dp", "tp"), "different lengths: no row and 1"),
        ([0, 1, 1], ("dp",), "a rank must have one place in a mesh; these have more: 1"),
        ([0, -1], ("dp",), "a rank must be an integer of at least 0, not -1"),
        ([0, 1.0], ("dp",), "such as nested lists of integers, not 1.0"),
        ([0, 1], ("ep",), "'ep' is a dim of the view `expert` and cannot be the name of a dim"),
        ([0, 1], ("dp", "tp"), r"1 sizes \(2,\) for 2 dims dp, tp"),
    ],
)
def test_arrays_that_make_no_mesh(ranks: Any, names: tuple[str, ...], message: str) -> None:
    with pytest.raises(MeshError, match=message):
        DeviceMesh.from_ranks(ranks, names)


def test_whole_numbers_of_another_library() -> None:
    mesh = DeviceMesh.from_sizes(world_size=np.int64(8), tp_size=np.int32(2), pp_size=np.array(2))
    assert mesh == DeviceMesh.from_sizes(dp_size=2, tp_size=2, pp_size=2) and {
        type(size) for size in mesh.shape
    } == {int}
    assert np.int64(7) in mesh and mesh.coordinate(np.int64(7)) == mesh.coordinate(7)
    grid = np.arange(8).reshape(2, 4)
    assert DeviceMesh.from_ranks(grid, ("dp", "fsdp")) == DeviceMesh(("dp", "fsdp"), (2, 4))
    alone = DeviceMesh.from_ranks(5, ())
    assert alone.ranks() == (5,) and alone.coordinate(5) == {} and alone.size("tp") == 1
    assert mesh.rank({"tp": np.int64(1)}) == 1 and mesh.ranks_at("pp", np.int64(1)) == (4, 5, 6, 7)
    assert mesh.neighbour(0, "pp", np.int64(1)) == 4 and mesh.at(np.int64(5))["tp"].ranks() == (4, 5)
    assert DeviceMesh.from_ranks([np.arange(2), range(2, 4)], ("dp", "tp")).as_array() == [[0, 1], [2, 3]]


@pytest.mark.parametrize("number", [True, 1.0, np.float64(1), "1", [1]])
def test_what_is_no_number(number: Any) -> None:
    mesh = DeviceMesh.from_sizes(pp_size=2, dp_size=2, tp_size=2)
    assert number not in mesh
    questions: list[Callable[[], object]] = [
        lambda: mesh.coordinate(number),
        lambda: mesh.rank({"tp": number}),
        lambda: mesh.sample_range(number, 0),
        lambda: DeviceMesh(("dp",), (number,)),
        lambda: DeviceMesh.from_sizes(world_size=4, tp_size=number),
    ]
    for question in questions:
        with pytest.raises(MeshError):
            question()


def test_device_types_in_any_case() -> None:
    assert DeviceMesh.from_sizes(device_type="GPU").device_type == "cuda"
    assert DeviceMesh.from_ranks([0], "dp", device_type="NPU").device_type == "npu"
    with pytest.raises(MeshError, match=r"device type 'tpu' does not exist; available: cuda, npu, mps, cpu"):
        DeviceMesh.from_sizes(device_type="tpu")


TORCH = json.loads((Path(__file__).parent / "torch_mesh.json").read_text())


@pytest.mark.parametrize("case", TORCH["cases"], ids=lambda case: "x".join(map(str, case["shape"])))
def test_torch(case: dict[str, Any]) -> None:
    names = tuple(case["names"])
    mesh = DeviceMesh(names, tuple(case["shape"]))
    assert mesh == DeviceMesh.from_ranks(np.arange(prod(case["shape"])).reshape(case["shape"]), names)
    for stated in case["ranks"]:
        rank = stated["rank"]
        own = mesh.at(rank)
        assert list(mesh.coordinate(rank).values()) == stated["coordinate"]
        for dim in names:
            assert (
                list(mesh.ranks_along(dim, rank))
                == stated["groups"][dim]
                == stated["slices"][dim]
                == own[dim].as_array()
            )
            assert mesh.dim_rank(rank, dim) == stated["local_rank"][dim] == own[dim].dim_rank(rank, dim)
        for pair in combinations(names, 2):
            assert [own[pair].as_array(), list(own[pair].mesh_dim_names)] == stated["slices2"]["+".join(pair)]
            assert (
                own[pair].flatten().as_array()
                == stated["flatten2"]["+".join(pair)][0]
                == list(mesh.ranks_along(pair, rank))
            )
            assert own[pair[::-1]].as_array() == [
                list(row) for row in zip(*own[pair].as_array(), strict=True)
            ]
