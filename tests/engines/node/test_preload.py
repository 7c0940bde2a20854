"""The modules of torch and meshctl that are imported before the fork."""

from __future__ import annotations

from pathlib import Path

from meshctl.engines.node.preload import named
from meshctl.plan.model import Checkpoint, Cluster, Component, Plan, Run
from meshctl.topology.mesh import DeviceMesh


def plan(target: str, checkpoint: Checkpoint | None = None) -> Plan:
    mesh = DeviceMesh.from_sizes(world_size=1)
    return Plan(
        "test",
        0,
        Cluster(),
        (),
        (Component("actor", target, "one", mesh),),
        (),
        (),
        Run(checkpoint=checkpoint),
    )


def test_files_are_read_and_followed_but_not_imported(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "__init__.py").write_text("from .inner import thing\n")
    (tmp_path / "parts" / "inner.py").write_text(
        "from torch.distributed.tensor import DTensor\nraise RuntimeError\n"
    )
    (tmp_path / "actor.py").write_text(
        "import parts, torch.nn.functional as F\n\ndef late():\n    from torch.distributed import fsdp\n"
    )
    found = named(plan("actor.Actor"), [str(tmp_path)], ["one"])
    assert {"torch.nn.functional", "torch.distributed.fsdp", "torch.distributed.tensor"} <= found
    assert all(name.startswith("torch.") for name in found)


def test_components_that_meshctl_ships_are_imported_themselves(tmp_path: Path) -> None:
    assert "meshctl.hf" in named(plan("meshctl.hf.Model"), [str(tmp_path)], ["one"])
    (tmp_path / "actor.py").write_text("from meshctl.hf import Model\n")
    assert "meshctl.hf" in named(plan("actor.Actor"), [str(tmp_path)], ["one"])


def test_the_components_of_other_groups_are_left_out(tmp_path: Path) -> None:
    assert named(plan("meshctl.hf.Model", Checkpoint()), [str(tmp_path)], ["two"]) == set()


def test_checkpoints_have_their_own_part(tmp_path: Path) -> None:
    assert named(plan("nowhere.Actor"), [str(tmp_path)], ["one"]) == set()
    assert named(plan("nowhere.Actor", Checkpoint()), [str(tmp_path)], ["one"]) == {
        "torch.distributed.checkpoint"
    }


def test_a_file_that_cannot_be_read_is_the_workers_to_complain_of(tmp_path: Path) -> None:
    (tmp_path / "actor.py").write_text("import torch.\n")
    assert named(plan("actor.Actor"), [str(tmp_path)], ["one"]) == set()
