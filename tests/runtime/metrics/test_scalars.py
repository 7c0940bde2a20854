"""The numbers in a stage's value become metrics, and no value that can be sent is an error there."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from meshctl.runtime.metrics.stage_metrics import scalars


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (None, {}), (True, {"value": 1.0}), ("x", {}), ([1], {}), (2**2000, {}), (torch.ones(1, 1), {"value": 1.0}),
        (torch.ones(2), {}), (torch.tensor(1j), {}), ({"a": {"b": 2, 3: 4.5}, "n": -(2**2000)}, {"a/b": 2.0, "a/3": 4.5}),
    ],
    ids=repr,
)  # fmt: skip
def test_numbers_by_name(value: Any, found: dict[str, float]) -> None:
    assert scalars(value) == found
