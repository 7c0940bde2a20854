"""Digests of tensors."""

from __future__ import annotations

import pytest
import torch

from meshctl.runtime.state.differences import ROW_WORDS, DigestOf, buffer_digest, tensor_digest

both = pytest.mark.parametrize("digest", [tensor_digest, buffer_digest])


@both
@pytest.mark.parametrize("length", [0, 1, 3, 4, 5, 4 * ROW_WORDS - 1, 4 * ROW_WORDS, 12 * ROW_WORDS + 7])
def test_one_changed_byte_changes_the_digest(digest: DigestOf, length: int) -> None:
    data = torch.arange(length).to(torch.uint8)
    digests = {digest(data)}
    places = sorted({0, length // 2, length - 1}) if length else []
    for place in places:
        changed = data.clone()
        changed[place] += 1
        digests.add(digest(changed))
    assert len(digests) == 1 + len(places) and digest(data.clone()) in digests


@both
def test_the_order_of_elements_and_rows_counts(digest: DigestOf) -> None:
    data = torch.arange(3 * ROW_WORDS, dtype=torch.int32)
    rows = data.view(3, ROW_WORDS)
    others = [data.flip(0), rows[[1, 0, 2]].reshape(-1), data.roll(1)]
    assert len({digest(tensor) for tensor in (data, *others)}) == 4


@both
def test_dtype_and_shape_count(digest: DigestOf) -> None:
    data = torch.zeros(4, dtype=torch.int32)
    tensors = [data, data.view(2, 2), data.view(torch.float32), torch.zeros(16, dtype=torch.uint8)]
    assert len({digest(tensor) for tensor in tensors}) == 4


@both
@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.uint32]
)
def test_layout_in_memory_does_not_count(digest: DigestOf, dtype: torch.dtype) -> None:
    data = torch.arange(12).view(3, 4).to(dtype)
    transposed = data.t().contiguous().t()
    part = torch.cat([torch.zeros(1, dtype=dtype), data.reshape(-1)])[1:].view(3, 4)
    assert digest(data) == digest(transposed) == digest(part)


@both
def test_equal_nans_are_equal_and_other_nans_are_not(digest: DigestOf) -> None:
    bits = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32)
    one, other = bits.view(torch.float32)[:1], bits.view(torch.float32)[1:]
    assert digest(one) == digest(one.clone()) != digest(other)


@both
def test_conjugated_values_count(digest: DigestOf) -> None:
    data = torch.tensor([1 + 2j])
    assert digest(data.conj()) == digest(torch.tensor([1 - 2j])) != digest(data)
