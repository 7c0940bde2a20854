"""An all-gather of rows among processes of one node, over their boards.

A rank writes its row to its own board, and reads those of the others from theirs. A rank that misses a row
waits, and the last rank wakes all that wait. No rank ends a call before every rank has begun it, so two
entries are enough: when a rank writes to an entry, all others have read its row of two calls before.

    entry    one word each: number of the call, length of the row in bytes | the row

A row that does not fit travels in a message, as do all rows of a rank whose board is full.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from meshctl.runtime.transports.allgather import send_bytes
from meshctl.runtime.transports.data_plane import DataPlane
from meshctl.runtime.transports.local.boards import WORD_BYTES, Boards, PeerBoard, Words, code_of

ROW_MAX = 1008
"""The largest row, in bytes, of an entry."""
_HEAD_WORDS = 2
_ENTRY_WORDS = _HEAD_WORDS + ROW_MAX // WORD_BYTES
ROWS_WORDS = 2 * _ENTRY_WORDS
"""The words of the rows of one exchange."""
_IN_MESSAGE = -1
"""The length of a row that travels in a message."""


class _Entry(NamedTuple):
    """The entry of one rank."""

    job_rank: int
    words: Words
    data: memoryview
    at: int
    """The first word."""
    begin: int
    """The first byte of the row."""


class RowExchange:
    """The exchange of one tag."""

    def __init__(
        self, data_plane: DataPlane, boards: Boards, job_ranks: Sequence[int], tag: int, place: int
    ) -> None:
        """`place` is the first word of the own rows, which the others know or will receive; 0 if there is no
        such place."""
        self._data_plane, self._boards, self._tag = data_plane, boards, tag
        self._job_ranks, self._me = job_ranks, job_ranks.index(data_plane.job_rank)
        self._others = [other for other in job_ranks if other != data_plane.job_rank]
        own = PeerBoard(boards.words, boards.data, data_plane.bell)
        self._own = _entries_of(data_plane.job_rank, own, place) if place else ()
        self._entries: tuple[list[_Entry], ...] = ([], [])
        """The entries of the others for even and odd calls, once all are known."""
        self._without_entry: list[tuple[int, int]] = []
        """Index and job rank of this rank, and of those whose boards are full."""
        self._waits: list[tuple[Words, int]] = []
        """The boards of the other ranks, whose word 0 states for what each one waits, and their bells."""
        self._code, self._call, self._seen = code_of(-1, tag), 0, 0
        self._missing = self._others[0]
        """The rank that this one waits for."""
        data_plane.reserve(tag, 0)

    def __call__(self, row: bytes) -> list[bytes]:
        """Returns the rows of all ranks, in their order. All of them call it. Raises `PeerLost`."""
        self._call += 1
        self._seen = 0
        self._write(row)
        self._boards.fence()
        was_known = bool(self._waits)
        is_last = self._is_complete()
        if not is_last:
            self._boards.wait(self._code, self._wait)
        if is_last or not was_known:  # the last rank may have had to wait for the places of the others
            self._ring()
        rows = [
            bytes(data[begin : begin + length])
            if (length := words[at + 1]) >= 0
            else self._received(job_rank)
            for job_rank, words, data, at, begin in self._entries[self._call & 1]
        ]
        for index, job_rank in self._without_entry:
            rows.insert(index, row if index == self._me else self._received(job_rank))
        return rows

    def _ring(self) -> None:
        """Wakes the ranks that wait for this rank's row."""
        for words, bell in self._waits:
            if words[0] == self._code:
                os.eventfd_write(bell, 1)

    def _received(self, job_rank: int) -> bytes:
        return self._data_plane.receive_bytes(job_rank, self._tag)

    def _write(self, row: bytes) -> None:
        is_written = False
        if self._own:
            _, words, data, at, begin = self._own[self._call & 1]
            is_written = len(row) <= ROW_MAX
            words[at + 1] = len(row) if is_written else _IN_MESSAGE
            if is_written:
                data[begin : begin + len(row)] = row
            words[at] = self._call
        if not is_written:
            send_bytes(self._data_plane, self._others, self._tag, row)

    def _is_complete(self) -> bool:
        """Returns whether the rows of all others are there, those from `_seen` on."""
        if not self._waits and not self._has_found_all():
            return False
        call, entries = self._call, self._entries[self._call & 1]
        for rank, words, _, at, _ in entries[self._seen :]:
            if words[at] != call:
                self._missing = rank
                if words[at] > call:
                    raise self._data_plane.peer_lost(rank, "wrote a row of another step", self._tag)
                return False
            self._seen += 1
        return True

    def _has_found_all(self) -> bool:
        """Finds the entries of the others. Returns False if one of them has not announced its own yet."""
        boards, places = (
            self._boards,
            [self._boards.row_places.get((rank, self._tag)) for rank in self._others],
        )
        if None in places:
            self._missing = self._others[places.index(None)]
            return False
        peers = [boards.peers[rank] for rank in self._others]
        found = [
            _entries_of(rank, peer, place)
            for rank, peer, place in zip(self._others, peers, places, strict=True)
            if place
        ]
        self._entries = [even for even, _ in found], [odd for _, odd in found]
        with_entry = {even.job_rank for even, _ in found}
        self._without_entry = [
            (index, rank) for index, rank in enumerate(self._job_ranks) if rank not in with_entry
        ]
        self._waits = [(peer.words, peer.bell) for peer in peers]
        return True

    def _wait(self) -> None:
        self._data_plane.wait_unless(self._is_complete, self._missing, self._tag)


def _entries_of(job_rank: int, board: PeerBoard, place: int) -> tuple[_Entry, _Entry]:
    """Returns the entries of a rank for even and odd calls."""
    even, odd = (
        _Entry(job_rank, board.words, board.data, at, (at + _HEAD_WORDS) * WORD_BYTES)
        for at in (place, place + _ENTRY_WORDS)
    )
    return even, odd
