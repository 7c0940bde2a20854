"""`run.checks: all`: equal values have equal digests."""

from __future__ import annotations

import torch

from meshctl.runtime.batch.batch import Batch, Ragged
from meshctl.runtime.checks.digests import digest_of


def test_the_digest_of_a_list_of_batches_depends_on_their_columns_alone() -> None:
    """Its frame has gaps between the columns, which may hold any bytes."""
    columns = {"x": torch.tensor([3, 2, 1]), "rows": Ragged.of([torch.full((n,), n) for n in (3, 2, 1)])}
    batches = [Batch(columns, ids=torch.tensor([3, 2, 1]))]
    digests = set()
    for number in range(50):
        torch.full((1000,), number).sum()  # other bytes in memory that is used again
        digests.add(digest_of(batches))
    assert len(digests) == 1
    assert digest_of([Batch({**columns, "x": torch.tensor([3, 2, 0])})]) not in digests
