"""Even splits: 0 .. total - 1 as contiguous parts whose sizes differ by at most one."""

from __future__ import annotations


def even_split(total: int, parts: int, part: int) -> range:
    """Returns the elements of one part. The first `total mod parts` parts have one element more."""
    each, more = divmod(total, parts)
    start = part * each + min(part, more)
    return range(start, start + each + (part < more))


def split_index(total: int, parts: int, index: int) -> int:
    """Returns the part that holds the element `index`."""
    each, more = divmod(total, parts)
    if index < more * (each + 1):
        return index // (each + 1)
    return more + (index - more * (each + 1)) // each
