"""Compares meshes with four other systems. Where one of these is wrong, `differs` and `right` contain the
right result."""

from __future__ import annotations

import json
from itertools import combinations
from math import gcd, prod
from pathlib import Path
from typing import Any

import pytest

from meshctl.topology.mesh import DIMS, DeviceMesh, MeshError
from meshctl.topology.modes import COLLECT, EXECUTE, peer_workers
from tests.topology.meshes import consumer_ranks, producer_ranks

FOLDER = Path(__file__).parent / "conformance"
TWINKLE = json.loads((FOLDER / "twinkle_mesh.json").read_text())
INFRA = json.loads((FOLDER / "twinkle_infra.json").read_text())
TORCH = json.loads((FOLDER / "torch_mesh.json").read_text())
VESCALE = json.loads((FOLDER / "vescale_devicemesh.json").read_text())
OPTIMUS = json.loads((FOLDER / "optimus_mesh.json").read_text())
TWINKLE_ORDER = ("fsdp", "pp", "dp", "cp", "tp")
OUTSIDE = 10**9


def by_id(cases: list[dict[str, Any]]) -> list[Any]:
    return [pytest.param(case, id=case["id"]) for case in cases]


def refused(case: dict[str, Any]) -> bool:
    """Whether Twinkle refuses the sizes, or the right answer if it differs: Twinkle accepts any text
    as device type."""
    right = case.get("right", {})
    return case["from_sizes"].get("device_type") == "tpu" or ("error" in right if right else "raises" in case)


@pytest.mark.parametrize("case", by_id([case for case in TWINKLE["cases"] if refused(case)]))
def test_twinkle_what_is_refused(case: dict[str, Any]) -> None:
    with pytest.raises(MeshError) as refusal:
        DeviceMesh.from_sizes(**case["from_sizes"])
    assert any(
        key in str(refusal.value) or str(size) in str(refusal.value)
        for key, size in case["from_sizes"].items()
    )


@pytest.mark.parametrize(
    "case", by_id([case for case in TWINKLE["cases"] if "infer" in case.get("differs", ())])
)
def test_twinkle_what_is_inferred(case: dict[str, Any]) -> None:
    mesh = DeviceMesh.from_sizes(**case["from_sizes"])
    assert {dim: mesh.size(dim) for dim in case["right"]["sizes"]} == case["right"]["sizes"]


@pytest.mark.parametrize(
    "case", by_id([case for case in TWINKLE["cases"] if "result" in case and not refused(case)])
)
def test_twinkle_from_sizes(case: dict[str, Any]) -> None:
    sizes = case["from_sizes"]
    if sizes.get("world_size") == 1:  # Twinkle's word for "infer"
        sizes = {key: size for key, size in sizes.items() if key != "world_size"}
    mesh = DeviceMesh.from_sizes(**sizes, order=TWINKLE_ORDER)
    same_as_twinkle(mesh, case["result"], case.get("right", {}))
    if not {"order", "collect_order"} & set(case.get("differs", ())):
        same_as_twinkle(DeviceMesh.from_sizes(**sizes), case["result"], case.get("right", {}))
    rising(DeviceMesh.from_sizes(**sizes))


def rising(mesh: DeviceMesh) -> None:
    """In the default order, the representatives of the data ranks are ascending."""
    assert list(mesh.collect_ranks()) == sorted(mesh.collect_ranks())


def same_as_twinkle(mesh: DeviceMesh, result: dict[str, Any], right: dict[str, Any]) -> None:
    assert mesh.world_size == result["world_size"]
    assert [mesh.size(dim) for dim in result["dim_names"]] == result["shape"]
    assert flat(mesh[tuple(result["dim_names"])].as_array()) == flat(result["mesh"])
    for dim, size in result["dim_world_sizes"].items():
        assert mesh.size(dim) == (size or 1) or dim in ("ep", "etp")
    if "collect_ranks" in right:
        assert list(mesh.collect_ranks()) == right["collect_ranks"]
    assert set(mesh.collect_ranks()) == set(result["collect_ranks"])
    assert mesh.data_size == result["data_world_size"]
    assert list(mesh.ranks_at("tp", mesh.size("tp") - 1)) == result["tp_last_ranks"]
    assert list(mesh.ranks_at("pp", 0)) == result["pp_first_ranks"]
    assert list(mesh.ranks_at("pp", mesh.size("pp") - 1)) == result["pp_last_ranks"]
    assert [list(mesh.ranks_at("pp", stage)) for stage in range(mesh.size("pp"))] == result["pp_stage_ranks"][
        :-1
    ]
    with pytest.raises(MeshError, match=rf"pp has .*not {mesh.size('pp')}"):
        mesh.ranks_at("pp", mesh.size("pp"))
    for rank in result["per_rank"]:
        one_rank(mesh, rank)
    order = flat(result["mesh"])
    for total, slices in result["slices"].items():
        assert [
            [piece.start, piece.stop] for piece in (mesh.sample_range(int(total), rank) for rank in order)
        ] == slices


def one_rank(mesh: DeviceMesh, stated: dict[str, Any]) -> None:
    rank = stated["rank"]
    assert (rank in mesh) == stated["in_mesh"]
    if not stated["in_mesh"]:
        with pytest.raises(MeshError, match=f"rank {rank} is not in the mesh"):
            mesh.data_rank(rank)
        return
    assert {dim: mesh.dim_rank(rank, dim) for dim in DIMS} == {
        **dict.fromkeys(DIMS, 0),
        **stated["dim_ranks"],
    }
    assert mesh.data_rank(rank) == stated["data_rank"]
    assert list(mesh.ranks_along("tp", rank)) == stated["tp_ranks"]
    assert mesh.is_last(rank, "tp") == stated["is_tp_last"]
    assert mesh.is_first(rank, "pp") == stated["is_pp_first"]
    assert mesh.is_last(rank, "pp") == stated["is_pp_last"]


@pytest.mark.parametrize(
    "case",
    by_id([case for case in TWINKLE["custom_meshes"] if "result" in case and case["id"] != "names_dup"]),
)
def test_twinkle_explicit_ranks(case: dict[str, Any]) -> None:
    mesh, result = DeviceMesh.from_ranks(case["mesh"], case["dim_names"]), case["result"]
    if not result["data_world_size"]:  # without a dp dim; here one data rank, and it gets everything
        result = {**result, "data_world_size": 1, "collect_ranks": [0]}
        result["slices"] = {total: [[0, int(total)]] * mesh.world_size for total in result["slices"]}
    same_as_twinkle(mesh, result, {})


@pytest.mark.parametrize(
    "case",
    by_id([case for case in TWINKLE["custom_meshes"] if "result" not in case or case["id"] == "names_dup"]),
)
def test_twinkle_names_that_are_refused(case: dict[str, Any]) -> None:
    with pytest.raises(MeshError, match=case["dim_names"][0]):
        DeviceMesh.from_ranks(case["mesh"], case["dim_names"])


@pytest.mark.parametrize("case", INFRA["sequence_parallel_groups"], ids=str)
def test_twinkle_sequence_parallel_groups(case: dict[str, Any]) -> None:
    sizes = {**case["mesh"], "ulysses_size": case["ulysses_size"]}
    if "error" in case["result"]:
        with pytest.raises(MeshError, match="ulysses_size 4 does not divide dp x fsdp, which is 2"):
            DeviceMesh.from_sizes(**sizes)
        return
    mesh = DeviceMesh.from_sizes(**sizes, order=TWINKLE_ORDER)
    heads = gcd(case["num_heads"], case["ulysses_size"])
    parted = mesh.unflatten("ulysses", {"ring": case["ulysses_size"] // heads, "heads": heads})
    assert (parted.size("heads"), parted.size("ring")) == (case["result"]["sp"], case["result"]["rp"])
    for group in case["result"]["groups"]:
        rank = group["seq_ranks"][0]
        assert list(mesh.ranks_along("ulysses", rank)) == group["seq_ranks"]
        for dim, groups in (("heads", group["sp_groups"]), ("ring", group["rp_groups"])):
            assert {tuple(sorted(parted.ranks_along(dim, rank))) for rank in group["seq_ranks"]} == set(
                map(tuple, groups)
            )


@pytest.mark.parametrize("order", [DIMS, TWINKLE_ORDER], ids=["our order", "Twinkle's"])
@pytest.mark.parametrize("case", INFRA["round_trip"], ids=lambda case: str(case["mesh"]))
def test_twinkle_round_trips(case: dict[str, Any], order: tuple[str, ...]) -> None:
    """A batch that is divided by data rank and joined from the representatives contains every sample once, in
    order."""
    mesh = DeviceMesh.from_sizes(**case["mesh"], order=order)
    assert [
        sample for rank in mesh.collect_ranks() for sample in mesh.sample_range(case["len"], rank)
    ] == case["right"]


@pytest.mark.parametrize("case", [*INFRA["device_mesh_sampler"], *INFRA["iterable_fetcher"]], ids=str)
def test_twinkle_batches_of_one_rank(case: dict[str, Any]) -> None:
    mesh = DeviceMesh.from_sizes(**case["mesh"], order=TWINKLE_ORDER)
    first, last = map(int, case["items"].split("..")) if "items" in case else (case["skip"], case["n"] - 1)
    batches = [
        range(start, min(start + case["batch"], last + 1)) for start in range(first, last + 1, case["batch"])
    ]
    mine = [[batch[sample] for sample in mesh.sample_range(len(batch), case["rank"])] for batch in batches]
    given = len(case["batches"])
    assert mine[:given] == case["batches"]
    assert all(
        len(batch) < mesh.data_size for batch in batches[given:]
    )  # a tail that is too short for all data ranks is the recipe's


@pytest.mark.parametrize("case", INFRA["get_workers"], ids=str)
def test_twinkle_who_is_called(case: dict[str, Any]) -> None:
    if "error" in case["result"]:
        assert case["execute"] not in EXECUTE
        return
    mesh = DeviceMesh.from_sizes(dp_size=case["n"])
    called = (
        peer_workers(case["n"], 0, 1)
        if case["execute"] == "peer"
        else range(len(consumer_ranks(mesh, case["execute"])))
    )
    assert [*called] == case["result"]


@pytest.mark.parametrize("case", [case for case in INFRA["collect"] if "value" in case], ids=str)
def test_the_producers_of_twinkle(case: dict[str, Any]) -> None:
    values, how = case["value"], case["collect"]
    if how in ("bogus", "avg"):
        assert how not in COLLECT
        return
    mesh = DeviceMesh.from_sizes(**case["mesh"])
    if len(values) != mesh.world_size:  # refused before anything runs
        with pytest.raises(MeshError, match=f"but the number of ranks is {len(values)}"):
            DeviceMesh.from_sizes(world_size=len(values), **case["mesh"])
        return
    spoken = [values[rank] for rank in producer_ranks(mesh, how)]
    if COLLECT[how].join in ("list", "first"):
        assert (spoken if COLLECT[how].join == "list" else spoken[0]) == case["result"]
    else:
        assert spoken == values


def test_each_custom_mesh_is_looked_at() -> None:
    assert len(TWINKLE["custom_meshes"]) == 7 and len(TWINKLE["cases"]) == 108


# torch


@pytest.mark.parametrize("case", TORCH["cases"], ids=lambda case: "x".join(map(str, case["shape"])))
def test_torch(case: dict[str, Any]) -> None:
    names = tuple(case["names"])
    mesh = DeviceMesh(names, tuple(case["shape"]))
    assert mesh == DeviceMesh.from_ranks(nested(list(range(prod(case["shape"]))), case["shape"]), names)
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


TORCH_ERRORS = {
    "mesh larger than world": (
        lambda: DeviceMesh.from_sizes(world_size=4, dp_size=4, tp_size=2),
        "dp 4 x tp 2 = 8, but the number of ranks is 4",
    ),
    "name count": (lambda: DeviceMesh(("dp",), (2, 2)), r"2 sizes .* for 1 dims dp"),
    "slice without names": (
        lambda: DeviceMesh(("dp",), (2,))["nope"],
        "dim 'nope' does not exist; available: dp",
    ),
    "get_local_rank none on 2d": (
        lambda: DeviceMesh(("a", "b"), (2, 2)).dim_rank(0, None),
        "a dim must be a string, not None",
    ),  # type: ignore[arg-type]
    "zero dim": (
        lambda: DeviceMesh(("dp", "tp"), (0, 2)),
        "size of dp must be a positive integer, not 0",
    ),
}


@pytest.mark.parametrize("case", TORCH["errors"], ids=lambda case: case["name"])
def test_torch_errors(case: dict[str, Any]) -> None:
    if "error" not in case["result"]:
        assert DeviceMesh.from_ranks([[0, 2], [1, 3]], ("a", "b")).as_array() == case["result"]
        return
    wrong, message = TORCH_ERRORS[case["name"]]
    with pytest.raises(MeshError, match=message):
        wrong()


# veScale


@pytest.mark.parametrize(
    "case",
    [case for case in VESCALE["cases"] if "mesh" in case],
    ids=lambda case: f"{'x'.join(map(str, case['shape']))} {case['names']}",
)
def test_vescale(case: dict[str, Any]) -> None:
    names = case["dim_names"]
    mesh = DeviceMesh.from_ranks(case["mesh"], names)
    assert mesh.world_size == case["size"]
    assert [mesh.size(dim) for dim in names] == case["shape"]
    for rank, coordinate in case["strategy_coordinate_of_rank"].items():
        if isinstance(coordinate, dict):
            with pytest.raises(MeshError, match=f"rank {rank} is not in the mesh"):
                mesh.coordinate(int(rank))
        else:
            assert list(mesh.coordinate(int(rank)).values()) == coordinate
    for stated in case["ranks"]:
        rank, own = stated["rank"], mesh.at(stated["rank"])
        assert list(mesh.coordinate(rank).values()) == stated["get_coordinate"]
        for dim, ranks in stated["getitem"].items():
            if isinstance(ranks, list):
                assert own[dim].as_array() == ranks
        for dim, index in stated["lookup_rank"].items():
            assert (
                dim not in names or rank >= case["default_device_count"] or mesh.dim_rank(rank, dim) == index
            )  # V3
        if isinstance(stated["dp_mesh"], list) and "DP" in names and "CP" not in names:
            assert own["DP"].as_array() == stated["dp_mesh"]
    for dim, size in case["strategy_size"].items():
        if dim in names:
            assert mesh.size(dim) == size
        elif not dim.isdigit():
            with pytest.raises(MeshError, match=f"dim '{dim}' does not exist; available: {', '.join(names)}"):
                mesh.size(dim)
    if isinstance(groups := case["global_tensor_parallel_meshes"], list) and len(names) == 3:
        assert [list(group) for group in mesh.process_groups("TP")] == [flat(group) for group in groups]
        stages = [list(mesh.ranks_at("PP", stage)) for stage in range(mesh.size("PP"))]
        assert stages == list(map(flat, case["global_pipeline_parallel_meshes"]))


@pytest.mark.parametrize(
    "case",
    [case for case in VESCALE["cases"] if case["names"] and "mesh" not in case],
    ids=lambda case: case["names"],
)
def test_vescale_names_that_do_not_fit(case: dict[str, Any]) -> None:
    with pytest.raises(
        MeshError,
        match=f"{len(case['shape'])} sizes .* for {len(case['names'])} dims {', '.join(case['names'])}",
    ):
        DeviceMesh(tuple(case["names"]), tuple(case["shape"]))


def test_what_vescale_gets_wrong() -> None:
    cube = DeviceMesh.from_sizes(pp_size=2, dp_size=2, tp_size=2)
    assert cube.at(6)["pp"].ranks() == (2, 6)  # V1
    assert list(cube.process_groups("tp")) == [(0, 1), (2, 3), (4, 5), (6, 7)]  # V2
    wide = DeviceMesh.from_sizes(dp_size=2, tp_size=8)
    assert wide["dp", "tp"].coordinate(15) == {"dp": 1, "tp": 7}  # V3
    assert DeviceMesh.from_ranks([0, 1], ("tp",)).dim_rank(1, "dp") == 0  # V4
    assert wide.is_first(0, "pp") and wide.is_last(0, "pp")  # V8
    assert cube.at(6)["tp", "dp"].as_array() == [
        [4, 6],
        [5, 7],
    ]  # V9: the order of names is the order of dims, over the same ranks


# Optimus-DL


def test_optimus() -> None:
    looked_at = 0
    for case in OPTIMUS["cases"]:
        if "ranks" not in case or 0 in case["shape"]:
            continue
        looked_at += 1
        dp, fsdp, tp = case["shape"]
        mesh = DeviceMesh.from_sizes(world_size=case["world_size"], dp_size=dp, fsdp_size=fsdp, tp_size=tp)
        for stated in case["ranks"]:
            rank, own = stated["rank"], mesh.at(stated["rank"])
            assert list(own["dp", "fsdp", "tp"].coordinate(rank).values()) == stated["coord"]
            assert (mesh.data_rank(rank), mesh.data_size) == (stated["dp_rank"], stated["dp_world_size"])
            assert (mesh.dim_rank(rank, "tp"), mesh.size("tp")) == (
                stated["tp_rank"],
                stated["tp_world_size"],
            )
            assert list(mesh.ranks_along("tp", rank)) == stated["tp_group"]
            assert list(mesh.ranks_along("fsdp", rank)) == stated["dp_shard_group"]
            assert list(mesh.ranks_along("dp", rank)) == stated["dp_replicate_group"]
            assert own["dp", "fsdp"].as_array() == stated["dp_mesh"]
    assert looked_at == 49


def test_optimus_verdicts() -> None:
    """Sizes are valid exactly if shards x tp divides the number of ranks."""
    taken = 0
    for case in OPTIMUS["cases"]:
        shards, tp, world = case["sharding_world_size"], case["tp_size"], case["world_size"]
        if shards != 0 and world % ((shards or 1) * tp) == 0:
            assert DeviceMesh.from_sizes(world_size=world, fsdp_size=shards, tp_size=tp).world_size == world
            taken += 1
            continue
        with pytest.raises(
            MeshError,
            match="must be a positive integer or auto, not 0" if shards == 0 else "nearest that fit",
        ):
            DeviceMesh.from_sizes(world_size=world, fsdp_size=shards, tp_size=tp)
        assert "raises" in case or shards == 0
    assert len(OPTIMUS["cases"]) == 176 and taken > 49


def flat(ranks: Any) -> list[int]:
    return [rank for row in ranks for rank in flat(row)] if isinstance(ranks, list) else [ranks]


def nested(ranks: list[Any], shape: list[int]) -> Any:
    for size in reversed(shape[1:]):
        ranks = [ranks[start : start + size] for start in range(0, len(ranks), size)]
    return ranks
