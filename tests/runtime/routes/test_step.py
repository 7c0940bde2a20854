"""Steps that differ from an earlier one only in ids are found without decoding, and nothing else is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from meshctl.runtime.batch.batch import Batch
from meshctl.runtime.routes.header import MAX_ID, ProducerHeader, decode, describe, encode
from meshctl.runtime.routes.step import Partitions
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.modes import Dispatch, Route
from meshctl.topology.samples import Grid

COUNTS = (3, 2)


def row(first: int, count: int, name: str = "x") -> bytes:
    batch = Batch({name: torch.ones(count)}, ids=Grid(first, (count,)))
    return encode(describe(batch, Dispatch(), alone=False))


def decoded(table: Sequence[bytes]) -> list[ProducerHeader]:
    headers = [header for each in table if (header := decode(each))]
    assert len(headers) == len(table)
    return headers


def after_two_steps() -> Partitions:
    """Returns the partitions of a route from two producers, which have sent five samples twice."""
    found = Partitions(Route("a -> b", "a", "b"), DeviceMesh.from_sizes(dp_size=2), "all")
    for first in (0, 5):
        table = [row(first, 3), row(first + 3, 2)]
        assert found.known(table) is None
        found.of(decoded(table), table)
    return found


@pytest.mark.parametrize("firsts", [(10, 13), (0, 3), (10, 50), (-7, 0), (5, MAX_ID - 2)])
def test_other_ids_give_the_same_partition_and_headers(firsts: tuple[int, int]) -> None:
    partitions, table = after_two_steps(), [*map(row, firsts, COUNTS)]
    known = partitions.known(table)
    assert known
    headers, partition = known
    assert [header[:2] for header in headers] == [header[:2] for header in decoded(table)]
    assert partition is partitions.of(decoded(table), table)


@pytest.mark.parametrize(
    "table",
    [
        [row(12, 3), row(10, 2)],  # ids that are not in order
        [row(10, 3), row(12, 2)],  # ids that two producers have
        [row(10, 2), row(13, 3)],
        [row(10, 3), row(13, 2, "y")],
        [row(10, 3), b"."],
        [row(10, 3), row(13, 2), b"."],
        [row(10, 3)],
        [row(10, 3), b"F" + row(13, 2)[1:]],
        [row(10, 3), row(13, 2)[:1] + (MAX_ID - 1).to_bytes(8, "little") + row(13, 2)[9:]],
        [row(10, 3), "text"],
        None,
        7,
    ],
)
def test_any_other_table_is_not_known(table: Any) -> None:
    assert after_two_steps().known(table) is None
