"""Headers and rows that the writers of one tag publish, call by call, to readers on their node.

A writer puts its header, and mostly all of its rows, into memory that its readers map. It waits neither for
them nor for the other writers, unless a reader is as many calls behind as there are slots. A reader waits
for one writer after another, first for the one that came last in the call before, so it mostly sleeps once.

    memory of a process    the number of calls that it has published, or as a reader has read | entries
    entry                  one word each: bytes of the header, bytes of the rows | header | rows

The numbers of calls are stored as `boards` describes, which also wake those that wait for them. A process
announces its memory in a message after its first call. A writer whose entries are too small makes larger
memory, which holds the calls from then on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

from meshctl.runtime.transports.buffers.arena import ArenaError, Mapped, Sealed
from meshctl.runtime.transports.data_plane import DataPlane
from meshctl.runtime.transports.errors import PeerLost, ProtocolError
from meshctl.runtime.transports.local.boards import WORD_BYTES, Boards, Words, code_of
from meshctl.runtime.transports.local.messages import Message
from meshctl.runtime.transports.transport import NO_ROWS

ALIGNMENT = 64
"""Headers and rows begin at multiples of so many bytes."""
_HEAD_BYTES, _MIN_ENTRY_BYTES = 2 * WORD_BYTES, 1 << 14


Announce = Callable[[int, int, tuple[int, int, int], int], None]
"""Sends a peer: the tag, the number of the first call in the memory, the sizes of the memory and of an entry,
and the file."""


class PublishedMemory:
    """The memory in which one process publishes the calls from `first` on, and the views of it."""

    def __init__(self, memory: Mapped, entry_bytes: int, first: int) -> None:
        """`entry_bytes` is 0 for a process that only reads."""
        self.memory, self.entry_bytes, self.first = memory, entry_bytes, first
        self.data = memory.view(0, memory.nbytes).numpy().data
        self.words: Words = self.data.cast("q")


class MappedPublication:
    """One process's end of what is published under a tag. Only the program's thread calls it."""

    def __init__(
        self,
        data_plane: DataPlane,
        boards: Boards,
        announce: Callable[[PublishedMemory], None],
        writers: Sequence[int],
        readers: Sequence[int],
        tag: int,
        gather_tag: int,
        memories: Mapping[int, list[PublishedMemory]],
    ) -> None:
        """`announce` sends all peers the memory of this process. `writers` and `readers` are different job
        ranks. Waits of writers for one another are reported under `gather_tag`."""
        self._data_plane, self._boards, self._announce, self._tag = data_plane, boards, announce, tag
        self._gather_tag = gather_tag
        self._memories = memories
        """Peer -> its memory, as far as it is still needed."""
        self._writers, self._readers = writers, readers
        self._order = [*writers]
        """The writers, in the order in which this reader waits for them."""
        self._slots, self._entries = data_plane.slots(tag), data_plane.slots(tag) + 1
        self._call, self._code = 0, code_of(data_plane.job_rank, tag)
        self._own: PublishedMemory | None = None
        self._row = b""
        self._rows: dict[int, memoryview | None] = {}
        """Writer -> its rows of this call; None where it has published its header only."""
        self._waits: Sequence[tuple[Words, int]] = ()
        """The boards of the peers, whose word 0 states for what each one waits, and their bells."""

    # Writing

    def write(self, header: bytes, nbytes: int) -> int:
        """Begins a call: writes the header, and returns the address for `nbytes` bytes of rows, which
        `publish` then shows to the readers. Waits for a free slot. Raises `PeerLost` and `OutOfMemory`."""
        self._call += 1
        self._row = header
        free = self._call - self._slots
        if free > 0:
            for reader in self._readers:
                known = self._memories[reader]
                if len(known) != 1 or known[0].words[0] < free:
                    self._await(reader, free)
        start = -(-(_HEAD_BYTES + len(header)) // ALIGNMENT) * ALIGNMENT
        own = self._own
        if own is None or start + nbytes > own.entry_bytes:
            own = self._own = self._made(self._entries, max(_MIN_ENTRY_BYTES, start + nbytes))
        at = ALIGNMENT + self._call % self._entries * own.entry_bytes
        word, begin = at // WORD_BYTES, at + _HEAD_BYTES
        own.words[word], own.words[word + 1] = len(header), nbytes
        own.data[begin : begin + len(header)] = header
        return own.memory.address + at + start

    def publish(self) -> None:
        """Shows the entry of the call to the readers."""
        assert self._own is not None
        self._advance(self._own)

    # Reading

    def receive(self) -> list[bytes]:
        """Begins a reader's call: returns the headers of all writers, in their order. Raises `PeerLost`."""
        self._call += 1
        call, order, memories = self._call, self._order, self._memories
        for index, writer in enumerate(order):
            known = memories[writer]
            if len(known) == 1 and known[0].words[0] >= call:
                continue
            if self._await(writer, call) and index:
                order.insert(0, order.pop(index))
        return [self._read(writer) for writer in self._writers]

    def gather(self) -> list[bytes] | None:
        """Returns the headers of all writers, in their order, to a writer that has published its own. None if
        another writer has gone on so far that its header is gone; the readers let it do so only where they
        get nothing else from this writer in this call. Raises `PeerLost`."""
        found: list[bytes] = []
        for writer in self._writers:
            if writer == self._data_plane.job_rank:
                found.append(self._row)
                continue
            self._await(writer, self._call, self._gather_tag)
            found.append(self._read(writer))
            if self._memories[writer][0].words[0] >= self._call + self._slots:
                return None
        return found

    def rows_of(self, writer: int) -> memoryview | None:
        """Returns the rows that a writer has published in this call, until `release`; None if it has
        published its header only."""
        return self._rows[writer]

    def release(self) -> None:
        """Ends a reader's call, and returns its slot to all writers."""
        if self._own is None:
            self._own = self._made(0, 0)
        self._advance(self._own)

    def _read(self, writer: int) -> bytes:
        """Returns the header of a writer, and keeps where its rows are. Raises `PeerLost`."""
        memory = self._memories[writer][0]
        data, words, size = memory.data, memory.words, memory.entry_bytes
        at = ALIGNMENT + self._call % self._entries * size
        if at + size > len(data) or size < _HEAD_BYTES:
            raise self._malformed(writer)
        length, nbytes = words[at // WORD_BYTES], words[at // WORD_BYTES + 1]
        start = -(-(_HEAD_BYTES + length) // ALIGNMENT) * ALIGNMENT
        if length < 0 or nbytes < NO_ROWS or start + nbytes > size:
            raise self._malformed(writer)
        self._rows[writer] = None if nbytes < 0 else data[at + start : at + start + nbytes]
        return bytes(data[at + _HEAD_BYTES : at + _HEAD_BYTES + length])

    def _malformed(self, writer: int) -> PeerLost:
        return self._data_plane.peer_lost(writer, "published an entry beyond its memory", self._tag)

    # Both

    def _made(self, entries: int, entry_bytes: int) -> PublishedMemory:
        """Returns memory for the calls from this one on."""
        size = 1 << (entry_bytes - 1).bit_length() if entry_bytes else 0
        try:
            memory = Sealed(ALIGNMENT + entries * size)
        except ArenaError as error:
            raise self._data_plane.context.out_of_memory(entries * size, self._tag, error) from None
        return PublishedMemory(memory, size, self._call)

    def _advance(self, own: PublishedMemory) -> None:
        """Stores the number of the call, and wakes the peers that wait for it."""
        own.words[0] = self._call
        if own.first == self._call:
            self._announce(own)
        self._boards.fence()
        for words, bell in self._waits or self._found_boards():
            if words[0] == self._code:
                os.eventfd_write(bell, 1)

    def _found_boards(self) -> Sequence[tuple[Words, int]]:
        """Returns the boards of those peers that have sent them. A peer that sends its board later sees
        the number of the call before it waits."""
        while self._data_plane.poll():  # a board may lie behind other messages
            pass
        peers = self._boards.peers
        found = [(peers[peer].words, peers[peer].bell) for peer in self._memories if peer in peers]
        if len(found) == len(self._memories):
            self._waits = found
        return found

    def _await(self, peer: int, call: int, tag: int | None = None) -> bool:
        """Waits until a peer has come to a call, and returns whether it had to wait. Raises `PeerLost`."""
        memories = self._memories[peer]

        def is_there() -> bool:
            while len(memories) > 1 and memories[1].first <= call:
                del memories[0]
            return bool(memories) and memories[0].words[0] >= call

        if is_there():
            return False
        named = self._tag if tag is None else tag
        wait = partial(self._data_plane.wait_unless, is_there, peer, named)
        self._boards.wait(code_of(peer, self._tag), wait)
        return True


class Publications:
    """All publications of a process, and the memory that its peers have announced for theirs."""

    def __init__(self, data_plane: DataPlane, boards: Boards, announce: Announce) -> None:
        self._data_plane, self._boards, self._announce = data_plane, boards, announce
        self._announced: dict[tuple[int, int], list[PublishedMemory]] = {}
        """(Job rank, tag) -> the memory of the peer, with what it made later last."""

    def open(
        self, writers: Sequence[int], readers: Sequence[int], tag: int, gather_tag: int
    ) -> MappedPublication:
        """Implements `Transport.publication`."""
        others = {*writers, *readers} if self._data_plane.job_rank in writers else {*writers}
        memories = {other: self._of(other, tag) for other in others - {self._data_plane.job_rank}}
        own = self._data_plane, self._boards, partial(self._announce_to, memories, tag)
        return MappedPublication(*own, writers, readers, tag, gather_tag, memories)

    def _announce_to(self, peers: Iterable[int], tag: int, own: PublishedMemory) -> None:
        assert isinstance(own.memory, Sealed)
        sizes = own.first, own.memory.nbytes, own.entry_bytes
        for peer in peers:
            self._announce(peer, tag, sizes, own.memory.file)
        own.memory.close()  # the messages have files of their own

    def _of(self, peer: int, tag: int) -> list[PublishedMemory]:
        return self._announced.setdefault((peer, tag), [])

    def add(self, peer: int, message: Message) -> None:
        """Maps the memory that a message announces. Raises `ProtocolError` and `ArenaError`."""
        _, _, tag, first, size, entry_bytes, _, files = message
        if not 0 <= tag < self._data_plane.context.tag_count:
            raise ProtocolError(f"a publication in tag {tag}")
        known = self._of(peer, tag)
        is_newer = not known or (first > known[-1].first and entry_bytes > known[-1].entry_bytes)
        if not is_newer or len(files) != 1 or first < 1 or not 0 <= entry_bytes <= size:
            raise ProtocolError(f"a publication of {size} bytes from call {first} on")
        if size < ALIGNMENT or size % WORD_BYTES or entry_bytes % ALIGNMENT:
            raise ProtocolError(f"a publication of {size} bytes")
        known.append(PublishedMemory(Mapped(files[0], size, write=False), entry_bytes, first))

    def forget(self, job_ranks: Collection[int]) -> None:
        """Forgets the memory of peers whose processes have been replaced."""
        for key in [key for key in self._announced if key[0] in job_ranks]:
            del self._announced[key]
