"""Boards: memory that one process of a node writes and its peers read.

A process writes to its board what a peer needs sooner or later, and mostly before the peer asks for it: the
slots that it has returned, and its rows of an exchange (`row_exchange`). Only a peer that waits for them is
woken. So they cost neither a message nor a system call while nobody waits.

    word 0      what the process waits for (`code_of`); 0 if for nothing
    counter     one word: the slots that it has returned to one peer in one tag
    rows        two entries of one exchange

The writer stores its word, and then reads what the peer waits for. The peer stores what it waits for, and
then reads the word again. A fence between the two makes sure that one of them sees the store of the other.
This also needs a processor that shows stores to others in their order; elsewhere everything is a message.
"""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from meshctl.runtime.transports.buffers.arena import ArenaError, Mapped, Sealed
from meshctl.runtime.transports.errors import ProtocolError

HAS_ORDERED_STORES = platform.machine() in ("x86_64", "AMD64")
BOARD_BYTES = 1 << 16
WORD_BYTES = 8
_EVENTFD = "anon_inode:[eventfd]"
Words = memoryview
"""A board as signed words of 8 bytes, each of which is stored and read at once."""


class PeerBoard(NamedTuple):
    """The board of a peer."""

    words: Words
    data: memoryview
    """The same memory as bytes."""
    bell: int
    """The eventfd that wakes the peer."""


class Counter(NamedTuple):
    """A counter of slots on the own board, and where the peer that they are returned to waits for them."""

    place: int
    waits: Words
    code: int
    bell: int


def code_of(job_rank: int, tag: int) -> int:
    """Returns the word of a process that waits for a slot of a tag from a peer. The job rank is -1 for a wait
    for the rows of an exchange."""
    return (job_rank + 1) << 32 | tag + 1


class Boards:
    """The board of this process, and those of its peers on the node. Only the program's thread calls it."""

    def __init__(self, job_rank: int, bell: int) -> None:
        """`bell` is the eventfd that wakes this process."""
        self.job_rank, self._bell = job_rank, bell
        self.peers: dict[int, PeerBoard] = {}
        self.row_places: dict[tuple[int, int], int] = {}
        """(Job rank, tag) -> the first word of the peer's rows; 0 if they come in messages."""
        self._memory = Sealed(BOARD_BYTES)
        self.data = _bytes_of(self._memory)
        self.words: Words = self.data.cast("q")
        self._used = 1
        self._free: list[int] = []
        """Counters that no peer reads any more."""
        self._counters: dict[tuple[int, int], Counter] = {}
        self._returned: dict[tuple[int, int], list[int]] = {}
        """(Job rank, tag) -> the word of a peer's counter, and the slots that were seen there."""
        self._fence = threading.Lock()

    @property
    def files(self) -> list[int]:
        """The files that a peer needs to read this board and to wake this process."""
        return [self._memory.file, self._bell]

    def take(self, count: int) -> int:
        """Returns the first of `count` unused words; 0 if there are not as many."""
        place, after = self._used, self._used + count
        if after > BOARD_BYTES // WORD_BYTES:
            return 0
        self._used = after
        return place

    def fence(self) -> None:
        """Makes the stores of this process visible before it reads what others have stored."""
        with self._fence:
            pass

    def wait(self, code: int, wait: Callable[[], object]) -> None:
        """Calls `wait` while the board shows what this process waits for."""
        self.words[0] = code
        self.fence()
        try:
            wait()
        finally:
            self.words[0] = 0

    # Peers

    def add(self, peer: int, size: int, files: Sequence[int]) -> None:
        """Maps the board of a peer; `files` are its memory and its bell. Raises `ProtocolError` and
        `ArenaError`."""
        if size != BOARD_BYTES or len(files) != 2:
            raise ProtocolError("a board that is none")
        if peer in self.peers:  # it comes on both connections
            return
        memory, bell = files
        if os.readlink(f"/proc/self/fd/{bell}") != _EVENTFD:
            raise ProtocolError("a bell that is none")
        data = _bytes_of(Mapped(memory, size, write=False))
        try:
            self.peers[peer] = PeerBoard(data.cast("q"), data, os.dup(bell))
        except OSError as error:
            raise ArenaError(f"a bell: {error.strerror}") from None

    def add_rows(self, peer: int, tag: int, place: int, words: int) -> None:
        """Records the place of a peer's rows, which are so many words. Raises `ProtocolError`."""
        if peer not in self.peers or not 0 <= place <= BOARD_BYTES // WORD_BYTES - words:
            raise ProtocolError(f"rows at word {place} of a board")
        self.row_places[peer, tag] = place

    def forget(self, job_ranks: Collection[int]) -> None:
        """Forgets the boards of peers whose processes have been replaced."""
        for peer in self.peers.keys() & set(job_ranks):
            os.close(self.peers.pop(peer).bell)
        for key in [key for key in self._counters if key[0] in job_ranks]:
            self._free.append(self._counters.pop(key).place)
        for key in [key for key in self._returned if key[0] in job_ranks]:
            del self._returned[key]
        for key in [key for key in self.row_places if key[0] in job_ranks]:
            del self.row_places[key]

    def close(self) -> None:
        self.forget([*self.peers])
        self._memory.close()

    # Slots

    def credit(self, to: int, tag: int) -> bool:
        """Counts a slot that this process returns. Returns False if no counter is announced yet."""
        counter = self._counters.get((to, tag))
        if counter is None:
            return False
        place, waits, code, bell = counter
        self.words[place] += 1
        self.fence()
        if waits[0] == code:
            os.eventfd_write(bell, 1)
        return True

    def new_counter(self, to: int, tag: int) -> int:
        """Returns the word of a new counter, to be announced; 0 if there is none."""
        peer = self.peers.get(to)
        place = (self._free.pop() if self._free else self.take(1)) if peer else 0
        if peer and place:
            self.words[place] = 0
            self._counters[to, tag] = Counter(place, peer.words, code_of(self.job_rank, tag), peer.bell)
        return place

    def add_counter(self, peer: int, tag: int, place: int) -> None:
        """Records the word in which a peer counts the slots that it returns. Raises `ProtocolError`."""
        if peer not in self.peers or not 0 < place < BOARD_BYTES // WORD_BYTES:
            raise ProtocolError(f"a counter at word {place} of a board")
        self._returned[peer, tag] = [place, 0]

    def returned(self, peer: int, tag: int) -> int:
        """Returns how many slots a peer has returned since the last call."""
        found = self._returned.get((peer, tag))
        if found is None:
            return 0
        place, seen = found
        found[1] = self.peers[peer].words[place]
        return found[1] - seen


def _bytes_of(memory: Mapped) -> memoryview:
    return memory.view(0, BOARD_BYTES).numpy().data
