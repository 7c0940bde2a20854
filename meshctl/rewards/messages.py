"""Messages between a component and its worker processes: plain data as msgpack behind its length.

Nothing is pickled. A tuple stays a tuple, and an integer may have any size, as in the columns of a batch.
"""

from __future__ import annotations

import socket
import struct
from typing import Any

import msgpack

LENGTH = struct.Struct("!Q")
TUPLE, LONG = 1, 2
"""msgpack's extension types."""


class MessageError(ValueError):
    """Raised for a value that is not plain data."""


def send(connection: socket.socket, value: Any) -> None:
    """Sends a value. Raises `MessageError` for a value that is not plain data, and OSError."""
    try:
        data = _packed(value)
    except (ValueError, OverflowError, RecursionError) as error:
        raise MessageError(f"a value cannot be sent to a worker process: {error}") from None
    connection.sendall(LENGTH.pack(len(data)) + data)


def receive(connection: socket.socket) -> Any:
    """Returns the next value. Raises `EOFError` if the other side has closed the connection."""
    (length,) = LENGTH.unpack(_read(connection, LENGTH.size))
    return _unpacked(_read(connection, length))


def _read(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        try:
            part = connection.recv(min(size - len(data), 1 << 20))
        except ConnectionResetError:
            part = b""
        if not part:
            raise EOFError("the connection is closed")
        data += part
    return bytes(data)


def _packed(value: Any) -> bytes:
    packed: bytes = msgpack.packb(value, default=_extension, strict_types=True)
    return packed


def _extension(value: Any) -> Any:
    """Returns the form in which msgpack encodes a value that it does not know. Raises `MessageError`."""
    if isinstance(value, tuple):
        return msgpack.ExtType(TUPLE, _packed(list(value)))
    if isinstance(value, int):
        return msgpack.ExtType(LONG, int(value).to_bytes(value.bit_length() // 8 + 1, "big", signed=True))
    plain: tuple[Any, ...] = (str, float, list, dict)
    for kind in plain:  # a class that is derived from plain data
        if isinstance(value, kind):
            return kind(value)
    raise MessageError(f"a {type(value).__name__} is not plain data")


def _unpacked(data: bytes) -> Any:
    return msgpack.unpackb(data, ext_hook=_value, strict_map_key=False)


def _value(code: int, data: bytes) -> Any:
    return int.from_bytes(data, "big", signed=True) if code == LONG else tuple(_unpacked(data))
