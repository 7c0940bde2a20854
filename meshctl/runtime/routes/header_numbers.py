"""The numbers of a header as bytes: lengths, token counts and homes, one column of numbers after another.

    bytes of a number, 1, 2, 4 or 8 | numbers of the first column | numbers of the second | ...

Numbers are mostly small, so all are written with the bytes that the largest one needs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy
import torch
from torch import Tensor

MAX_SUM = 1 << 48
"""The largest sum of one column, as an upper bound: the largest number, times the count."""
_DTYPES = {1: "<u1", 2: "<u2", 4: "<u4", 8: "<i8"}


def encode_numbers(columns: Sequence[Tensor], count: int) -> bytes | None:
    """Returns columns of numbers, int64 `[count]` each, as bytes; None where the columns have another form or
    a number is negative."""
    for column in columns:
        if not count or column.dtype is not torch.int64 or not column.is_cpu or column.shape != (count,):
            return None
    arrays = [column.numpy() for column in columns]
    numbers = arrays[0] if len(arrays) == 1 else numpy.concatenate(arrays)
    largest = int(numbers.view(numpy.uint64).max())  # a negative one is the largest
    if largest >= 1 << 63:
        return None
    width = 1
    while largest >> 8 * width:
        width *= 2
    return bytes([width]) + numbers.astype(_DTYPES[width]).tobytes()


def decode_numbers(data: bytes, columns: int, count: int) -> list[Tensor] | None:
    """Returns the columns of numbers in `data`, int64 `[count]` each, or None if the bytes are anything
    else."""
    dtype = _DTYPES.get(data[0]) if data else None
    if dtype is None or not count or len(data) != 1 + data[0] * columns * count:
        return None
    numbers = numpy.frombuffer(data, dtype, offset=1).astype(numpy.int64)
    if dtype == _DTYPES[8] and (numbers.min() < 0 or int(numbers.max()) * count > MAX_SUM):
        return None
    whole = torch.from_numpy(numbers)
    return [whole] if columns == 1 else [*whole.view(columns, count).unbind()]
