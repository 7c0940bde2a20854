"""TLS for the sockets of the transport, in a thread of its own.

    transport  <--- pair of unix sockets --->  pump  <--- TLS --->  the peer's pump

The transport reads and writes its end as any socket: with several threads, many pieces in one call, and a
number of bytes that must have arrived. TLS has none of these, and one connection of it may be used by one
thread only.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from contextlib import suppress

from meshctl.network.sockets import Sockets

PART_BYTES = 1 << 18
"""The most bytes that are read at once."""
MAX_PARTS = 16
"""Parts of one connection before the next one has its turn."""
FLUSH_S = 5.0
"""Seconds in which the last bytes are sent at the end."""
ENDED = select.EPOLLHUP | select.EPOLLERR


class Carried(socket.socket):
    """The transport's end of a connection that a pump carries."""

    network: socket.socket
    """The socket to the peer."""


class Way:
    """The bytes from one socket to another one."""

    def __init__(self, source: socket.socket, target: socket.socket) -> None:
        self.source, self.target = source, target
        self.part = memoryview(b"")
        """The bytes that are still to be written."""
        self.has_ended = False
        """True if the source has no further bytes."""

    def move(self) -> bool:
        """Moves a part as far as neither socket waits. Returns whether it has moved something."""
        has_moved = False
        if not self.part and not self.has_ended:
            has_moved = self._read()
        while self.part:
            try:
                self.part = self.part[self.target.send(self.part) :]
            except BlockingIOError:
                return has_moved
            except OSError:  # nobody reads any more
                self.part, self.has_ended = memoryview(b""), True
            has_moved = True
        return has_moved

    def _read(self) -> bool:
        try:
            data = self.source.recv(PART_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        self.part, self.has_ended = memoryview(data), not data
        return True

    def read_all(self) -> None:
        """Reads all that is left of a source whose peer has closed it."""
        parts = [bytes(self.part)]
        while not self.has_ended and self._read():
            parts.append(bytes(self.part))
        self.part, self.has_ended = memoryview(b"".join(parts)), True


class Link:
    """The two ways of one connection."""

    def __init__(self, inner: socket.socket, network: socket.socket) -> None:
        self.inner, self.network = inner, network
        self.out, self.back = Way(inner, network), Way(network, inner)
        self._is_shut = False

    def move(self) -> bool:
        """Moves some parts. Returns whether there may be more at once."""
        return all(self.out.move() | self.back.move() for _ in range(MAX_PARTS))

    def masks(self) -> dict[socket.socket, int]:
        """Returns for each socket the events for which the link waits; 0 if it is not to be watched."""
        return {self.inner: self._mask(self.out, self.back), self.network: self._mask(self.back, self.out)}

    def _mask(self, reads: Way, writes: Way) -> int:
        wants_read = 0 if reads.part or reads.has_ended else select.EPOLLIN
        return wants_read | (select.EPOLLOUT if writes.part else 0)

    def shut(self) -> bool:
        """Passes on the end of either side. Returns whether the link is over."""
        if self.back.has_ended and not self.back.part and not self._is_shut:
            self._is_shut = True
            with suppress(OSError):
                self.inner.shutdown(socket.SHUT_WR)
        return self.out.has_ended and not self.out.part

    def close(self) -> None:
        self.inner.close()
        self.network.close()


class Pump:
    def __init__(self, sockets: Sockets) -> None:
        self._sockets = sockets
        self._epoll = select.epoll()
        self._links: dict[int, Link] = {}
        """Descriptor of either socket -> its link."""
        self._masks: dict[int, int] = {}
        self._added: list[Link] = []
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._ends_at = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True, name="tls")
        self._thread.start()

    def connected(self, sock: socket.socket) -> socket.socket:
        """Returns the transport's end of a connected socket that still waits. Raises `OSError`."""
        try:
            return self._carried(self._sockets.client(sock))
        except OSError:
            sock.close()
            raise

    def accepted(self, sock: socket.socket) -> socket.socket:
        """Returns the transport's end of an accepted socket."""
        return self._carried(self._sockets.server(sock))

    def _carried(self, network: socket.socket) -> socket.socket:
        network.setblocking(False)
        inner, outer = socket.socketpair()
        inner.setblocking(False)
        carried = Carried(fileno=outer.detach())
        carried.setblocking(False)
        carried.network = network
        self._added.append(Link(inner, network))
        os.eventfd_write(self._wake, 1)
        return carried

    def _run(self) -> None:
        busy: set[Link] = set()
        while not self._ends_at or (self._links and time.monotonic() < self._ends_at):
            wait_s = 0.0 if busy else (0.05 if self._ends_at else None)
            ready, busy = busy, set()
            for file, events in self._epoll.poll(wait_s):
                if link := self._links.get(file):
                    self._note_end(link, file, events)
                    ready.add(link)
            with suppress(BlockingIOError):
                os.eventfd_read(self._wake)
            while self._added:
                link = self._added.pop()
                self._links[link.inner.fileno()] = self._links[link.network.fileno()] = link
                ready.add(link)
            busy = {link for link in ready if self._serve(link)}

    def _note_end(self, link: Link, file: int, events: int) -> None:
        if events & ENDED:
            (link.out if file == link.inner.fileno() else link.back).read_all()

    def _serve(self, link: Link) -> bool:
        """Moves bytes of a link. Returns whether there may be more at once."""
        is_busy = link.move()
        if link.shut():
            for sock in (link.inner, link.network):
                self._watch(sock.fileno(), 0)
                del self._links[sock.fileno()]
            link.close()
            return False
        for sock, mask in link.masks().items():
            self._watch(sock.fileno(), mask)
        return is_busy

    def _watch(self, file: int, mask: int) -> None:
        before = self._masks.pop(file, 0)
        if mask:
            self._masks[file] = mask
        if mask and before:
            self._epoll.modify(file, mask)
        elif mask:
            self._epoll.register(file, mask)
        elif before:
            self._epoll.unregister(file)

    def close(self) -> None:
        """Sends what the transport has written, then ends the thread. The transport has closed its ends."""
        if self._thread.is_alive():
            self._ends_at = time.monotonic() + FLUSH_S
            os.eventfd_write(self._wake, 1)
            self._thread.join()
        self.forget()

    def forget(self) -> None:
        """Closes all files, also in a forked process, which has no thread."""
        for link in {*self._links.values(), *self._added}:
            link.close()
        self._links.clear()
        if not self._epoll.closed:
            self._epoll.close()
            os.close(self._wake)
