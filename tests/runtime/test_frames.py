from __future__ import annotations

import struct
from contextlib import suppress

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from meshctl.runtime.batch import Batch, Ragged
from meshctl.runtime.frames import FrameError, bytes_of, pack, unpack

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner, inner),
    max_leaves=10,
)


@given(plain)
def test_plain_data_comes_back_as_it_was(value: object) -> None:
    assert unpack(pack(value)) == value


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int16, torch.bfloat16, torch.float64, torch.complex64])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3)])
def test_tensors_of_every_kind(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.ones(shape).to(dtype)
    back = unpack(pack({"t": tensor}))["t"]
    assert back.dtype == dtype and back.shape == tensor.shape and torch.equal(back, tensor)


def test_a_view_sends_its_own_bytes_only_and_need_not_be_contiguous() -> None:
    large = torch.arange(100_000).view(100, 1000)
    assert len(pack(large[3])) < 10_000
    assert torch.equal(unpack(pack(large[:, 7])), large[:, 7])


def test_batches() -> None:
    batch = Batch({"r": Ragged.of([torch.ones(2), torch.ones(0)]), "t": ["a", None]}, ids=torch.tensor([3, 4])).repeat(2)
    back = unpack(pack(batch))
    assert back.ids.tolist() == batch.ids.tolist() and back["t"] == ["a", "a", None, None] and back.group_depth == 1
    assert back["r"].lengths.tolist() == [2, 2, 0, 0]


def test_what_cannot_be_sent_says_so() -> None:
    with pytest.raises(FrameError, match="a set cannot be sent"):
        pack({1, 2})


@given(st.binary(max_size=200))
def test_bytes_that_are_no_frame_are_an_error_and_nothing_else(data: bytes) -> None:
    for text in (data, b"MSH1" + data, struct.pack("<4sI", b"MSH1", len(data)) + data):
        with suppress(FrameError):
            unpack(torch.frombuffer(bytearray(text or b" "), dtype=torch.uint8))


@pytest.mark.parametrize(
    "inner", ['["int64",[9],0]', '["int64",[1],64]', '["int64",[-1],0]', '["int64",[1],1]', '["object",[1],0]', "[[],[1],0]"]
)
def test_offsets_outside_the_frame_are_refused(inner: str) -> None:
    header = f'{{"~t":{inner}}}'.encode()
    text = struct.pack("<4sI", b"MSH1", len(header)) + header
    frame = torch.frombuffer(bytearray(text.ljust(64, b"\0") + bytes(8)), dtype=torch.uint8)
    with pytest.raises(FrameError):
        unpack(frame)


def test_bytes_of() -> None:
    assert bytes_of(torch.tensor([1, 2, 255], dtype=torch.uint8)) == b"\x01\x02\xff"
