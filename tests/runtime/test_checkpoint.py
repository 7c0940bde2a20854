"""Checkpoints: the state of one process, and that of several which differs between them."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from meshctl.run.checkpoints import VaryingState
from meshctl.runtime.checkpoint import CheckpointError, load, save, write_dcp
from meshctl.runtime.checkpoint_writer import Staging
from meshctl.runtime.collectives.collective import Collective
from meshctl.runtime.state.tree import StateTree
from meshctl.topology.mesh import DeviceMesh
from tests.examples import examples
from tests.runtime import worlds
from tests.runtime.state.trees import LEAVES, nested, same

ALONE = DeviceMesh.from_sizes()


# One process


def of_module(module: str, folder: Path) -> Path:
    """Saves a state as by a Python version whose `PosixPath` is defined in `module`."""
    save(folder, "actor", {"weight": torch.arange(3.0)}, ALONE)
    path = folder / "actor" / ".metadata"
    plain = pickle.dumps(pickle.loads(path.read_bytes()), protocol=2)  # with names in the clear
    changed, count = re.subn(rb"cpathlib(\._local)?\nPosixPath\n", f"c{module}\nPosixPath\n".encode(), plain)
    assert count == 1
    path.write_bytes(changed)
    return folder


@pytest.mark.parametrize("module", ["pathlib", "pathlib._local"])
def test_a_checkpoint_of_another_python_version_is_loaded(module: str, tmp_path: Path) -> None:
    """Python 3.13 pickles paths as `pathlib._local.PosixPath`, all others as `pathlib.PosixPath`."""
    state = load(of_module(module, tmp_path), "actor", {"weight": torch.zeros(3)}, ALONE)
    assert state["weight"].tolist() == [0.0, 1.0, 2.0]


def test_metadata_with_another_class_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"it names os\.PosixPath, which is none of DCP's classes"):
        load(of_module("os", tmp_path), "actor", {"weight": torch.zeros(3)}, ALONE)


def saved(folder: Path, state: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Returns `state`, saved and loaded by a component whose own state is `own`."""
    save(folder, "actor", state, ALONE)
    return load(folder, "actor", own, ALONE)


WEIGHTS = torch.zeros(3)
STATES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "values of another type or shape": (
        {"a": torch.ones(5), "b": 1, "c": [1], "d": torch.ones(2, dtype=torch.int64)},
        {"a": torch.zeros(0), "b": torch.ones(1), "c": {}, "d": torch.zeros(2), "e": "more"},
    ),
    "tensors that share memory, as `best` before its first copy": (
        {"weights": torch.ones(3), "best": torch.full((3,), 2.0), "row": torch.arange(3.0)},
        {"weights": WEIGHTS, "best": WEIGHTS, "row": torch.zeros(1).expand(3)},
    ),
}
"""Name -> a saved state, and that of the component which loads it."""


@pytest.mark.parametrize("name", STATES)
def test_a_state_is_loaded_as_it_was_saved_whatever_the_new_component_has(name: str, tmp_path: Path) -> None:
    state, own = STATES[name]
    assert same(saved(tmp_path, state, own), state)


def test_an_optimizer_without_moments_loads_them(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    trained = torch.optim.Adam([weight])
    weight.grad = torch.ones(3)
    trained.step()
    fresh = torch.optim.Adam([torch.nn.Parameter(torch.ones(3))])
    assert same(saved(tmp_path, trained.state_dict(), fresh.state_dict()), trained.state_dict())


def test_tensors_are_loaded_into_those_of_the_component(tmp_path: Path) -> None:
    own = {"w": torch.zeros(2, 3).t()}
    state = {"w": torch.arange(6.0).view(3, 2)}
    assert saved(tmp_path, state, own)["w"] is not None and same(own["w"].contiguous(), state["w"])


def test_a_damaged_list_of_differences_is_named(tmp_path: Path) -> None:
    save(tmp_path, "actor", {"a": 1}, ALONE)
    (tmp_path / "actor" / "by_rank.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"by_rank\.json is damaged"):
        load(tmp_path, "actor", {}, ALONE)


@pytest.mark.parametrize(
    "text",
    [
        "", "[", "3", "null", "[]", '["dict"]', '["dict", 3]', '["dict", [["a", ["unknown", 1]]]]', '["dict", [["a"]]]',
        '["dict", [["a", ["torch.dtype", "load"]]]]', '["dict", [["a", ["tensor", "b"]]]]', '["dict", [["a", [{}]]]]',
        '["dict", [["a", ["bytes", "x"]]]]', '["dict", [["a", ["numpy scalar", "O", "AAAA"]]]]', "[" * 5000,
    ],
)  # fmt: skip
def test_a_damaged_document_is_named(text: str, tmp_path: Path) -> None:
    write_dcp(tmp_path / "actor", {"@document": text})
    with pytest.raises(CheckpointError, match="actor"):
        load(tmp_path, "actor", {}, ALONE)


# Several processes

SIZE = 4
DP, TP = DeviceMesh.from_sizes(dp_size=4), DeviceMesh.from_sizes(tp_size=4)
DP_TP = DeviceMesh.from_sizes(dp_size=2, tp_size=2)
FSDP_TP = DeviceMesh.from_sizes(fsdp_size=2, tp_size=2)
PP_DP = DeviceMesh.from_sizes(pp_size=2, dp_size=2)
MESHES = (DP, TP, DP_TP, FSDP_TP, PP_DP, DeviceMesh.from_sizes(dp_size=2, fsdp_size=2))
CASES = examples(25, 500)
FOLDER = [Path()]
"""Where the checks of a world save; set before its processes are forked."""
CHECKS: list[worlds.Check] = []


def check(function: worlds.Check) -> worlds.Check:
    CHECKS.append(function)
    return function


def folder(name: str) -> Path:
    return FOLDER[0] / name


def varying(name: str) -> VaryingState:
    return VaryingState.read(folder(name) / "actor")


def stored_names(name: str) -> list[str]:
    return sorted(dcp.FileSystemReader(folder(name) / "actor").read_metadata().state_dict_metadata)


def refusal(name: str, own: dict[str, Any], mesh: DeviceMesh) -> str:
    with pytest.raises(CheckpointError) as raised:
        load(folder(name), "actor", own, mesh)
    return str(raised.value)


@check
def loader_and_random_numbers(rank: int) -> None:
    mesh = DP_TP.at(rank)
    data_rank = mesh.dim_rank("dp")
    generator = torch.Generator().manual_seed(data_rank)
    state = {
        "loader": {"position": 100 * data_rank, "seen": [data_rank] * (1 + data_rank), "epoch": 3},
        "rng": generator.get_state(),
        "loss": float("nan"),
        "weight": torch.ones(5),
    }
    save(folder("loader"), "actor", state, mesh)
    own = {"loader": {"position": 0}, "rng": torch.Generator().get_state(), "weight": torch.zeros(5)}
    assert same(load(folder("loader"), "actor", own, mesh), state)
    values = dict.fromkeys(("loader.position", "loader.seen", "rng"), ("dp",))
    assert varying("loader") == VaryingState.of(mesh, ("dp",), values)
    assert stored_names("loader") == ["@document@dp=0", "@document@dp=1", "rng@dp=0", "rng@dp=1", "weight"]
    moved = FSDP_TP.at(rank)
    assert refusal("loader", own, moved) == (
        f"{folder('loader') / 'actor'}: the state of `actor` was saved with dp 2 and cannot be loaded with "
        "dp 1: `loader.position`, `loader.seen` and `rng` differ along `dp`"
    )


@check
def equal_state_is_stored_once_and_loaded_on_every_mesh(rank: int) -> None:
    state = {"w": torch.arange(6.0), "nan": torch.tensor(float("nan")), "n": {"a": [1, 2]}}
    save(folder("equal"), "actor", state, DP.at(rank))
    assert not (folder("equal") / "actor" / "by_rank.json").exists()
    assert stored_names("equal") == ["@document", "nan", "w"]
    for mesh in MESHES:
        assert same(load(folder("equal"), "actor", {"w": torch.zeros(6)}, mesh.at(rank)), state)


@check
def a_key_of_one_rank_comes_back_to_this_rank(rank: int) -> None:
    mesh = DP_TP.at(rank)
    state: dict[str, Any] = {"step": 1} | ({"log": ["a"], "t": torch.ones(1)} if rank == 0 else {})
    save(folder("first"), "actor", state, mesh)
    assert same(load(folder("first"), "actor", {}, mesh), state)
    moved = DP.at(rank)
    own: dict[str, Any] = {"step": 0} | ({"log": [], "t": torch.zeros(1)} if rank == 0 else {})
    assert same(load(folder("first"), "actor", own, moved), state)
    reason = "was saved with dp 2 x tp 2, where ranks have different keys: no rank loads `log`"
    assert reason in refusal("first", {"step": 0}, moved)
    assert "`new` was not saved" in refusal("first", {**own, "new": 1}, moved)


@check
def stages_of_a_pipeline_are_merged(rank: int) -> None:
    mesh = PP_DP.at(rank)
    stage = mesh.dim_rank("pp")
    layers = {f"layers.{number}": torch.full((2,), number) for number in range(4)}
    rates = {f"rate.{number}": number / 7 for number in range(4)}
    mine = [number for number in range(4) if number // 2 == stage]
    state = {key: value for part in (layers, rates) for key, value in part.items() if int(key[-1]) in mine}
    save(folder("pp"), "actor", state, mesh)
    assert varying("pp") == VaryingState.of(mesh, ("pp",), {})
    assert same(load(folder("pp"), "actor", {}, mesh), state)
    own = {key: torch.zeros(2, dtype=torch.int64) for key in layers} | dict.fromkeys(rates, 0.0)
    assert same(load(folder("pp"), "actor", own, DP.at(rank)), {**layers, **rates})


@check
def sharded_tensors_are_resharded_with_state_that_differs(rank: int) -> None:
    mesh, moved = FSDP_TP.at(rank), TP.at(rank)
    whole = torch.arange(16.0).view(8, 2)
    torch_mesh, torch_moved = mesh.to_torch()["fsdp", "tp"], moved.to_torch()["tp"]
    sharded = distribute_tensor(whole, torch_mesh, [Shard(0), Replicate()], src_data_rank=None)
    save(folder("shards"), "actor", {"w": sharded, "part": mesh.dim_rank("tp")}, mesh)
    own = {"w": distribute_tensor(torch.zeros(8, 2), torch_mesh, [Shard(0), Replicate()], src_data_rank=None)}
    found = load(folder("shards"), "actor", own, mesh)
    assert found["w"] is own["w"] and found["part"] == mesh.dim_rank("tp")
    assert torch.equal(own["w"].full_tensor(), whole)
    save(folder("even"), "actor", {"w": sharded, "n": 1}, mesh)
    own = {"w": distribute_tensor(torch.zeros(8, 2), torch_moved, [Shard(1)], src_data_rank=None)}
    assert torch.equal(load(folder("even"), "actor", own, moved)["w"].full_tensor(), whole)
    assert same(load(folder("even"), "actor", {"w": torch.zeros(8, 2)}, moved)["w"], whole)
    assert "`w` of component `actor` is sharded" in refusal("even", {}, moved)


@check
def a_copy_is_saved_over_another_process_group(rank: int) -> None:
    """As a checkpoint that is written beside training, which changes the state meanwhile."""
    mesh = FSDP_TP.at(rank)
    background = Collective(range(SIZE), rank, dist.new_group(backend="gloo"))
    whole = torch.arange(16.0).view(8, 2)
    torch_mesh = mesh.to_torch()["fsdp", "tp"]
    sharded = distribute_tensor(whole.clone(), torch_mesh, [Shard(0), Replicate()], src_data_rank=None)
    state = {"w": torch.nn.Parameter(sharded), "noise": torch.full((2,), mesh.dim_rank("tp"))}
    copy = Staging().copy("actor", StateTree.of("actor", state))
    thread = Thread(target=lambda: save(folder("copy"), "actor", copy, mesh, background))
    thread.start()
    for _ in range(20):
        dist.all_reduce(state["noise"])
    with torch.no_grad():
        state["w"].zero_()
    thread.join()
    own = {"w": distribute_tensor(torch.zeros(8, 2), torch_mesh, [Shard(0), Replicate()], src_data_rank=None)}
    found = load(folder("copy"), "actor", own, mesh)
    assert torch.equal(own["w"].full_tensor(), whole) and varying("copy").values == {"noise": ("tp",)}
    assert found["noise"].tolist() == [mesh.dim_rank("tp")] * 2


@check
def replicas_of_shards_that_differ_are_kept(rank: int) -> None:
    """Each dp rank trains a sharded model of its own."""
    mesh = DeviceMesh.from_sizes(dp_size=2, fsdp_size=2).at(rank)
    inner = mesh.to_torch()["fsdp"]
    whole = torch.arange(8.0) + 100 * mesh.dim_rank("dp")
    state = {"w": distribute_tensor(whole, inner, [Shard(0)], src_data_rank=None)}
    save(folder("replicas"), "actor", state, mesh)
    assert varying("replicas").values == {"w": ("dp",)}
    own = {"w": distribute_tensor(torch.zeros(8), inner, [Shard(0)], src_data_rank=None)}
    assert torch.equal(load(folder("replicas"), "actor", own, mesh)["w"].full_tensor(), whole)
    assert "`w` differs along `dp`" in refusal("replicas", {"w": torch.zeros(8)}, DP.at(rank))


def random_case(rank: int, case: int) -> None:
    """Saves a random state whose values differ along random dims, or are absent at random places."""
    chance = Random(case)
    mesh = chance.choice(MESHES).at(rank)
    dims = [dim for dim in mesh.mesh_dim_names if mesh.size(dim) > 1]
    coordinate = mesh.coordinate()

    def place(chosen: list[str]) -> str:
        return str([coordinate[dim] for dim in chosen])

    leaves: dict[int, Any] = {}
    certain, possible = set[str](), set[str]()
    for number in range(chance.randrange(7)):
        kind = chance.choice(sorted(LEAVES))
        chosen = [dim for dim in dims if chance.random() < 0.4]
        absent = chance.choice([[], [], dims, chosen])
        missing = Random(f"{case} {number} {place(absent)}").random() < 0.4 if absent else False
        leaves[number] = LEAVES[kind](Random(f"{case} {number} {place(chosen)}"))
        possible.update(
            dims if absent else chosen
        )  # several dims may explain values that are absent elsewhere
        certain.update([] if absent else chosen)
        if missing:
            del leaves[number]
    state = nested(case, leaves)
    save(folder(f"case-{case}"), "actor", state, mesh)
    own = nested(case, {number: torch.zeros(3) for number in leaves}) if case % 2 else {}
    assert same(load(folder(f"case-{case}"), "actor", own, mesh), state), f"case {case}: {state}"
    found = {dim for along in varying(f"case-{case}").values.values() for dim in along}
    assert certain <= found <= possible, f"case {case}"


@check
def ranks_that_get_other_data_do_not_get_the_state_of_a_rank(rank: int) -> None:
    """With ulysses 2, two ranks of dp have the same data rank."""
    save(folder("views"), "actor", {"position": rank}, DP.at(rank))
    moved = DeviceMesh.from_sizes(dp_size=4, ulysses_size=2).at(rank)
    assert "saved with ulysses 1 and cannot be loaded with ulysses 2" in refusal("views", {}, moved)


@check
def random_states_come_back_on_the_same_mesh(rank: int) -> None:
    for case in range(CASES):
        random_case(rank, case)


def moved_case(rank: int, case: int) -> None:
    """Saves a random state on one mesh and loads it on another one, where it is refused or has the values of
    the same coordinates."""
    chance = Random(case)
    mesh, moved = chance.choice(MESHES).at(rank), chance.choice(MESHES).at(rank)
    dims = [dim for dim in mesh.mesh_dim_names if mesh.size(dim) > 1]
    kinds = [chance.choice(sorted(LEAVES)) for _ in range(chance.randrange(1, 5))]
    along = [[dim for dim in dims if chance.random() < 0.25] for _ in kinds]

    def state_at(coordinate: dict[str, int]) -> dict[Any, Any]:
        places = [str([coordinate[dim] for dim in chosen]) for chosen in along]
        seeds = [f"{case} {number} {place}" for number, place in enumerate(places)]
        return nested(case, {n: LEAVES[kinds[n]](Random(seed)) for n, seed in enumerate(seeds)})

    save(folder(f"moved-{case}"), "actor", state_at(mesh.coordinate()), mesh)
    changed = [dim for dim in dims if moved.size(dim) != mesh.size(dim)]
    if any({*chosen} & {*changed} for chosen in along):
        assert "cannot be loaded with" in refusal(f"moved-{case}", {}, moved), f"case {case}"
    else:
        found = load(folder(f"moved-{case}"), "actor", {}, moved)
        assert same(found, state_at(moved.coordinate())), f"case {case}"


@check
def random_states_are_loaded_on_another_mesh_or_refused(rank: int) -> None:
    for case in range(CASES):
        moved_case(rank, case)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    FOLDER[0] = tmp_path_factory.mktemp("states")
    return worlds.run(SIZE, CHECKS, tmp_path_factory.mktemp("checkpoints"))


@pytest.mark.slow
@pytest.mark.parametrize("name", [check.__name__ for check in CHECKS])
def test_ranks_get_back_what_they_had(name: str, results: dict[str, str]) -> None:
    assert results[name] == worlds.PASSED, results[name]
