"""The values that a producer keeps for the end of a run."""

from __future__ import annotations

import torch

from meshctl.runtime.batch.batch import Batch
from meshctl.runtime.routes.joins import KeptValues


def test_the_last_values_are_kept_as_copies() -> None:
    kept, column = KeptValues(), torch.zeros(2)
    for step in (1, 2, 3):
        column.fill_(step)
        kept.add(step, {"batch": Batch({"x": column}), "all": [column, step]}, float(step))
    value, weight = kept.at(2)
    assert weight == 2.0 and value["all"][1] == 2
    assert value["batch"]["x"].tolist() == value["all"][0].tolist() == [2.0, 2.0]
