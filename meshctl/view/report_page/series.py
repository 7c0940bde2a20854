"""The values of one metric over the steps of a run of any length, in bounded memory.

series = Series()
series.add(1, 0.5); series.add(2, None)
series.points                # (step, value) of at most `2 * MAX_PIECES` values and gaps

Neighbouring steps share a piece, of which the least and the greatest value are kept with their steps, so that
a spike survives.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

MAX_PIECES = 300
"""Maximum number of pieces after thinning. Up to twice as many are kept while values are added."""
Point = tuple[float, float | None]
"""(step, value); the value is None where it was not finite."""


@dataclass(slots=True)
class _Piece:
    number: int
    low: tuple[float, float]
    """The step of the least value, and the value."""
    high: tuple[float, float]
    has_gap: bool = False
    """True if a value that was not finite follows."""

    def merge(self, other: _Piece) -> None:
        if not self.low[1] <= other.low[1]:
            self.low = other.low
        if not self.high[1] >= other.high[1]:
            self.high = other.high
        self.has_gap = self.has_gap or other.has_gap


@dataclass
class Series:
    most: int = MAX_PIECES
    first: Point | None = None
    last: Point | None = None
    low: Point | None = None
    high: Point | None = None
    """The points with the least and the greatest value."""
    count: int = 0
    gaps: list[float] = field(default_factory=list)
    """The first steps whose value was not finite."""
    _width: int = 1
    """Number of steps of a piece."""
    _pieces: list[_Piece] = field(default_factory=list)

    def add(self, step: float, value: float | None) -> None:
        self.count += 1
        if value is None or not math.isfinite(value):
            if len(self.gaps) < self.most:
                self.gaps.append(step)
            if self._pieces:
                self._pieces[-1].has_gap = True
            return
        point = (step, value)
        if self.low is None or self.high is None:
            self.first = self.low = self.high = point
        elif value < (self.low[1] or 0.0):
            self.low = point
        elif value > (self.high[1] or 0.0):
            self.high = point
        self.last = point
        number = int(step // self._width)
        pieces = self._pieces
        if not pieces or pieces[-1].number != number or (pieces[-1].has_gap and self._width == 1):
            pieces.append(_Piece(number, point, point))
            if len(pieces) > 2 * self.most:
                self._thin()
            return
        piece = pieces[-1]
        if value < piece.low[1]:
            piece.low = point
        elif value > piece.high[1]:
            piece.high = point

    def _thin(self) -> None:
        """Makes pieces wider until there are few enough."""
        while len(self._pieces) > self.most:
            self._width *= 2
            kept: list[_Piece] = []
            for piece in self._pieces:
                piece.number //= 2
                if kept and kept[-1].number == piece.number:
                    kept[-1].merge(piece)
                else:
                    kept.append(piece)
            self._pieces = kept

    @property
    def is_thinned(self) -> bool:
        return self._width > 1

    @property
    def points(self) -> list[Point]:
        """The values that are kept, by step, with the first and the last one. A value of None is a gap."""
        if self.first is None or self.last is None:
            return []
        found: list[Point] = [self.first]
        for piece in self._pieces:
            for point in sorted({piece.low, piece.high}):
                if point != found[-1] and point != self.last:
                    found.append(point)
            if piece.has_gap:
                found.append((found[-1][0], None))
        if found[-1] != self.last:
            found.append(self.last)
        return found
