"""A pseudo-random order of rows that needs no memory: position -> row in constant time.

It is a Feistel network over the bits of a position, which is a bijection of [0, 4^k). A result beyond the
last row is permuted again until it is a row (cycle walking, Black and Rogaway, 2002). The order depends
only on the size and the words of its seed. It is the same on every machine and with every library version.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import overload

ROUNDS = 6
WORD = (1 << 64) - 1
MULTIPLIERS = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""The two multipliers of the hash function splitmix64."""


class Permutation(Sequence[int]):
    """The numbers 0 to `size` - 1 in a pseudo-random order, which `words` determine as a seed."""

    def __init__(self, size: int, *words: object) -> None:
        self._size = size
        self._half_bits = max(1, ((max(size, 2) - 1).bit_length() + 1) // 2)
        self._mask = (1 << self._half_bits) - 1
        digest = hashlib.blake2b(repr(words).encode(), digest_size=8 * ROUNDS).digest()
        self._keys = [int.from_bytes(digest[8 * n : 8 * n + 8], "big") for n in range(ROUNDS)]

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, position: int) -> int: ...
    @overload
    def __getitem__(self, position: slice) -> list[int]: ...
    def __getitem__(self, position: int | slice) -> int | list[int]:
        if isinstance(position, slice):
            return [self[number] for number in range(*position.indices(self._size))]
        if not 0 <= position < self._size:
            raise IndexError(f"position {position} of {self._size}")
        found = self._permuted(position)
        while found >= self._size:
            found = self._permuted(found)
        return found

    def _permuted(self, number: int) -> int:
        left, right = number >> self._half_bits, number & self._mask
        for key in self._keys:
            left, right = right, left ^ (_mixed(right ^ key) & self._mask)
        return left << self._half_bits | right


def _mixed(number: int) -> int:
    number = ((number ^ number >> 30) * MULTIPLIERS[0]) & WORD
    number = ((number ^ number >> 27) * MULTIPLIERS[1]) & WORD
    return number ^ number >> 31
