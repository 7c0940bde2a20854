"""The modules of torch and meshctl that are imported before the fork."""

from __future__ import annotations

from pathlib import Path

import pytest

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


@pytest.mark.parametrize(
    ("code", "target", "checkpoint", "group", "expected"),
    [
        ("", "meshctl.hf.Model", None, "one", "meshctl.hf"),
        ("from meshctl.hf import Model\n", "actor.Actor", None, "one", "meshctl.hf"),
        ("", "meshctl.hf.Model", Checkpoint(), "two", ""),
        ("", "nowhere.Actor", None, "one", ""),
        ("", "nowhere.Actor", Checkpoint(), "one", "torch.distributed.checkpoint"),
        ("import torch.\n", "actor.Actor", None, "one", ""),
    ],
)
def test_what_is_imported(
    code: str, target: str, checkpoint: Checkpoint | None, group: str, expected: str, tmp_path: Path
) -> None:
    """A file that cannot be read is the worker's to complain of."""
    (tmp_path / "actor.py").write_text(code)
    found = named(plan(target, checkpoint), [str(tmp_path)], [group])
    assert expected in found if expected else not found
