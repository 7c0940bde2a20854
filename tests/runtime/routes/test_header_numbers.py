"""The numbers of a header: they come back as they were, and other bytes are refused."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from meshctl.runtime.batch.batch import Batch, Ragged
from meshctl.runtime.routes.header import decode, describe, encode
from meshctl.runtime.routes.header_numbers import MAX_SUM, decode_numbers, encode_numbers
from meshctl.runtime.transports.buffers.frames import Frame
from meshctl.topology.modes import Dispatch

LARGEST = st.sampled_from([0, 1, 255, 256, 65535, 65536, (1 << 32) - 1, 1 << 32, 1 << 40])


@given(st.data(), LARGEST, st.integers(1, 3), st.integers(1, 9))
def test_numbers_come_back(data: st.DataObject, largest: int, columns: int, count: int) -> None:
    numbers = st.lists(st.integers(0, largest), min_size=count, max_size=count)
    given = [data.draw(numbers) for _ in range(columns)]
    encoded = encode_numbers([torch.tensor(some) for some in given], count)
    assert encoded is not None
    found = decode_numbers(encoded, columns, count)
    assert found is not None and [each.tolist() for each in found] == given
    assert decode_numbers(encoded[:-1], columns, count) is None
    assert decode_numbers(encoded, columns, count + 1) is None


@given(st.binary(max_size=40), st.integers(1, 3), st.integers(0, 9))
def test_any_bytes_are_numbers_or_none(data: bytes, columns: int, count: int) -> None:
    found = decode_numbers(data, columns, count)
    assert found is None or all(len(each) == count and int(each.min()) >= 0 for each in found)


@pytest.mark.parametrize(
    "column",
    [torch.tensor([1, -1]), torch.tensor([1]), torch.tensor([1, 2]).int(), torch.tensor([[1, 2]])],
    ids=["negative", "another count", "another dtype", "two dims"],
)
def test_other_columns_are_sent_in_another_form(column: torch.Tensor) -> None:
    assert encode_numbers([column], 2) is None


@pytest.mark.parametrize("number", [-1, -(1 << 63), MAX_SUM, (1 << 63) - 1])
def test_numbers_whose_sum_may_be_too_large_are_refused_in_both_forms(number: int) -> None:
    ragged = Ragged(torch.zeros(2), torch.tensor([0, 1, 2]))
    header = describe(Batch({"r": ragged}, ids=torch.arange(2)), Dispatch(), alone=True)
    assert header.schema and decode(encode(header)) is not None
    numbers = torch.tensor([number, 1])
    row = encode(header._replace(numbers=[numbers]))
    assert decode(row) is None
    assert decode(b"F" + Frame([header.schema.encoded, header.ids, [numbers]]).inline()) is None


@given(st.integers(0, 200), st.integers(1, 255), st.integers(0, 200))
def test_a_changed_row_is_a_header_or_none(at: int, change: int, size: int) -> None:
    ragged = Ragged(torch.zeros(6), torch.tensor([0, 1, 6]))
    row = bytearray(encode(describe(Batch({"r": ragged}, ids=torch.arange(2)), Dispatch(), alone=True)))
    row[at % len(row)] ^= change
    for changed in (bytes(row), bytes(row)[: size % len(row)]):
        header = decode(changed)
        assert header is None or (header.schema and len(header.numbers) == header.schema.min_numbers)
