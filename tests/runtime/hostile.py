"""Invalid frames that a peer may send: headers generated from parts of the format, and real frames with
flipped bits."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any

import msgpack
import torch
from hypothesis import strategies as st
from torch import Tensor

from meshctl.runtime.batch.batch import Batch, Ragged
from meshctl.runtime.transports.buffers.frames import ALIGN, MAGIC, pack

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
    return pack(
        {
            "rows": [{"kind": "batch", "ids": [0, 3]}, (1, 2.5)],
            "part": batch,
            "long": 2**70,
            "scalar": torch.tensor(3),
        }
    )


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
        yield from tensors_in([*value.columns.values(), value.ids])
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
