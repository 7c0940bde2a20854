"""Messages between a component and its worker processes: plain data as msgpack.

Nothing is pickled. A tuple stays a tuple, and an integer may have any size, as in the columns of a batch.
"""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

import msgpack

TUPLE, LONG = 1, 2
"""msgpack's extension types."""


class MessageError(ValueError):
    """Raised for a value that is not plain data."""


def send(connection: Connection, value: Any) -> None:
    """Sends a value. Raises `MessageError` for a value that is not plain data, and OSError."""
    try:
        data = _packed(value)
    except (ValueError, OverflowError, RecursionError) as error:
        raise MessageError(f"a value cannot be sent to a worker process: {error}") from None
    connection.send_bytes(data)


def receive(connection: Connection) -> Any:
    """Returns the next value. Raises `EOFError` if the other side has closed the connection."""
    try:
        return _unpacked(connection.recv_bytes())
    except ConnectionResetError:
        raise EOFError("the connection is closed") from None


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
