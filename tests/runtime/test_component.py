"""A component without a launcher: alone on one process, and as a rank of torchrun's world."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from meshctl import Batch, Component, ComponentError, DeviceMesh, MeshError, copy_weights, endpoint
from meshctl.runtime.component import Endpoint, endpoint_of
from meshctl.runtime.instantiate import make
from meshctl.runtime.rank_context import Location, RankContext
from tests import command_server
from tests.paths import ROOT
from tests.runtime.plans import plan


class Adder(Component):
    @endpoint
    def plain(self, batch: Batch) -> Batch:
        return batch.with_columns(y=batch["x"] + 1)

    @endpoint(dispatch="all", collect="sum", execute="first")
    def words(self, batch: Batch) -> float:
        return float(self.collective("dp").all_reduce(batch["x"].sum()))

    def helper(self) -> None: ...


def test_it_works_without_a_launcher() -> None:
    adder = Adder()
    batch = Batch({"x": torch.arange(3)})
    assert adder.plain(batch)["y"].tolist() == [1, 2, 3]
    assert adder.words(batch) == 3.0
    assert (adder.rank, adder.mesh.world_size, adder.device.type, adder.step) == (0, 1, "cpu", 0)
    adder.log({"x": 1.0})
    adder.stop("nobody listens")
    assert [len(part) for part in adder.micro_batches(batch, 2)] == [2, 1]
    found = adder.alloc(2, 3)
    assert (found.shape, found.dtype) == ((2, 3), torch.float32)
    shapes = [adder.alloc(size).shape for size in (batch["x"].shape, [2, 0], ())]
    assert shapes == [(3,), (2, 0), ()] and adder.alloc(0, 5, dtype=torch.bool).shape == (0, 5)


def test_the_arguments_of_a_decorator() -> None:
    assert endpoint_of(Adder, "plain") == Endpoint()
    assert endpoint_of(Adder, "words") == Endpoint("all", "sum", "first")
    assert endpoint_of(Adder, "helper") is None and endpoint_of(Adder, "gone") is None


def test_the_facts_of_a_rank_on_the_second_node() -> None:
    component = Component()
    mesh = DeviceMesh.from_sizes(dp_size=5)
    component._context = RankContext("it", mesh, rank=4, nodes=lambda: [[0, 1, 2], [3, 4]])
    assert (component.node_rank, component.local_rank, component.local_world_size) == (1, 1, 2)
    assert component.world_size == 5
    alone = Component()
    assert alone.place.location == Location(0, 0, 1)


def test_meshes_of_one_process(tmp_path: Path) -> None:
    """Runs in a separate process, because it initializes torch.distributed."""
    code = """
from meshctl import Component
it = Component()
print(it.torch_mesh.shape, it.node_mesh.mesh_dim_names, it.node_mesh.shape, it.local_mesh.shape)
assert it.torch_mesh is it.torch_mesh and it.local_mesh is it.local_mesh
raise SystemExit
"""
    done = command_server.call(tmp_path, program=code)
    assert done.stdout == "(1, 1, 1, 1, 1) ('node', 'local') (1, 1) (1,)\n", done.stderr


class Seeded(Component):
    def __init__(self) -> None:
        self.seen = (self.rank, self.mesh.world_size, self.place.name)
        self.out, self.first = self.run_dir / "out", self.seed
        self.seed = 99  # its own, as many classes have one


def test_a_constructor_knows_its_rank_and_the_folder_and_the_seed_of_the_run() -> None:
    assert (Component().run_dir, Component().seed) == (Path(), 0)
    placed = plan({"b": 3}, {"it": ("b", {})}, []).component("it")
    context = RankContext("it", placed.mesh, rank=2, run_dir=Path("/runs/x"), seed=7)
    made: Any = make(replace(placed, target=f"{Seeded.__module__}.Seeded"), [], [str(ROOT)], context)
    assert (made.out, made.first, made.seed) == (Path("/runs/x/out"), 7, 99)
    assert made.seen == (2, 3, "it") and made.place is context


def test_the_mesh_of_a_run_is_the_recipe_s() -> None:
    component = Component()
    component._context = RankContext("actor")
    with pytest.raises(ComponentError, match="the mesh of `actor` is set in the recipe, by `parallel`"):
        component.use_mesh(DeviceMesh.from_sizes())


# Weights


def test_copy_weights_names_what_does_not_fit() -> None:
    module = nn.Linear(2, 3)
    copy_weights([("weight", torch.ones(3, 2)), ("bias", torch.zeros(3))], module)
    assert module.weight.sum() == 6 and module.bias.sum() == 0
    with pytest.raises(ComponentError, match="the sync sends `scale`, which the module does not have"):
        copy_weights([("scale", torch.ones(1))], module)
    with pytest.raises(
        ComponentError, match=r"`bias` has the shape \[3\] on this rank, the sync sends \[4\]"
    ):
        copy_weights([("bias", torch.ones(4))], module)


# torchrun

SCRIPT = """
import json, sys
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from meshctl import Component, DeviceMesh, MeshError, copy_weights

it = Component()
total = it.collective("dp").all_reduce(torch.tensor(float(it.rank))).item()
facts = [it.rank, it.world_size, it.local_rank, it.local_world_size, it.node_rank, str(it.mesh.shape), total]
facts.append(it.collective("local").size)
try:
    it.use_mesh(DeviceMesh.from_sizes(tp_size=2))
except MeshError as error:
    facts.append(str(error))
it.use_mesh(DeviceMesh.from_sizes(dp_size=2, fsdp_size=2, ulysses_size=2, ep_size=4))
ep, ulysses = it.torch_mesh["ep"], it.torch_mesh["ulysses"]
facts += [ep.mesh.tolist(), ulysses.mesh.tolist(), it.torch_mesh.get_group("ep").size()]
facts += [it.torch_mesh["fsdp"].mesh.tolist(), it.node_mesh.mesh.tolist(), it.local_mesh.size()]
linear = nn.Linear(4, 8, bias=False)
fully_shard(linear, mesh=it.torch_mesh["fsdp"])
shard = torch.full((4, 4), float(it.mesh.dim_rank(it.rank, "fsdp")))
copy_weights([("weight", shard)], linear)
facts.append(linear.weight.full_tensor().sum(1).tolist())
with open(sys.argv[1] + f"/{it.rank}.json", "w") as file:
    json.dump(facts, file)
torch.distributed.barrier()  # no rank leaves while another one still communicates
torch.distributed.destroy_process_group()
"""


def test_a_mesh_of_another_size_than_the_world_is_refused() -> None:
    with pytest.raises(MeshError, match="is not initialised"):
        component = Component()
        component.use_mesh(DeviceMesh.from_sizes(dp_size=2))
        component.torch_mesh  # noqa: B018


@pytest.mark.slow
def test_under_torchrun_a_component_joins_the_world(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    done = subprocess.run([*torchrun, str(script), str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    for rank in range(4):
        facts = json.loads((tmp_path / f"{rank}.json").read_text())
        assert facts[:8] == [rank, 4, rank, 4, 0, "(1, 4, 1, 1, 1)", 6.0, 4]
        assert facts[8] == "the mesh has 2 ranks, and torch's world has 4"
        pair = [rank // 2 * 2, rank // 2 * 2 + 1]
        assert facts[9:12] == [[0, 1, 2, 3], pair, 4]
        assert facts[12:15] == [pair, [[0, 1, 2, 3]], 4]
        assert facts[15] == [0.0] * 4 + [4.0] * 4
