"""Digests of tensors."""

from __future__ import annotations

import pytest
import torch

from meshctl.runtime.state.differences import ROW_WORDS, buffer_digest, tensor_digest


@pytest.mark.parametrize("length", [0, 1, 3, 4, 5, 4 * ROW_WORDS - 1, 4 * ROW_WORDS, 12 * ROW_WORDS + 7])
def test_one_changed_byte_changes_the_digest(length: int) -> None:
    data = torch.arange(length).to(torch.uint8)
    digests = {tensor_digest(data)}
    places = sorted({0, length // 2, length - 1}) if length else []
    for place in places:
        changed = data.clone()
        changed[place] += 1
        digests.add(tensor_digest(changed))
    assert len(digests) == 1 + len(places) and tensor_digest(data.clone()) in digests


def test_the_order_of_elements_and_rows_counts() -> None:
    data = torch.arange(3 * ROW_WORDS, dtype=torch.int32)
    rows = data.view(3, ROW_WORDS)
    others = [data.flip(0), rows[[1, 0, 2]].reshape(-1), data.roll(1)]
    assert len({tensor_digest(tensor) for tensor in (data, *others)}) == 4


def test_dtype_and_shape_count() -> None:
    data = torch.zeros(4, dtype=torch.int32)
    tensors = [data, data.view(2, 2), data.view(torch.float32), torch.zeros(16, dtype=torch.uint8)]
    assert len({tensor_digest(tensor) for tensor in tensors}) == 4


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.uint32]
)
def test_layout_in_memory_does_not_count(dtype: torch.dtype) -> None:
    data = torch.arange(12).view(3, 4).to(dtype)
    transposed = data.t().contiguous().t()
    part = torch.cat([torch.zeros(1, dtype=dtype), data.reshape(-1)])[1:].view(3, 4)
    assert tensor_digest(data) == tensor_digest(transposed) == tensor_digest(part)


def test_equal_nans_are_equal_and_other_nans_are_not() -> None:
    bits = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32)
    one, other = bits.view(torch.float32)[:1], bits.view(torch.float32)[1:]
    assert tensor_digest(one) == tensor_digest(one.clone()) != tensor_digest(other)


def test_conjugated_values_count() -> None:
    data = torch.tensor([1 + 2j])
    assert tensor_digest(data.conj()) == tensor_digest(torch.tensor([1 - 2j])) != tensor_digest(data)


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.complex64, torch.uint32])
def test_the_digest_of_a_buffer_depends_on_bytes_dtype_and_shape(dtype: torch.dtype) -> None:
    data = torch.arange(12).view(3, 4).to(dtype)
    changed = data.clone()
    changed.view(torch.uint8)[2, -1] ^= 1
    others = [changed, data.reshape(4, 3), data[:2], data.view(torch.uint8), data[:0]]
    assert len({buffer_digest(each) for each in (data, *others)}) == 6
    assert buffer_digest(data.t().contiguous().t()) == buffer_digest(data.clone())
