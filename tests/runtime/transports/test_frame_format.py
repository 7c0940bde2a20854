"""Values are read back unchanged, an invalid frame is an error, and no view extends beyond the frame."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import msgpack
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from meshctl.runtime.batch.batch import Batch, Ragged
from meshctl.runtime.transports.buffers.frames import (
    ALIGN,
    MAGIC,
    Frame,
    FrameError,
    pack,
    tensor_of,
    unpack,
)
from tests.examples import examples

HUGE = [2**31, 2**32 - 1, 2**53, 2**62, 2**63 - 1]
numbers = st.integers(0, 13) | st.sampled_from([-1, 16, 64, 128, 255, 4096, -(2**62), *HUGE])
words = st.none() | st.booleans() | numbers | st.floats() | st.text(max_size=4) | st.binary(max_size=8)


def ext(kind: int, inner: Any) -> msgpack.ExtType:
    return msgpack.ExtType(kind, msgpack.packb(inner, strict_types=True))


shapes = st.lists(st.integers(0, 3)) | st.lists(numbers | words, max_size=4)
tensors = st.builds(
    lambda *entry: ext(1, [*entry[:2], *entry[2]]),
    st.integers(0, 11) | numbers,
    st.sampled_from([0, 64]) | numbers,
    shapes,
)
raggeds = st.builds(lambda *parts: ext(2, list(parts)), tensors | words, tensors | words)
longs = st.builds(msgpack.ExtType, st.just(5), st.binary(max_size=12))
others = st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=12))
columns = st.dictionaries(
    st.text(max_size=2) | st.integers(0, 3),
    tensors | raggeds | st.lists(words, max_size=3) | words,
    max_size=3,
)
batches = st.builds(
    lambda parts: ext(3, parts), st.tuples(columns, tensors | words, words, words).map(list) | st.lists(words)
)
values = st.recursive(
    words | tensors | raggeds | longs | others | batches,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.builds(lambda kind, value: ext(kind, value), st.integers(1, 6), inner)
    ),
    max_leaves=6,
)
headers = values.map(lambda value: msgpack.packb(value, strict_types=True)) | st.binary(max_size=60)


def framed(header: bytes, size: int | None = None, room: int = 256) -> Tensor:
    """Returns a frame, uint8 `[n]`, with this header and space for tensors after it. `size` is the length of
    the header that the frame states."""
    text = struct.pack("<4sI", MAGIC, len(header) if size is None else size) + header
    text += bytes(-len(text) % ALIGN) + bytes(range(256)) * (room // 256)
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def real() -> Tensor:
    """Returns a valid frame with all kinds of values."""
    ragged = Ragged.of([torch.arange(3), torch.arange(0), torch.arange(5)])
    columns = {"r": ragged, "x": torch.ones(3, 2, dtype=torch.bfloat16), "t": ["a", None, 3]}
    batch = Batch(columns, ids=torch.arange(6).view(3, 2), group_depth=1)
    rows = [{"kind": "batch", "ids": [0, 3]}, (1, 2.5)]
    return tensor_of(pack({"rows": rows, "part": batch, "long": 2**70, "scalar": torch.tensor(3)}))


@st.composite
def turned(draw: st.DrawFn) -> Tensor:
    """Returns a valid frame that was cut, or in which some bits were flipped, most of them in its header."""
    frame = real().clone()
    for at in draw(st.lists(st.integers(0, 200) | st.integers(0, len(frame) - 1), min_size=1, max_size=4)):
        frame[at] ^= 1 << draw(st.integers(0, 7))
    return frame[: draw(st.just(len(frame)) | st.integers(0, len(frame)))]


frames = (
    turned()
    | st.builds(framed, headers)
    | st.builds(framed, headers, st.sampled_from([0, 1, 5, 1000, 2**32 - 1]))
)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yields all tensors in a value."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Ragged):
        yield from (value.values, value.offsets)
    elif isinstance(value, Batch):
        yield from tensors_in([*value.columns.values()])
    elif isinstance(value, Mapping):
        yield from tensors_in([*value.values()])
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from tensors_in(one)


def inside(value: Any, frame: Tensor) -> bool:
    """Whether the memory of all tensors of a value is inside the frame."""
    first, last = frame.data_ptr(), frame.data_ptr() + len(frame)
    return all(
        not tensor.nbytes or first <= tensor.data_ptr() <= tensor.data_ptr() + tensor.nbytes <= last
        for tensor in tensors_in(value)
    )


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner, inner)
    ),
    max_leaves=10,
)


@given(plain)
def test_plain_data_comes_back_as_it_was(value: object) -> None:
    assert unpack(pack(value)) == value


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int16, torch.bfloat16, torch.float64, torch.complex64]
)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3)])
def test_tensors_of_every_kind(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.ones(shape).to(dtype)
    back = unpack(pack({"t": tensor}))["t"]
    assert back.dtype == dtype and back.shape == tensor.shape and torch.equal(back, tensor)


def test_batches() -> None:
    batch = Batch(
        {"r": Ragged.of([torch.ones(2), torch.ones(0)]), "t": ["a", None]}, ids=torch.tensor([3, 4])
    ).repeat(2)
    back = unpack(pack(batch))
    assert (
        back.ids.tolist() == batch.ids.tolist()
        and back["t"] == ["a", "a", None, None]
        and back.group_depth == 1
    )
    assert back["r"].lengths.tolist() == [2, 2, 0, 0]


def test_what_cannot_be_sent_is_reported() -> None:
    with pytest.raises(FrameError, match="a value of the type set cannot be sent"):
        pack({1, 2})


def test_a_row_of_a_gradient_and_a_class_of_the_users_are_plain_when_they_come() -> None:
    class Name(str):
        pass

    back = unpack(pack([torch.ones(2, requires_grad=True), Name("x")]))
    assert not back[0].requires_grad and type(back[1]) is str


def test_room_is_left_as_it_is_and_can_be_filled() -> None:
    frame = Frame({"a": torch.empty(3, device="meta"), "b": torch.ones(2)})
    memory = frame.write(torch.full((frame.nbytes,), 7, dtype=torch.uint8))
    unpack(memory)["a"].fill_(5)
    assert unpack(memory)["a"].tolist() == [5, 5, 5] and unpack(memory)["b"].tolist() == [1, 1]


def test_a_frame_as_bytes_or_in_pieces_is_the_same_frame() -> None:
    value = [real(), torch.arange(6, dtype=torch.int16), torch.tensor(True), torch.empty(0), torch.ones(5, 3)]
    frame = Frame(value)
    joined = b"".join(frame.pieces())
    assert frame.is_plain and joined == pack(value) and not Frame(torch.ones(5, 3).t()).is_plain
    odd = [torch.arange(6).view(2, 3).T, torch.ones(3, 2)[:, 1], torch.tensor(1 + 2j).conj()]
    for one, sent in zip(unpack(pack(value + odd)), value + odd, strict=True):
        assert torch.equal(one, sent)


def test_columns_that_share_their_offsets_share_them_when_they_come() -> None:
    ragged = Ragged.of([torch.ones(2), torch.ones(1)])
    batch = unpack(pack(Batch({"a": ragged, "b": Ragged(ragged.values.int(), ragged.offsets), "c": ragged})))
    assert batch["a"].offsets is batch["b"].offsets and batch["a"].values is batch["c"].values
    assert batch["b"].values.dtype == torch.int32


# Hostile frames


@settings(max_examples=examples(200, 1500))
@given(frames)
def test_bytes_that_are_no_frame_are_an_error_and_nothing_lies_outside(frame: torch.Tensor) -> None:
    with suppress(FrameError):
        value = unpack(frame)
        assert inside(value, frame)
        for tensor in tensors_in(value):
            tensor.sum() if tensor.dtype is not torch.bool else tensor.any()


@pytest.mark.parametrize(
    "entry",
    [
        [9, 0, 1000], [9, 64 * 10**6, 1], [9, -64, 1], [9, 1, 1], [9, 0, -1], [9, 0, -1, -1], [12, 0, 1], [-1, 0, 1], ["float32", 0, 1],
        [9, 0, 2**62, 2**62], [9, 0, 0, 2**62, 2**62], [9, 0, 0, 2**63 - 1], [9, 2**63 - 1, 1], [9, 0, 2**62], [9, 0, 2**61, 8],
        [9, 0.0, 1], [True, 0, 1], [9, 0, True], [], [9], [9, 0, *[1] * 65], [9, 0, None], {"a": 1}, None, 3,
        [9, 0, msgpack.ExtType(5, b"\x7f" * 100_000)],
    ],
    ids=lambda entry: repr(entry)[:40],
)  # fmt: skip
def test_a_tensor_that_does_not_lie_in_the_frame_is_refused(entry: Any) -> None:
    with pytest.raises(FrameError) as caught:
        unpack(framed(msgpack.packb(ext(1, entry))))
    assert len(str(caught.value)) < 300


def nested(depth: int) -> bytes:
    data = msgpack.packb(None)
    for _ in range(depth):
        data = msgpack.packb(msgpack.ExtType(4, b"\x91" + data))
    return data


@pytest.mark.parametrize(
    "header",
    [
        b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x01",
        b"\x91" * 100_000, b"\x81\x00" * 100_000, b"\x81\x90\x00", b"\xc1", b"", b"\xd6\xff", nested(101), nested(3000),
    ],
    ids=lambda header: f"{header[:6].hex()}-{len(header)}",
)  # fmt: skip
def test_counts_and_depths_beyond_reason_take_neither_memory_nor_time(header: bytes) -> None:
    frame = framed(header)
    tracemalloc.start()
    try:
        with pytest.raises(FrameError):
            unpack(frame)
        assert tracemalloc.get_traced_memory()[1] < 200 * len(header) + (1 << 20)
    finally:
        tracemalloc.stop()


def test_what_is_nested_too_deep_is_refused_by_who_sends_it() -> None:
    value: Any = ()
    for _ in range(200):
        value = (value,)
    circle: list[Any] = []
    circle.append(circle)
    for each in (value, circle):
        with pytest.raises(FrameError, match="cannot be sent"):
            pack(each)


def test_an_out_of_band_tensor_is_found_again():
    near, far = torch.arange(6, dtype=torch.int64).view(2, 3), torch.randn(4)
    frame = Frame(Batch({"near": near[:, :1], "far": far[:2]}), lambda tensor: tensor.dtype == torch.float32)
    assert [tensor.tolist() for tensor in frame.out_of_band] == [far[:2].tolist()]
    whole = frame.write(torch.empty(frame.nbytes, dtype=torch.uint8))
    found = unpack(whole, [far[:2].view(torch.uint8)])
    assert torch.equal(found["near"], near[:, :1]) and torch.equal(found["far"], far[:2])


@pytest.mark.parametrize(
    "came", [(), (torch.zeros(15, dtype=torch.uint8),), (torch.zeros(17, dtype=torch.uint8),)]
)
def test_out_of_band_tensors_match_the_header_of_their_frame(came):
    frame = Frame(torch.zeros(4), lambda tensor: True)
    with pytest.raises(FrameError, match="16 bytes beside the frame"):
        unpack(frame.write(torch.empty(frame.nbytes, dtype=torch.uint8)), came)
