"""Frames between processes of one node: a header over a unix socket, the frame in memory that both map
(`arena.py`).

Who sends opens a connection to who receives, so only places that share samples have one. On it go, from the
one that opened it, frames and invitations to write one; back come credits, and the blocks whose last view has
died. Small frames travel in the message itself. What an endpoint made in memory of `alloc` is not copied at
all: a message before its frame says where it lies, and what several made is mapped one after another
(`strips.py`). A block's file is passed once. Sockets have abstract names that the kernel chose, and ask for
the uid; the first word is the run's.

The waiting thread reads all sockets. What a socket does not take at once is sent by a thread of its own, so
that nobody waits for a receiver's program. A death is the end of a connection without a goodbye, or of the
process itself.
"""

from __future__ import annotations

import array
import errno
import hmac
import os
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from meshctl.runtime.devices.backend import DeviceError, DeviceMemory, Neighbours
from meshctl.runtime.devices.device_buffers import Lent, OnDevice
from meshctl.runtime.transports.buffers.arena import ArenaError, Block, Mapped
from meshctl.runtime.transports.buffers.buffer_pool import INLINE, Lending, Lying
from meshctl.runtime.transports.buffers.frames import MOST_BESIDE, bytes_of
from meshctl.runtime.transports.buffers.mapped_concat import Strips
from meshctl.runtime.transports.data_plane import Delivery, Loan, Malformed, PeerLost, Transport, Way

_HEAD = struct.Struct("<Biqqq")
"""What, lane, block, the block's bytes where its file comes with the message, bytes."""
_LYING = struct.Struct("<qqqq")
"""Of each tensor beside a frame: block, the block's bytes where its file comes with the message, where in it,
bytes."""
_MANY, _FILES = 64, 8
"""Tensors of which one message tells, and files that go with it."""
_HELLO, _INLINE, _BLOCK, _WRITE, _CREDIT, _FREE, _DROP, _GOODBYE, _BESIDE, _LOST, _DEVICE, _COME = range(12)
_FRAMES, _ROOMS, _ON_DEVICE = range(3)
"""Instead of a lane, of a block that is given back or dropped: what it is used for. Of a room, the bytes are
the lane."""
_MOST = _HEAD.size + INLINE
_PASSED = socket.CMSG_SPACE(4 * _FILES)
_UID = struct.Struct("3i")
_ENDED = {errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.EBADF}
"""What sending to who is gone, or to whom this end has closed, gives."""


@dataclass(frozen=True)
class Address:
    """Where a place listens."""

    name: bytes
    """Of its socket, in the abstract namespace."""
    pid: int

    def __str__(self) -> str:
        return f"{self.pid} {self.name.hex()}"

    @classmethod
    def parse(cls, text: str) -> Address:
        pid, _, name = text.partition(" ")
        return cls(bytes.fromhex(name), int(pid))


class _Line:
    """One connection, with a place."""

    def __init__(self, sock: socket.socket, place: int = -1) -> None:
        self.sock, self.place = sock, place
        self.backlog: deque[tuple[bytes, Sequence[int]]] = deque()
        """What the socket did not take yet: (message, files to pass); the files are the backlog's own."""
        self.over = False
        """Whether the other end has said goodbye."""
        self.beside: list[Tensor | int] = []
        """What came before the frame that it belongs to: tensors, or the bytes of those that transfers bring.
        """


class Local(Way):
    shares_memory = True
    inline = INLINE

    def __init__(self, transport: Transport, token: str) -> None:
        """`token` is the run's; who does not know it is not heard."""
        self._transport, self._token = transport, token.encode()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind("")
        self._listener.listen(4096)
        self._listener.setblocking(False)
        self.address = Address(self._listener.getsockname(), os.getpid())
        self._peers: dict[int, Address] = {}
        self._to: dict[int, _Line] = {}
        self._from: dict[int, _Line] = {}
        self.lending = Lending(transport, self._dropped)
        self._mapped: dict[tuple[int, int, bool], Mapped] = {}
        self._strips = Strips(self._memory_of)
        self._queue: deque[tuple[_Line, bytes, Sequence[int]]] = deque()
        self._sending = threading.Lock()
        self._pusher: threading.Thread | None = None
        self._more = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._pids: list[int] = []
        self._leaving = self._closing = False
        transport.watch(self._listener.fileno(), self._accept)

    def use(self, memory: DeviceMemory, neighbours: Neighbours) -> None:
        """Has tensors of a device go by its own memory, where `neighbours` say so; before the first frame."""
        self.lending.device = OnDevice(self._transport.place, memory, neighbours, self._dropped_on_device)

    def meet(self, peers: Mapping[int, Address]) -> None:
        """Tells where the others listen; nobody connects before there is something to say."""
        for place, address in peers.items():
            if place == self._transport.place:
                continue
            self._peers[place] = address
            try:
                file = os.pidfd_open(address.pid)
            except ProcessLookupError:
                self._transport.ended(place, "is gone")
            else:
                self._pids.append(file)
                self._transport.watch(file, partial(self._died, place, file))
        self._transport.reach(peers, self)

    # Memory

    def alloc(self, nbytes: int) -> Tensor | None:
        return self.lending.alloc(nbytes)

    def hands_over(self, to: Sequence[int], lent: bool, tensor: Tensor) -> bool:
        return self.lending.hands_over(to, lent, tensor)

    def lies_mappable(self, tensor: Tensor) -> bool:
        return self.lending.lies_mappable(tensor)

    def joined(self, tensors: Sequence[Tensor]) -> Tensor | None:
        return self._strips.joined(tensors)

    def _memory_of(self, address: int, nbytes: int) -> Mapped | None:
        """The shared memory, of this process or of others, in which so many bytes at an address lie."""
        for memory in (*self._mapped.values(), *[block.memory for block in [*self.lending.rooms.values()]]):
            if (
                isinstance(memory, Mapped)
                and memory.address <= address
                and address + nbytes <= memory.address + memory.nbytes
            ):
                return memory
        return None

    def lend(self, to: Sequence[int], lane: int, nbytes: int, beside: Sequence[Tensor] = ()) -> Loan:
        return self.lending.lend(to, lane, nbytes, beside)

    def own(self, loan: Loan) -> Delivery:
        return self.lending.own(loan)

    @property
    def nbytes(self) -> int:
        """Of all blocks of this process."""
        return self.lending.arena.nbytes

    # Sending

    def post(self, to: int, lane: int, loan: Loan | None, *, write: bool = False) -> None:
        if loan is None:
            self._say(self._from[to], _CREDIT, lane)
            return
        line, kept = self._line_to(to), loan.kept
        if kept is None:
            self._push(line, _HEAD.pack(_INLINE, lane, 0, 0, len(loan.inline)) + loan.inline)
            return
        self._say_beside(line, lane, kept.beside)
        if kept.block:
            self._say_block(line, _WRITE if write else _BLOCK, lane, kept.block, len(loan.frame))
        else:
            self._push(line, _HEAD.pack(_INLINE, lane, 0, 0, len(loan.frame)) + bytes_of(loan.frame))
        moved = [one.tensor for one in kept.beside if isinstance(one, Lent)]
        if moved and self.lending.device and self.lending.device.goes(to) and self._transport.transfers:
            self._transport.transfers.send(to, moved)

    def _say_beside(self, line: _Line, lane: int, beside: Sequence[Lying | Lent]) -> None:
        lying: list[Lying] = []
        for one in beside:
            if isinstance(one, Lying):
                lying.append(one)
            elif self.lending.device:
                self._say_lying(line, lane, lying)
                lying = []
                self._push(
                    line, _HEAD.pack(_DEVICE, lane, 0, 0, 0) + self.lending.device.said(line.place, one)
                )
        self._say_lying(line, lane, lying)

    def _say_lying(self, line: _Line, lane: int, tensors: Sequence[Lying]) -> None:
        files, told = list[int](), list[bytes]()
        for one in tensors:
            new = self._tells_of(line, one.block)
            files += [one.block.file] * new
            told.append(_LYING.pack(one.block.number, one.block.nbytes * new, one.at, one.nbytes))
            if len(told) == _MANY or len(files) == _FILES or one is tensors[-1]:
                self._push(line, _HEAD.pack(_BESIDE, lane, 0, 0, 0) + b"".join(told), files)
                files, told = [], []

    def _say_block(self, line: _Line, what: int, lane: int, block: Block, nbytes: int) -> None:
        """A frame lies in a block."""
        new = self._tells_of(line, block, write=what == _WRITE)
        self._push(line, _HEAD.pack(what, lane, block.number, block.nbytes * new, nbytes), [block.file] * new)

    @staticmethod
    def _tells_of(line: _Line, block: Block, *, write: bool = False) -> bool:
        """Whether a message is the first about a block, so that its file goes with it."""
        new = (line.place, write) not in block.known
        block.known.add((line.place, write))
        return new

    def _line_to(self, place: int) -> _Line:
        line = self._to.get(place)
        if line is None:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                sock.connect(self._peers[place].name)
            except OSError:
                sock.close()
                raise self._transport.lost(place, "is gone") from None
            line = self._to[place] = self._opened(sock, place)
            self._push(line, _HEAD.pack(_HELLO, self._transport.place, 0, 0, 0) + self._token)
        return line

    def _opened(self, sock: socket.socket, place: int = -1) -> _Line:
        sock.setblocking(False)
        line = _Line(sock, place)
        self._transport.watch(sock.fileno(), partial(self._read, line))
        return line

    def _say(self, line: _Line, what: int, lane: int = 0, block: int = 0) -> None:
        self._push(line, _HEAD.pack(what, lane, block, 0, 0))

    def _push(self, line: _Line, message: bytes, files: Sequence[int] = ()) -> None:
        """Sends in order, from any thread, also from within itself: a view may die, and be given back, at any
        moment."""
        self._queue.append((line, message, [os.dup(file) for file in files]))
        self._send_queued()

    def _send_queued(self) -> None:
        """Whoever has had the lock looks once more: others only queue while they cannot get it."""
        while self._queue and self._sending.acquire(blocking=False):
            try:
                while self._queue:
                    line, message, files = self._queue.popleft()
                    if line.backlog or not self._sent(line, message, files):
                        line.backlog.append((message, files))
                        self._begin_pushing()
            finally:
                self._sending.release()

    def _sent(self, line: _Line, message: bytes, files: Sequence[int]) -> bool:
        """Whether the socket took it, or nobody is there to take it; the files are closed then."""
        passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []
        try:
            line.sock.sendmsg([message], passed)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in _ENDED:  # an end is read, too, and told there
                self._transport.fail(self._transport.lost(line.place, f"cannot be sent to: {error.strerror}"))
        for file in files:
            os.close(file)
        return True

    def _begin_pushing(self) -> None:
        """Another line has a backlog."""
        if self._pusher is None:
            self._pusher = threading.Thread(target=self._push_all, daemon=True, name="backlog")
            self._pusher.start()
        else:
            os.eventfd_write(self._more, 1)

    def _push_all(self) -> None:
        """Sends what sockets did not take, as they take it."""
        while True:
            with self._sending:
                lines = self._push_once()
                if not lines:
                    self._pusher = None
            self._send_queued()
            if not lines:
                return
            ready = select.poll()
            ready.register(self._more, select.POLLIN)
            for file in lines:
                ready.register(file, select.POLLOUT)
            if self._more in dict(ready.poll()):
                os.eventfd_read(self._more)

    def _push_once(self) -> list[int]:
        """The sockets that are still full."""
        for line in (lines := [line for line in (*self._to.values(), *self._from.values()) if line.backlog]):
            while line.backlog and self._sent(line, *line.backlog[0]):
                line.backlog.popleft()
        return [line.sock.fileno() for line in lines if line.backlog]

    # Receiving

    def _accept(self) -> None:
        """All who have come, and their first words."""
        with suppress(BlockingIOError):
            while True:
                sock, _ = self._listener.accept()
                _, uid, _ = _UID.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UID.size))
                if uid == os.getuid():
                    self._read(self._opened(sock))
                else:
                    sock.close()

    def _read(self, line: _Line) -> None:
        try:
            self._read_one(line)
        except BlockingIOError:
            return

    def _read_one(self, line: _Line) -> None:
        """The next message of a line. Raises `BlockingIOError` where there is none yet."""
        try:
            message, passed, flags, _ = line.sock.recvmsg(_MOST, _PASSED, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            return  # it left some of ours unread; what it said before its end comes next
        files = _files_of(passed) if passed else ()
        try:
            if flags & socket.MSG_CTRUNC and len(files) < _FILES:
                self._transport.fail(
                    PeerLost(
                        f"{self._transport.who(self._transport.place)} has too many files open for what it is sent"
                    )
                )
            elif not message:
                self._hung_up(line)
            else:
                self._heard(line, message, files)
        except (struct.error, ArenaError, DeviceError, Malformed) as error:
            self._shut(line)
            if line.place >= 0:
                self._transport.fail(self._transport.lost(line.place, f"sent what is no message: {error}"))
        finally:
            for file in files:
                os.close(file)

    def _heard(self, line: _Line, message: bytes, files: Sequence[int]) -> None:
        what, lane, number, size, nbytes = _HEAD.unpack_from(message)
        if line.place < 0:
            self._greeted(line, what, lane, message[_HEAD.size :])
        elif what == _GOODBYE:
            line.over = True
        elif what == _LOST:
            self._transport.told(lane, line.place)
        elif self._to.get(line.place) is line:
            self._answered(line, what, lane, number, nbytes)
        elif what == _INLINE:
            if len(message) != _HEAD.size + nbytes:
                raise Malformed(f"a frame of {len(message) - _HEAD.size} bytes that says {nbytes}")
            self._came(line, lane, message[_HEAD.size :])
        elif what in (_BLOCK, _WRITE):
            memory = self._block_of(line, what == _WRITE, number, size, files)
            gone = None if what == _WRITE else partial(self._release, line, _FRAMES, number)
            self._came(line, lane, memory.view(0, nbytes, gone))
        elif what == _BESIDE:
            self._lay_beside(line, lane, [*_LYING.iter_unpack(message[_HEAD.size :])], files)
        elif what == _DEVICE and self.lending.device and len(line.beside) < MOST_BESIDE:
            came = self.lending.device.heard(
                line.place, message[_HEAD.size :], partial(self._release, line, _ON_DEVICE)
            )
            if isinstance(came, int) and self._transport.transfers is None:
                raise Malformed("a transfer, where there are none")
            line.beside.append(came)
        elif what == _DROP and lane == _FRAMES:
            for write in (False, True):
                if mapped := self._mapped.pop((line.place, number, write), None):
                    self._strips.forget(mapped)
        elif what == _DROP and self.lending.device and self.lending.device.shut(line.place, number):
            self._release(line, _ON_DEVICE, number)
        else:
            raise Malformed(f"kind {what}")

    def _greeted(self, line: _Line, what: int, place: int, token: bytes) -> None:
        if (
            what != _HELLO
            or not hmac.compare_digest(token, self._token)
            or place not in self._peers
            or place in self._from
        ):
            raise Malformed("a wrong greeting")
        line.place = place
        self._from[place] = line
        if self._leaving:
            self._say(line, _GOODBYE)

    def _answered(self, line: _Line, what: int, lane: int, number: int, nbytes: int) -> None:
        if what == _CREDIT:
            self._transport.arrived(line.place, lane, None)
        elif what == _FREE and lane in (_FRAMES, _ROOMS):
            self.lending.arena.give_back(number, line.place if lane == _FRAMES else (line.place, nbytes))
        elif what == _FREE and lane == _ON_DEVICE and self.lending.device:
            self.lending.device.arena.give_back(number, line.place)
        elif what == _COME and self._transport.transfers:
            self._transport.transfers.come(line.place)
        else:
            raise Malformed(f"the answer {what}")

    def _came(self, line: _Line, lane: int, frame: Tensor | bytes) -> None:
        self._transport.admit(line.place, lane)
        if not line.beside:
            self._transport.arrived(line.place, lane, frame)
            return
        beside, line.beside = line.beside, []
        self._transport.arrived(line.place, lane, frame, beside, partial(self._say, line, _COME))

    def _lay_beside(
        self, line: _Line, lane: int, tensors: Sequence[tuple[int, int, int, int]], files: Sequence[int]
    ) -> None:
        """Tensors in somebody else's rooms."""
        if len(line.beside) + len(tensors) > MOST_BESIDE:
            raise Malformed(f"more than {MOST_BESIDE} tensors beside a frame")
        left = [*files]
        for number, size, at, nbytes in tensors:
            memory = self._block_of(line, False, number, size, [left.pop(0)] if size and left else [])
            line.beside.append(memory.view(at, nbytes, partial(self._release, line, _ROOMS, number, lane)))

    def _block_of(self, line: _Line, write: bool, number: int, size: int, files: Sequence[int]) -> Mapped:
        """Somebody else's; its file comes with the first message about it."""
        key = (line.place, number, write)
        if files and key in self._mapped:
            raise Malformed(f"block {number}, once more")
        if files:
            self._mapped[key] = Mapped(files[0], size, write=write)
        mapped = self._mapped.get(key)
        if mapped is None:
            raise Malformed(f"the unknown block {number}")
        return mapped

    def _release(self, line: _Line, memory: int, number: int, of: int = 0) -> None:
        """The last view of a block has died: on any thread, in any moment."""
        if not self._closing:
            self._push(line, _HEAD.pack(_FREE, memory, number, 0, of))

    def _dropped_on_device(self, place: int, number: int) -> None:
        self._say(self._to[place], _DROP, _ON_DEVICE, number)

    def _dropped(self, block: Block) -> None:
        if isinstance(block.memory, Mapped):
            self._strips.forget(block.memory)
        for place in {place for place, _ in block.known}:
            self._say(self._to[place], _DROP, block=block.number)

    # Ends

    def _hung_up(self, line: _Line) -> None:
        self._shut(line)
        if not line.over and line.place >= 0:
            self._transport.fail(self._transport.lost(line.place, "is gone"))

    def _shut(self, line: _Line) -> None:
        self._transport.unwatch(line.sock.fileno())
        line.sock.close()

    def _died(self, place: int, file: int) -> None:
        """A process has ended; what it said before is heard first, and its connections say how it went."""
        self._transport.unwatch(file)
        self._accept()
        lines = self._lines_of(place)
        for line in lines:
            with suppress(BlockingIOError):
                while line.sock.fileno() >= 0:
                    self._read_one(line)
        self._transport.ended(place, "has ended" if any(line.over for line in lines) else "is gone")

    def tell(self, lost: int) -> None:
        if self._closing:
            return
        self._accept()
        for line in (*self._to.values(), *self._from.values()):
            self._say(line, _LOST, lost)

    def _lines_of(self, place: int) -> list[_Line]:
        return [line for line in (self._to.get(place), self._from.get(place)) if line]

    def leave(self) -> None:
        """Says goodbye on every connection."""
        self._accept()
        self._leaving = True
        for line in (*self._to.values(), *self._from.values()):
            self._say(line, _GOODBYE)

    def forget(self) -> None:
        self._closing = True
        self.lending.forget()
        for line in (*self._to.values(), *self._from.values()):
            line.sock.close()
        self._listener.close()

    def close(self) -> None:
        """Waits for the other ends' goodbye: nothing is on its way then. Raises `PeerLost`."""
        try:
            self._transport.wait_until(
                lambda: all(line.over for line in (*self._to.values(), *self._from.values()))
            )
            while not self._said_all():
                if pusher := self._pusher:
                    pusher.join()
        finally:
            self._closing = True
            self._let_go()

    def _said_all(self) -> bool:
        """Whether every message has left: one that was queued while another thread was sending is sent by
        that thread, a little later."""
        self._send_queued()
        with self._sending:
            return not self._queue and self._pusher is None

    def _let_go(self) -> None:
        for file in (self._listener.fileno(), *self._pids):
            self._transport.unwatch(file)
        for line in (*self._to.values(), *self._from.values()):
            self._shut(line)
        for file in self._pids:
            os.close(file)
        self._listener.close()
        self.lending.close()
        self._mapped.clear()
        self._strips.clear()
        if self._pusher is None:
            os.close(self._more)


def _files_of(passed: Iterable[tuple[int, int, bytes]]) -> list[int]:
    files = array.array("i")
    for level, kind, data in passed:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            files.frombytes(data[: len(data) - len(data) % files.itemsize])
    return list(files)
