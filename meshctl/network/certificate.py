"""The key and the certificate of a run, computed from its token.

Every process that has the token computes the same two, so nothing else has to reach the nodes, and every
engine passes the token already. The key is one of Ed25519 (RFC 8032), whose private part is any 32 bytes: a
digest of the token. The certificate (RFC 5280) is signed by itself. This module computes the public key and
one signature; the connections themselves are those of OpenSSL (`tls.py`).
"""

from __future__ import annotations

import base64
import hashlib
import hmac

PRIME = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
CURVE_D = -121665 * pow(121666, -1, PRIME) % PRIME
BASE_Y = 4 * pow(5, -1, PRIME) % PRIME
BASE_X = 15112221349535400772501151409588531511454012693041857206046113283949847762202
Point = tuple[int, int, int, int]
"""A point of the curve in extended coordinates."""
BASE: Point = (BASE_X, BASE_Y, 1, BASE_X * BASE_Y % PRIME)
NEUTRAL: Point = (0, 1, 1, 0)

ED25519 = bytes.fromhex("300506032b6570")
"""The name of the algorithm in DER."""
PRIVATE_KEY = bytes.fromhex("302e020100300506032b657004220420")
"""The beginning of a private key of Ed25519 in DER; its 32 bytes follow."""
COMMON_NAME = bytes.fromhex("0603550403")
IS_OWN_ISSUER = bytes.fromhex("a3133011300f0603551d130101ff040530030101ff")
"""The only extension: the certificate may sign others, here itself."""
SEQUENCE, SET, INTEGER, BIT_STRING, TEXT, TIME, LATE_TIME, VERSION = 0x30, 0x31, 2, 3, 0x0C, 0x17, 0x18, 0xA0
"""Tags of DER."""


def pem_of(token: str) -> str:
    """Returns the private key and the certificate of a run, as the text of a file of OpenSSL."""
    secret = _secret_of(token)
    return _pem("PRIVATE KEY", PRIVATE_KEY + secret) + _pem("CERTIFICATE", certificate_of(token))


def certificate_of(token: str) -> bytes:
    """Returns the certificate of a run in DER."""
    secret = _secret_of(token)
    public = public_key_of(secret)
    name = _der(SEQUENCE, _der(SET, _der(SEQUENCE, COMMON_NAME, _der(TEXT, b"meshctl run"))))
    signed = _der(
        SEQUENCE,
        _der(VERSION, _der(INTEGER, b"\x02")),
        _der(INTEGER, b"\x01" + hashlib.sha256(public).digest()[:15]),
        ED25519,
        name,
        _der(SEQUENCE, _der(TIME, b"200101000000Z"), _der(LATE_TIME, b"99991231235959Z")),
        name,
        _der(SEQUENCE, ED25519, _der(BIT_STRING, b"\0" + public)),
        IS_OWN_ISSUER,
    )
    return _der(SEQUENCE, signed, ED25519, _der(BIT_STRING, b"\0" + signature_of(secret, signed)))


def _secret_of(token: str) -> bytes:
    return hmac.new(token.encode(), b"meshctl: the key of the run", "sha256").digest()


def _der(tag: int, *parts: bytes) -> bytes:
    content = b"".join(parts)
    if len(content) < 128:
        return bytes([tag, len(content)]) + content
    length = len(content).to_bytes(2, "big")
    return bytes([tag, 0x82]) + length + content


def _pem(kind: str, der: bytes) -> str:
    text = base64.encodebytes(der).decode().strip()
    return f"-----BEGIN {kind}-----\n{text}\n-----END {kind}-----\n"


# Ed25519


def public_key_of(secret: bytes) -> bytes:
    scalar, _ = _expanded(secret)
    return _compressed(_times(scalar, BASE))


def signature_of(secret: bytes, message: bytes) -> bytes:
    scalar, prefix = _expanded(secret)
    public = _compressed(_times(scalar, BASE))
    nonce = _number(prefix, message)
    commitment = _compressed(_times(nonce, BASE))
    answer = (nonce + _number(commitment, public, message) * scalar) % ORDER
    return commitment + answer.to_bytes(32, "little")


def _expanded(secret: bytes) -> tuple[int, bytes]:
    digest = hashlib.sha512(secret).digest()
    scalar = int.from_bytes(digest[:32], "little") & ((1 << 254) - 8) | (1 << 254)
    return scalar, digest[32:]


def _number(*parts: bytes) -> int:
    return int.from_bytes(hashlib.sha512(b"".join(parts)).digest(), "little") % ORDER


def _times(scalar: int, point: Point) -> Point:
    found = NEUTRAL
    while scalar:
        if scalar & 1:
            found = _sum(found, point)
        point, scalar = _sum(point, point), scalar >> 1
    return found


def _sum(one: Point, other: Point) -> Point:
    a = (one[1] - one[0]) * (other[1] - other[0]) % PRIME
    b = (one[1] + one[0]) * (other[1] + other[0]) % PRIME
    c = 2 * one[3] * other[3] * CURVE_D % PRIME
    d = 2 * one[2] * other[2] % PRIME
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % PRIME, g * h % PRIME, f * g % PRIME, e * h % PRIME


def _compressed(point: Point) -> bytes:
    inverse = pow(point[2], -1, PRIME)
    x, y = point[0] * inverse % PRIME, point[1] * inverse % PRIME
    return (y | (x & 1) << 255).to_bytes(32, "little")
