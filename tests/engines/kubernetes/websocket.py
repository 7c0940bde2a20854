"""The server's side of `kubectl exec`: a WebSocket whose first byte of each message is the channel."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from http.server import BaseHTTPRequestHandler
from typing import Any

PROTOCOL = "v5.channel.k8s.io"
STDIN, STDOUT, STDERR, ERROR, CLOSE = 0, 1, 2, 3, 255
_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
TEXT, BINARY, CLOSING, PING = 1, 2, 8, 9


def accept(request: BaseHTTPRequestHandler) -> None:
    """Answers the upgrade of a request."""
    key = request.headers["Sec-WebSocket-Key"] + _GUID
    request.send_response(101)
    request.send_header("Upgrade", "websocket")
    request.send_header("Connection", "Upgrade")
    request.send_header(
        "Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
    )
    request.send_header("Sec-WebSocket-Protocol", PROTOCOL)
    request.end_headers()
    request.wfile.flush()


def send(request: BaseHTTPRequestHandler, channel: int, data: bytes) -> None:
    """Sends a message of a channel."""
    _frame(request, BINARY, bytes([channel]) + data)


def _frame(request: BaseHTTPRequestHandler, kind: int, payload: bytes) -> None:
    size = len(payload)
    length = bytes([size]) if size < 126 else b"\x7e" + struct.pack(">H", size)
    if size >= 1 << 16:
        length = b"\x7f" + struct.pack(">Q", size)
    request.wfile.write(bytes([0x80 | kind]) + length + payload)
    request.wfile.flush()


def finish(request: BaseHTTPRequestHandler, code: int) -> None:
    """Reports the exit code of the command, and closes the connection."""
    status: dict[str, Any] = {"metadata": {}, "status": "Success"}
    if code:
        status = {
            "metadata": {},
            "status": "Failure",
            "reason": "NonZeroExitCode",
            "message": f"command terminated with exit code {code}",
            "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
        }
    send(request, ERROR, json.dumps(status).encode())
    _frame(request, CLOSING, struct.pack(">H", 1000))


def receive(request: BaseHTTPRequestHandler) -> tuple[int, bytes] | None:
    """Returns the channel and the data of the next message; None when the client has closed the connection."""
    while True:
        head = request.rfile.read(2)
        if len(head) < 2:
            return None
        kind, size = head[0] & 0x0F, head[1] & 0x7F
        if size == 126:
            (size,) = struct.unpack(">H", request.rfile.read(2))
        elif size == 127:
            (size,) = struct.unpack(">Q", request.rfile.read(8))
        mask = request.rfile.read(4) if head[1] & 0x80 else bytes(4)
        payload = bytes(byte ^ mask[index % 4] for index, byte in enumerate(request.rfile.read(size)))
        if kind == CLOSING:
            return None
        if kind == PING:
            _frame(request, 10, payload)
        elif kind in (TEXT, BINARY) and payload:
            return payload[0], payload[1:]
