"""The proof by which two processes of a run authenticate each other.

It is an HMAC-SHA256 of the nonces of both under the token of the run. Each side learns that the other has the
token, and the token itself is never sent.
"""

from __future__ import annotations

import hmac
import secrets

TOKEN_VARIABLE = "MESHCTL_TOKEN"
"""The environment variable that holds the token of a run. Workers and node processes that are started by exec
read it and remove it."""


def new_token() -> str:
    return secrets.token_hex(32)


def new_nonce() -> str:
    return secrets.token_hex(16)


def proof_of(token: str, *words: str) -> str:
    """Returns the proof over `words`: the role of the side that proves, and the nonces of both sides."""
    return hmac.new(token.encode(), "\0".join(words).encode(), "sha256").hexdigest()


def is_proof(given: object, expected: str) -> bool:
    return isinstance(given, str) and hmac.compare_digest(given.encode(), expected.encode())
