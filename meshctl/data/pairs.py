"""`Pairs`: two answers to a prompt, of which the first is preferred."""

from __future__ import annotations

from meshctl.data.encoders import PairsEncoder
from meshctl.data.source import Source


class Pairs(Source):
    """Reads rows with `prompt`, `chosen` and `rejected`, texts or lists of messages."""

    ENCODER = PairsEncoder
