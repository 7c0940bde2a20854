"""The connections of a transport to its peers: how they greet each other, leave and are lost.

The sender of frames opens the connection to their receiver, so only job ranks that share samples have one.
Frames travel on it in one direction, credits and other answers in the other. The first message has the run's
token and the generations of both ends. A peer is lost when its connection ends without a goodbye.
"""

from __future__ import annotations

import hmac
import socket
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Generic, NamedTuple, TypeVar

from torch import Tensor

from meshctl.runtime.transports.buffers.frames import bytes_of
from meshctl.runtime.transports.data_plane import DataPlane
from meshctl.runtime.transports.errors import PeerLost, ProtocolError
from meshctl.runtime.transports.transport import Transport

HEAD = struct.Struct("<BIiq")
"""The beginning of a message: its kind, the sender's generation, a tag, and the size of the body in bytes."""
GENERATION = struct.Struct("<I")


class Kind(IntEnum):
    HELLO = 0
    """Body: the receiver's generation, then the run's token. `tag` is the sender's job rank."""
    FRAME = 1
    """Body: a frame."""
    CREDIT = 2
    """A slot of the tag is free."""
    GOODBYE = 3
    LOST = 4
    """The sender ends because the job rank `tag` is lost."""
    OUT_OF_BAND = 5
    """Body: tensors that belong to the next frame: within a node their places (`out_of_band`), else the size
    in bytes of one tensor that a transfer between devices brings."""
    CLEAR_TO_SEND = 6
    """The next transfer between devices may begin."""
    BLOCK = 7
    """Body: the place of a frame in shared memory. The kinds from here on are those of a node."""
    WRITE = 8
    """As BLOCK: an invitation to write to the frame."""
    FREE = 9
    """Body: the use, the number and the tag of a block whose last view has died."""
    DROP = 10
    """Body: the use and the number of a block that is not used any more."""
    DEVICE = 11
    """Body: one out-of-band tensor on a device (`device_buffers`)."""


class Message(NamedTuple):
    kind: int
    generation: int
    tag: int
    body: Tensor | bytes = b""
    files: Sequence[int] = ()
    """Files that come with the message, within a node."""

    @property
    def data(self) -> bytes:
        """The body as bytes."""
        return self.body if isinstance(self.body, bytes) else bytes_of(self.body)


class PeerConnection:
    """One connection to a peer."""

    def __init__(self, sock: socket.socket, job_rank: int = -1, generation: int = 0) -> None:
        """`job_rank` is the peer's; -1 until an accepted connection has introduced itself."""
        self.sock, self.job_rank, self.generation = sock, job_rank, generation
        self.is_outgoing = job_rank >= 0
        """True if this process has opened it."""
        self.has_left = False
        """True if the peer has said goodbye."""


Connection = TypeVar("Connection", bound=PeerConnection)
Action = Callable[[Any, Any, Message], None]
"""The method of a transport that acts on a message of a connection."""


class PeerTransport(Transport, Generic[Connection]):
    """A transport over sockets."""

    def __init__(self, data_plane: DataPlane, token: str) -> None:
        """`token` is the run's; a connection without it is refused."""
        self._data_plane, self._token = data_plane, token.encode()
        self._job_rank = data_plane.job_rank
        self._generation = data_plane.generation_of(self._job_rank)
        self._addresses: dict[int, str] = {}
        self._to: dict[int, Connection] = {}
        self._from: dict[int, Connection] = {}
        self._is_leaving = False

    @property
    def _connections(self) -> list[Connection]:
        return [*self._to.values(), *self._from.values()]

    # The methods of each kind of socket

    def connect(self, addresses: Mapping[int, str]) -> None:
        """Registers where peers listen. A connection is opened when there is something to send."""
        raise NotImplementedError

    def _dial(self, address: str) -> socket.socket:
        """Returns a socket that is connected to a peer. Raises `OSError`."""
        raise NotImplementedError

    def _new(self, sock: socket.socket, job_rank: int = -1, generation: int = 0) -> Connection:
        raise NotImplementedError

    def _watch(self, connection: Connection) -> None:
        """Reads the messages of a connection from now on."""
        raise NotImplementedError

    def _send(self, connection: Connection, kind: Kind, tag: int = 0, body: bytes = b"") -> None:
        """Sends a message without waiting for the peer's program."""
        raise NotImplementedError

    def _shut(self, connection: Connection) -> None:
        """Stops reading and ends the connection."""
        raise NotImplementedError

    # Sending

    def _connection_to(self, peer: int) -> Connection:
        """Returns the connection to a peer; it is opened when there is something to send. Raises
        `PeerLost`."""
        if connection := self._to.get(peer):
            return connection
        generation, address = self._data_plane.generation_of(peer), self._addresses[peer]
        try:
            connection = self._to[peer] = self._new(self._dial(address), peer, generation)
        except OSError as error:
            if not self._data_plane.context.has_left(peer):
                raise self._data_plane.peer_lost(peer, self._unreachable(address, error)) from None
            connection = self._to[peer] = self._new(socket.socket(), peer, generation)
            connection.has_left = True
            connection.sock.close()  # what is sent to it from now on is dropped
            return connection
        self._watch(connection)
        self._send(connection, Kind.HELLO, self._job_rank, GENERATION.pack(generation) + self._token)
        return connection

    def _unreachable(self, address: str, error: OSError) -> str:
        return "is gone"

    def credit(self, to: int, tag: int) -> None:
        if connection := self._from.get(to):  # none where the peer has been replaced
            self._send(connection, Kind.CREDIT, tag)

    # Receiving

    def _actions_of(self, connection: Connection) -> Mapping[int, Action]:
        if connection.job_rank < 0:
            return self.GREETING
        return self.ANSWERS if connection.is_outgoing else self.ACTIONS

    def dispatch(self, connection: Connection, message: Message) -> None:
        """Acts on a message; drops those of processes that have been replaced. Raises `ProtocolError`."""
        if connection.job_rank >= 0 and message.generation != connection.generation:
            return
        action = self._actions_of(connection).get(message.kind)
        if action is None:
            raise ProtocolError(f"kind {message.kind}")
        action(self, connection, message)

    def _on_hello(self, connection: Connection, message: Message) -> None:
        data, peer, plane = message.data, message.tag, self._data_plane
        is_known = peer in self._addresses and peer not in self._from
        if not hmac.compare_digest(data[GENERATION.size :], self._token) or not is_known:
            raise ProtocolError("a wrong greeting")
        [wanted] = GENERATION.unpack_from(data)
        if (message.generation, wanted) != (plane.generation_of(peer), self._generation):
            raise ProtocolError("a greeting of another generation")
        connection.job_rank, connection.generation = peer, message.generation
        self._from[peer] = connection
        if self._is_leaving:  # the peer began a step that the end of the run dropped
            self._send(connection, Kind.GOODBYE)

    def _on_credit(self, connection: Connection, message: Message) -> None:
        self._data_plane.on_credit(connection.job_rank, message.tag, connection.generation)

    def _on_clear_to_send(self, connection: Connection, message: Message) -> None:
        if self._data_plane.transfers is None:
            raise ProtocolError(f"kind {message.kind}")
        self._data_plane.transfers.clear_to_send(connection.job_rank)

    def _on_goodbye(self, connection: Connection, message: Message) -> None:
        connection.has_left = True
        self._data_plane.notify()

    def _on_lost(self, connection: Connection, message: Message) -> None:
        self._data_plane.on_peer_lost(message.tag, connection.job_rank)

    GREETING: Mapping[int, Action] = {Kind.HELLO: _on_hello}
    """Kind -> action, for an accepted connection whose peer is not known yet."""
    ACTIONS: Mapping[int, Action] = {Kind.GOODBYE: _on_goodbye, Kind.LOST: _on_lost}
    """Kind -> action, for messages from the process that opened the connection."""
    ANSWERS: Mapping[int, Action] = {
        Kind.CREDIT: _on_credit,
        Kind.CLEAR_TO_SEND: _on_clear_to_send,
        **ACTIONS,
    }
    """Kind -> action, for messages from the process that accepted the connection."""

    # Ends

    def _on_end(self, connection: Connection, how: str = "is gone") -> None:
        self._shut(connection)
        if connection.job_rank < 0 or connection.has_left:
            return
        connection.has_left = self._data_plane.context.has_left(connection.job_rank)
        if connection.has_left:
            self._data_plane.notify()
        else:
            self._lose(connection, how)

    def _refuse(self, connection: Connection, error: Exception) -> None:
        """Ends a connection with a peer that has violated the protocol."""
        self._shut(connection)
        if connection.job_rank >= 0:
            self._lose(connection, f"sent bytes that are not a message: {error}")

    def _lose(self, connection: Connection, how: str) -> None:
        """Records the loss of a connection's peer, unless its processes have been replaced."""
        peer = connection.job_rank
        if connection in (self._to.get(peer), self._from.get(peer)):
            self._data_plane.fail(self._data_plane.peer_lost(peer, how))

    def _on_thread_error(self, error: Exception) -> None:
        self._data_plane.fail(PeerLost(f"the connections to other workers broke: {error!r}"))

    def reopen(self, job_ranks: Iterable[int]) -> None:
        for peer in job_ranks:
            for connections in (self._to, self._from):
                if connection := connections.pop(peer, None):
                    self._shut(connection)
            self._addresses.pop(peer, None)

    def announce_loss(self, lost: int) -> None:
        for connection in self._connections:
            self._send(connection, Kind.LOST, lost)

    def leave(self) -> None:
        self._is_leaving = True
        for connection in self._connections:
            self._send(connection, Kind.GOODBYE)

    def _finish(self) -> None:
        """Waits until all messages have left. Raises `PeerLost`."""
        raise NotImplementedError

    def close(self) -> None:
        """Waits for the goodbyes of all peers: nothing is in flight then. Raises `PeerLost`."""
        try:
            self._data_plane.wait_until(lambda: all(each.has_left for each in self._connections))
            self._finish()
        finally:
            self.release()
