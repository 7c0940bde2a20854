"""Packing: texts of different lengths in rows of at most a given number of tokens.

The rows are filled by best-fit decreasing: each text, the longest first, goes into the row with the least
space that holds it (Ding et al., 2024, arXiv:2404.10830). A text is never cut.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshctl.data.encoders import Example

PACKED = ("position_ids", "segment_ids")
"""The additional columns of packed rows."""


def packed(lengths: Sequence[int], size: int) -> list[list[int]]:
    """Assigns texts to rows of at most `size` tokens. `lengths` has the number of tokens of each text, at
    most `size`. Returns for each row the indices of its texts in `lengths`, in ascending order."""
    rows: list[list[int]] = []
    rows_of_space: list[list[int]] = [[] for _ in range(size + 1)]
    spaces = 0  # bit n is set where a row has the space n
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        length = lengths[index]
        fitting = spaces >> length
        if fitting:
            space = length + (fitting & -fitting).bit_length() - 1
            row = rows_of_space[space].pop()
            if not rows_of_space[space]:
                spaces &= ~(1 << space)
        else:
            space, row = size, len(rows)
            rows.append([])
        rows[row].append(index)
        rows_of_space[space - length].append(row)
        spaces |= 1 << (space - length)
    return [sorted(row) for row in rows]


def joined(examples: Sequence[Example]) -> Example:
    """Returns the examples as one row, one after another.

    `position_ids` has the position of each token in its example, and `segment_ids` has the number of the
    example in the row. Attention in the row is causal inside each segment.
    """
    columns = {name: [token for one in examples for token in one[name]] for name in examples[0]}
    lengths = [len(one["input_ids"]) for one in examples]
    columns["position_ids"] = [position for length in lengths for position in range(length)]
    columns["segment_ids"] = [number for number, length in enumerate(lengths) for _ in range(length)]
    return columns
