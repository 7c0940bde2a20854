"""The certificate of a run, and sockets that are secured by it."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator

import pytest

from meshctl.network.certificate import public_key_of, signature_of
from meshctl.network.connection import Connection
from meshctl.network.sockets import PLAIN, sockets_of
from tests.hang import HANG_S

VECTORS = {
    "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60": (
        "",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f059"
        "5bbe24655141438e7a100b",
    ),
    "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb": (
        "72",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4"
        "302aeeb00d291612bb0c00",
    ),
}
"""Secret -> message, public key and signature: the first two of RFC 8032."""


@pytest.mark.parametrize("secret", VECTORS)
def test_the_signature_is_that_of_the_standard(secret: str) -> None:
    message, public, signature = map(bytes.fromhex, VECTORS[secret])
    assert public_key_of(bytes.fromhex(secret)) == public
    assert signature_of(bytes.fromhex(secret), message) == signature


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname(), timeout=HANG_S)
        server, _ = listener.accept()
        server.settimeout(HANG_S)
        with client, server:
            yield client, server


def answer(sock: socket.socket, given: list[bytes]) -> None:
    """Reads once, and sends it back; keeps an error's name. Closes the socket."""
    with sock:
        try:
            given.append(sock.recv(100))
            sock.sendall(given[0])
        except OSError as error:
            given.append(type(error).__name__.encode())


def test_both_ends_have_the_key_of_the_run(pair: tuple[socket.socket, socket.socket]) -> None:
    client, server = pair
    given: list[bytes] = []
    thread = threading.Thread(target=answer, args=(sockets_of("t", True).server(server), given))
    thread.start()
    with sockets_of("t", True).client(client) as secured:
        secured.sendall(b"hello")
        assert secured.recv(100) == b"hello"
        assert isinstance(secured, ssl.SSLSocket) and secured.version() == "TLSv1.3"
        thread.join()


@pytest.mark.parametrize(("ours", "theirs"), [("t", "other"), ("other", "t")])
def test_another_run_is_refused(pair: tuple[socket.socket, socket.socket], ours: str, theirs: str) -> None:
    client, server = pair
    given: list[bytes] = []
    secured_server = sockets_of(theirs, True).server(server)
    thread = threading.Thread(target=answer, args=(secured_server, given))
    thread.start()
    with pytest.raises(ssl.SSLError), sockets_of(ours, True).client(client) as secured:
        secured.recv(1)
    thread.join()
    assert given in ([b"SSLError"], [b"SSLCertVerificationError"])


def test_a_client_without_the_key_and_one_without_tls_read_nothing(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    client, server = pair
    given: list[bytes] = []
    secured_server = sockets_of("t", True).server(server)
    thread = threading.Thread(target=answer, args=(secured_server, given))
    thread.start()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with pytest.raises(ssl.SSLError), context.wrap_socket(client) as secured:
        secured.recv(1)
    thread.join()
    assert given == [b"SSLError"]


def test_connections_that_never_wait_exchange_messages(pair: tuple[socket.socket, socket.socket]) -> None:
    client, server = pair
    theirs = Connection(sockets_of("t", True).server(server))
    client.setblocking(False)
    ours = sockets_of("t", True).client(client, waits=False)
    while not sockets_of("t", True).handshake(ours):
        theirs.receive()
    mine = Connection(ours)
    mine.message_bytes_max = theirs.message_bytes_max = 1 << 24
    mine.send({"text": "x" * 3_000_000})
    messages: list[dict[str, object]] = []
    while not messages:
        mine.flush()
        messages = theirs.receive()
    assert messages == [{"text": "x" * 3_000_000}]
    theirs.send({"answer": 1})
    mine.end()
    while not (answers := mine.receive()):
        pass
    assert answers == [{"answer": 1}]
    while not theirs.is_closed:
        theirs.receive()
    mine.close()


def test_plain_sockets_are_themselves(pair: tuple[socket.socket, socket.socket]) -> None:
    client, server = pair
    assert sockets_of("t", False) is PLAIN
    assert PLAIN.client(client) is client and PLAIN.server(server) is server and PLAIN.handshake(client)
