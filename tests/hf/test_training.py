"""Sums of losses over micro-batches and ranks."""

from __future__ import annotations

import pytest
import torch

from meshctl.hf.training import Sums
from meshctl.losses import LossSum
from meshctl.runtime.collectives.collective import Collective


def test_sums_and_means_are_those_of_all_micro_batches() -> None:
    sums = Sums()
    sums.add(LossSum(torch.tensor([1.5], requires_grad=True), torch.tensor(2), {"a": torch.tensor(True)}))
    sums.add(LossSum(torch.tensor(0.1), torch.tensor(1.0), {"b": torch.tensor(6.0).bfloat16()}))
    means, units, further = sums.over_ranks(Collective(), 1, torch.tensor(3.0))
    assert units == 3.0 and further == [3.0]
    assert means == pytest.approx({"loss": 1.6 / 3, "a": 1 / 3, "b": 2.0})


def test_adding_a_micro_batch_reads_no_number() -> None:
    """A tensor on the device `meta` has no number, so reading it raises an error."""
    number = torch.zeros((), device="meta")
    Sums().add(LossSum(number.clone().requires_grad_(), number, {"accuracy": number}))
