"""All implementations of a copy have the result of torch's copy."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from meshctl.runtime.transports.buffers.memcpy import (
    MEMMOVE_MAX,
    PIECE_BYTES,
    copy,
    is_plain,
    move,
    use_memmove,
)
from tests.examples import examples

DTYPES = [torch.uint8, torch.bool, torch.bfloat16, torch.float32, torch.int64, torch.complex64]


@settings(max_examples=examples(50, 200), deadline=None)
@given(
    st.lists(st.integers(0, 4), max_size=3),
    st.sampled_from(DTYPES),
    st.sampled_from(DTYPES[3:5]),
    st.booleans(),
    st.sampled_from(["plain", "turned", "conjugate"]),
)
def test_the_result_is_that_of_copy(
    shape: list[int], dtype: torch.dtype, other: torch.dtype, alike: bool, form: str
) -> None:
    tensor = torch.randint(0, 2, shape).to(dtype)
    if form == "turned":
        tensor = tensor.transpose(0, -1).contiguous().transpose(0, -1) if tensor.ndim else tensor
    elif form == "conjugate" and dtype.is_complex:
        tensor = (tensor * 1j).conj()
    into = torch.full(shape, 1).to(dtype if alike or dtype.is_complex else other)
    expected = into.clone().copy_(tensor)
    copy(into, tensor)
    assert torch.equal(into, expected)


def test_a_tensor_of_another_shape_is_no_copy() -> None:
    with pytest.raises(RuntimeError):
        copy(torch.zeros(4, 2), torch.ones(2, 4))


@pytest.mark.parametrize(("threads", "is_moved"), [(1, True), (2, False)])
def test_what_is_large_is_torchs_where_it_has_threads(threads: int, is_moved: bool) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert use_memmove(MEMMOVE_MAX - 1) and use_memmove(MEMMOVE_MAX) == is_moved
        into, tensor = torch.zeros(MEMMOVE_MAX), torch.randn(MEMMOVE_MAX)
        copy(into, tensor)
        assert torch.equal(into, tensor)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("nbytes", [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 2 * PIECE_BYTES + 7])
def test_all_pieces_of_a_copy_are_moved_and_no_byte_beyond(nbytes: int) -> None:
    source = torch.randint(1, 255, (3 * PIECE_BYTES,), dtype=torch.uint8)
    into = torch.zeros_like(source)
    move(into.data_ptr() + 1, source.data_ptr() + 2, nbytes)
    assert torch.equal(into[1 : nbytes + 1], source[2 : nbytes + 2])
    assert not into[0] and not into[nbytes + 1 :].any()


def test_a_tensor_without_memory_of_its_own_is_not_plain() -> None:
    plain = torch.ones(2, 3)
    odd = [
        plain.to_sparse(),
        torch.nested.nested_tensor([plain, plain[:1]], layout=torch.jagged),
        torch._efficientzerotensor(3),
        torch.empty(3, device="meta"),
    ]
    assert is_plain(plain) and is_plain(torch.empty(0)) and not any(map(is_plain, odd))
