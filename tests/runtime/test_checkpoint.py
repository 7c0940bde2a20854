"""Checkpoints of one process, without a process group."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest
import torch

from meshctl.runtime.checkpoint import CheckpointError, load, save


def of_module(module: str, folder: Path) -> Path:
    """Saves a state as by a Python version whose `PosixPath` is defined in `module`."""
    save(folder, "actor", {"weight": torch.arange(3.0)})
    path = folder / "actor" / ".metadata"
    plain = pickle.dumps(pickle.loads(path.read_bytes()), protocol=2)  # with names in the clear
    changed, count = re.subn(rb"cpathlib(\._local)?\nPosixPath\n", f"c{module}\nPosixPath\n".encode(), plain)
    assert count == 1
    path.write_bytes(changed)
    return folder


@pytest.mark.parametrize("module", ["pathlib", "pathlib._local"])
def test_a_checkpoint_of_another_python_version_is_loaded(module: str, tmp_path: Path) -> None:
    """Python 3.13 pickles paths as `pathlib._local.PosixPath`, all others as `pathlib.PosixPath`."""
    state = {"weight": torch.zeros(3)}
    load(of_module(module, tmp_path), "actor", state)
    assert state["weight"].tolist() == [0.0, 1.0, 2.0]


def test_metadata_with_another_class_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"it names os\.PosixPath, which is none of DCP's classes"):
        load(of_module("os", tmp_path), "actor", {"weight": torch.zeros(3)})
