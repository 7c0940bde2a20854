"""Mixtures of data: which part each sample comes from.

    path: {chats.jsonl: 0.7, code.jsonl: 0.3}        0.7 n of the first n samples are chats, less than 1 off

The parts follow each other in a fixed pattern, which repeats. It depends on the shares alone, so the
part of a sample is a function of the sample's number. The pattern is that of Tijdeman (1980,
"The chairman assignment problem").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import inf, lcm
from pathlib import Path

from meshctl.data.errors import DataError

MAX_PERIOD = 10_000
"""The maximum length of a pattern. Other shares are rounded to this denominator."""


def parts_of(path: str | Sequence[str] | Mapping[str, float]) -> tuple[list[list[str]], list[float]]:
    """Returns the paths of each part, and the share of each part. A path and a list of paths are one part.
    Raises `DataError` for an empty list."""
    if not path:
        raise DataError("`path` names no data")
    if isinstance(path, Mapping):
        return [[name] for name in path], list(path.values())
    return [[path] if isinstance(path, str) else list(path)], [1.0]


def part_names(paths: Sequence[Sequence[str]]) -> list[str]:
    """Returns the names of the parts in metrics: the names of their files without suffixes, or the whole
    paths if two are equal."""
    short = [Path(first).name.partition(".")[0] for first, *_ in paths]
    return short if len(set(short)) == len(short) else [first for first, *_ in paths]


class Mixture:
    """The parts of the samples of a mixture."""

    def __init__(self, shares: Sequence[float]) -> None:
        """`shares` has a positive number for each part. Raises `DataError` for other numbers."""
        if not shares or not all(isinstance(one, (int, float)) and 0 < one < inf for one in shares):
            raise DataError(f"the shares of a mixture are positive numbers, not {list(shares)}")
        self._pattern = _pattern(_counts([Fraction(str(one)) for one in shares]))
        seen = [0] * len(shares)
        self._numbers: list[int] = []
        for part in self._pattern:
            self._numbers.append(seen[part])
            seen[part] += 1
        self._counts = seen

    def __getitem__(self, sample: int) -> tuple[int, int]:
        """Returns the part of a sample, and the number of the sample among those of its part."""
        period, position = divmod(sample, len(self._pattern))
        part = self._pattern[position]
        return part, period * self._counts[part] + self._numbers[position]


def _counts(shares: Sequence[Fraction]) -> list[int]:
    """Returns how often each part is in a period."""
    shares = [share / sum(shares) for share in shares]
    period = lcm(*(share.denominator for share in shares))
    if period <= MAX_PERIOD:
        return [int(share * period) for share in shares]
    return [max(1, round(share * MAX_PERIOD)) for share in shares]


def _pattern(counts: Sequence[int]) -> list[int]:
    """Returns the part of each sample of a period, so that each beginning of it has less than one sample more
    or less of a part than its share."""
    period, parts = sum(counts), range(len(counts))
    slack, done = 2 * max(1, len(counts) - 1), [0 for _ in parts]
    pattern = []
    for position in range(period):
        ahead = [counts[one] * (position + 1) - done[one] * period for one in parts]  # in 1 / period samples
        due = [one for one in parts if slack * ahead[one] >= period]
        # The number of samples after which the part must have come, in which Tijdeman's rule takes them.
        chosen = min(due, key=lambda one: Fraction(period * (done[one] + 1) * slack - period, counts[one]))
        done[chosen] += 1
        pattern.append(chosen)
    return pattern
