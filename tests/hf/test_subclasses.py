"""The subclasses of `docs/models.md` train, and equally in all layouts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from meshctl.hf import Model
from tests.hf import parity
from tests.paths import ROOT
from tests.runtime import worlds


def documented() -> dict[str, type[Model]]:
    found: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", (ROOT / "docs/models.md").read_text(), re.DOTALL):
        exec(compile(block, "models.md", "exec"), found)
    return {
        name: kind
        for name, kind in found.items()
        if isinstance(kind, type) and issubclass(kind, Model) and kind is not Model
    }


CLASSES = documented()
LAYOUTS = ({"fsdp": 2}, {"tp": 2})


def trained(kind: type[Model], sizes: dict[str, int]) -> list[float]:
    one = kind(parity.MODELS["qwen3"], dtype="float64", lr=1e-2, micro_batch=2)
    one.use_mesh(parity.mesh(sizes))
    one.setup()
    found = []
    for step in range(1, 3):
        metrics = one.update(parity.share_of(one, step, False))
        found += [metrics["loss"], metrics["grad_norm"]]
    return found


@pytest.mark.slow_suite
def test_on_all_layouts(tmp_path: Path) -> None:
    alone = {name: trained(kind, {}) for name, kind in CLASSES.items()}

    def subclasses_train_equally(rank: int) -> None:
        for name, kind in CLASSES.items():
            for sizes in LAYOUTS:
                assert trained(kind, sizes) == parity.approx(alone[name], 1e-8), (name, sizes)

    assert {*worlds.run(2, [subclasses_train_equally], tmp_path).values()} == {worlds.PASSED}


def test_each_differs_from_the_model_as_it_is() -> None:
    assert set(CLASSES) == {"Focal", "SoftCapped", "LastLayer"}
    plain = trained(Model, {})
    for name, kind in CLASSES.items():
        assert trained(kind, {})[:2] != pytest.approx(plain[:2], rel=1e-9), name


def test_only_the_last_layer_is_trained() -> None:
    one = CLASSES["LastLayer"](parity.MODELS["qwen3"], dtype="float64", lr=1e-2)
    before = {name: tensor.clone() for name, tensor in one.weights()}
    one.update(parity.batch_of(1, False))
    changed = {name for name, tensor in one.weights() if not torch.equal(tensor, before[name])}
    assert changed and all(name.startswith("model.layers.1.") for name in changed)
