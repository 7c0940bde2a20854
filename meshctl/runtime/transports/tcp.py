"""Frames between processes of different nodes, over TCP: the same bytes, sent from where they were written
and read to where they stay.

Who sends opens a connection to who receives, so only places that share samples have one. On it go frames,
from the one that opened it; back come credits. Each place listens on one address, the one by which it reaches
the launcher, and hears only who knows the run's token.

    program         writes to the socket itself, once: what a small frame needs
    tcp-send        a thread that writes the rest, so that nobody waits for a receiver's program
    tcp-receive     a thread that reads everything, into memory that was touched before, whatever the program
                    does

What is read lies in memory until the program takes it; the slots of the lanes bound how much that can be. A
death is the end of a connection without a goodbye. A node that vanished says nothing: it is lost when it has
not acknowledged anything for `SILENCE`.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import select
import socket
import struct
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from meshctl.runtime.devices.backend import DeviceMemory
from meshctl.runtime.transports.buffers.caching_allocator import Warm
from meshctl.runtime.transports.buffers.frames import MOST_BESIDE, bytes_of
from meshctl.runtime.transports.connection import Line, Message, Progress, memoryview_of
from meshctl.runtime.transports.data_plane import Loan, Malformed, PeerLost, Transport, Way

SILENCE = 20.0
"""Seconds without an answer from a node's kernel, after which the node is lost."""
SILENT = "has not answered for {:.0f} s"
STRANGERS = 256
"""Connections that have not said hello yet; of more, the oldest is closed."""
_SCRATCH = 1 << 16
_CALLS = 8
"""Of the system, for one line before the next has its turn."""
_MOST = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
"""Bytes of a frame that could ever be received here."""
_SIZE = struct.Struct("<q")
_HELLO, _FRAME, _CREDIT, _GOODBYE, _LOST, _BESIDE, _COME = range(7)
_UNANSWERED = struct.Struct("=2xBB52xI")
"""Of the kernel's `tcp_info`: repetitions and probes without an answer, milliseconds since the last
acknowledgement."""


@dataclass(frozen=True)
class Address:
    """Where a place listens."""

    host: str
    """An IP address."""
    port: int

    def __str__(self) -> str:
        return f"{self.host} {self.port}"

    @classmethod
    def parse(cls, text: str) -> Address:
        host, _, port = text.partition(" ")
        return cls(host, int(port))

    @property
    def is_loopback(self) -> bool:
        return ipaddress.ip_address(self.host).is_loopback


class Tcp(Way):
    def __init__(self, transport: Transport, token: str, host: str = "127.0.0.1") -> None:
        """Listens on the IP address `host`, and on no other. `token` is the run's; who does not know it is
        not heard."""
        self._transport, self._token = transport, token.encode()
        self._listener = socket.create_server((host, 0), family=family_of(host), backlog=4096)
        self._listener.setblocking(False)
        self.address = Address(*self._listener.getsockname()[:2])
        self._peers: dict[int, Address] = {}
        self._to: dict[int, Line] = {}
        self._from: dict[int, Line] = {}
        self._strangers: dict[Line, None] = {}
        self._warm = Warm()
        self._scratch = memoryview(bytearray(_SCRATCH))
        self._sender = Progress("tcp-send", select.EPOLLOUT, self._broke)
        self._receiver = Progress("tcp-receive", select.EPOLLIN, self._broke, self._look, SILENCE / 4)
        self._closing = False
        self._memory: DeviceMemory | None = None
        self._devices: Container[int] = ()
        """The places that a tensor of our device gets to by a transfer."""
        self._beside: defaultdict[int, list[int]] = defaultdict(list)
        """By place, the bytes of the tensors beside the next frame."""

    def use(self, memory: DeviceMemory, devices: Container[int]) -> None:
        """Has tensors of a device go to those of these places by transfers; before the first frame."""
        self._memory, self._devices = memory, devices

    def meet(self, peers: Mapping[int, Address]) -> None:
        """Tells where the others listen; nobody connects before there is something to say."""
        self._peers = {place: address for place, address in peers.items() if place != self._transport.place}
        self._transport.reach(self._peers, self)
        self._receiver.add(self._listener.fileno(), self._accept)
        self._receiver.start()
        self._sender.start()

    # Memory

    def hands_over(self, to: Sequence[int], lent: bool, tensor: Tensor) -> bool:
        if self._memory is None or not tensor.nbytes or tensor.is_meta or not self._memory.holds(tensor):
            return False
        return all(place in self._devices for place in to)

    def lend(self, to: Sequence[int], lane: int, nbytes: int, beside: Sequence[Tensor] = ()) -> Loan:
        if beside and self._memory:
            self._memory.finish()  # who takes it serves nobody else meanwhile: it may not have to wait for what this device still does
        try:
            return Loan(tuple(to), lane, self._warm.take((tuple(to), lane), nbytes), beside)
        except MemoryError as error:
            raise self._transport.full(nbytes, lane, error) from None

    def _room(self, line: Line, what: int, lane: int, nbytes: int) -> Tensor:
        """Where the bytes of a message go; only a frame and a hello have any."""
        if line.place < 0:
            if what != _HELLO or nbytes != len(self._token):
                raise Malformed("a wrong greeting")
        elif what == _FRAME and self._from.get(line.place) is line:
            if not 0 <= nbytes <= _MOST:
                raise Malformed(f"a frame of {nbytes} bytes in lane {lane}")
            self._transport.admit(line.place, lane)
            return self._warm.take((line.place, lane), nbytes)
        elif (
            what == _BESIDE
            and self._from.get(line.place) is line
            and len(self._beside[line.place]) < MOST_BESIDE
        ):
            if nbytes != _SIZE.size or self._transport.transfers is None:
                raise Malformed(f"the size of a tensor in {nbytes} bytes")
        elif nbytes or not (
            what in (_GOODBYE, _LOST) or (what in (_CREDIT, _COME) and self._to.get(line.place) is line)
        ):
            raise Malformed(f"kind {what} with {nbytes} bytes")
        return torch.empty(nbytes, dtype=torch.uint8)

    # Sending

    def post(self, to: int, lane: int, loan: Loan | None, *, write: bool = False) -> None:
        if loan is None:
            self._push(self._from[to], _CREDIT, lane)
        else:
            line = self._to.get(to) or self._line_to(to)
            for tensor in loan.beside:
                self._push(
                    line,
                    _BESIDE,
                    lane,
                    torch.frombuffer(bytearray(_SIZE.pack(tensor.nbytes)), dtype=torch.uint8),
                )
            self._push(line, _FRAME, lane, loan.frame)
            if loan.beside and self._transport.transfers:
                self._transport.transfers.send(to, loan.beside)

    def _push(self, line: Line, what: int, lane: int = 0, frame: Tensor | None = None) -> None:
        nbytes, memory = (0, None) if frame is None else (len(frame), memoryview_of(frame))
        if line.push(what, lane, nbytes, memory):
            self._sender.add(line.sock.fileno(), partial(self._drain, line))

    def _drain(self, line: Line) -> None:
        """On the sending thread, which has the line until its backlog is empty."""
        self._sender.remove(line.sock.fileno())
        if not line.drain(_CALLS):
            self._sender.add(line.sock.fileno(), partial(self._drain, line))
        elif self._closing:
            self._transport.wake()

    def _line_to(self, place: int) -> Line:
        address = self._peers[place]
        try:
            sock = socket.create_connection((address.host, address.port), SILENCE)
        except OSError as error:
            raise self._transport.lost(
                place, f"cannot be reached at {address.host}:{address.port}: {error}"
            ) from None
        line = self._to[place] = self._opened(sock, place)
        token = torch.frombuffer(bytearray(self._token), dtype=torch.uint8)
        self._push(line, _HELLO, self._transport.place, token)
        return line

    def _opened(self, sock: socket.socket, place: int = -1) -> Line:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, int(SILENCE / 2)))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, int(SILENCE / 4)))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2)
        line = Line(sock, self._room, place)
        self._receiver.add(sock.fileno(), partial(self._read, line))
        return line

    # Receiving, on its thread

    def _accept(self) -> None:
        with suppress(BlockingIOError, ConnectionError):
            sock, _ = self._listener.accept()
            self._strangers[self._opened(sock)] = None
            if len(self._strangers) > STRANGERS:
                self._shut(next(iter(self._strangers)))

    def _read(self, line: Line) -> None:
        try:
            for message in line.read(self._scratch):
                self._heard(line, message)
        except TimeoutError:
            self._hung_up(line, SILENT.format(SILENCE))
        except (EOFError, OSError):
            self._hung_up(line, "is gone")
        except (Malformed, MemoryError) as error:
            self._shut(line)
            if line.place >= 0:
                self._transport.fail(self._transport.lost(line.place, f"sent what is no message: {error}"))

    def _heard(self, line: Line, message: Message) -> None:
        if message.what == _FRAME:
            beside = self._beside.pop(line.place, ())
            self._transport.arrived(
                line.place, message.lane, message.memory, beside, partial(self._push, line, _COME)
            )
        elif message.what == _BESIDE:
            [nbytes] = _SIZE.unpack(bytes_of(message.memory))
            if nbytes <= 0:
                raise Malformed(f"a tensor of {nbytes} bytes")
            self._beside[line.place].append(nbytes)
        elif message.what == _CREDIT:
            self._transport.arrived(line.place, message.lane, None)
        elif message.what == _COME:
            if self._transport.transfers:
                self._transport.transfers.come(line.place)
        elif message.what == _GOODBYE:
            line.over = True
            self._transport.wake()
        elif message.what == _LOST:
            self._transport.told(message.lane, line.place)
        else:
            self._greeted(line, message.lane, bytes_of(message.memory))

    def _greeted(self, line: Line, place: int, token: bytes) -> None:
        if (
            line.place >= 0
            or place not in self._peers
            or place in self._from
            or not hmac.compare_digest(token, self._token)
        ):
            raise Malformed("a wrong greeting")
        del self._strangers[line]
        line.place = place
        self._from[place] = line
        if self._closing:  # it began a step that the end of the run dropped
            self._push(line, _GOODBYE)

    # Ends

    def _hung_up(self, line: Line, how: str) -> None:
        self._shut(line)
        if not line.over and line.place >= 0:
            self._transport.fail(self._transport.lost(line.place, how))

    def _shut(self, line: Line) -> None:
        """No more is read. A peer's socket keeps its number until the end: the other thread may be about to
        use it."""
        self._receiver.remove(line.sock.fileno())
        if line.place < 0:
            self._strangers.pop(line, None)
            line.sock.close()
        else:
            with suppress(OSError):
                line.sock.shutdown(socket.SHUT_RDWR)

    def _look(self) -> None:
        """Looks for nodes that vanished while something was on its way to them; the kernel itself asks those
        that are idle."""
        for line in self._lines:
            if not line.over and line.sock.fileno() >= 0 and is_silent(line.sock):
                self._hung_up(line, SILENT.format(SILENCE))

    @property
    def _lines(self) -> list[Line]:
        return [*self._to.values(), *self._from.values()]

    def _broke(self, error: Exception) -> None:
        self._transport.fail(PeerLost(f"the connections to other nodes broke: {error!r}"))

    def tell(self, lost: int) -> None:
        for line in self._lines:
            self._push(line, _LOST, lost)

    def forget(self) -> None:
        for line in (*self._lines, *self._strangers):
            line.sock.close()
        self._listener.close()

    def leave(self) -> None:
        """Says goodbye on every connection."""
        self._closing = True
        for line in self._lines:
            self._push(line, _GOODBYE)

    def close(self) -> None:
        """Waits for the other ends' goodbye: nothing is on its way then. Raises `PeerLost`."""
        try:
            self._transport.wait_until(lambda: all(line.over and not line.busy for line in self._lines))
        finally:
            self.release()

    def release(self) -> None:
        """Ends threads and connections, whoever is still there; once is enough."""
        if self._listener.fileno() < 0:
            return
        self._receiver.close()
        self._sender.close()
        for line in (*self._lines, *self._strangers):
            line.sock.close()
        self._listener.close()


def is_silent(sock: socket.socket) -> bool:
    """Whether the other end's kernel has left something unanswered for `SILENCE`; one whose program only does
    not read answers."""
    repetitions, probes, since = _UNANSWERED.unpack(
        sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _UNANSWERED.size)
    )
    return bool(max(repetitions, probes) > 1 and since > SILENCE * 1000)


def address_towards(host: str, port: int) -> str:
    """This host's own IP address on the way to another: loopback where that is this host by a loopback name."""
    found: Iterable[tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[str, int]]]
    found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_DGRAM)  # type: ignore[assignment]
    family, kind, _, _, address = next(iter(found))
    with socket.socket(family, kind) as probe:
        probe.connect(address)
        own: str = probe.getsockname()[0]
    return own


def family_of(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
