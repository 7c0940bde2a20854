"""`Text`: plain text, to learn every token."""

from __future__ import annotations

from meshctl.data.encoders import TextEncoder
from meshctl.data.source import Source


class Text(Source):
    """Reads rows with `text`. The tokenizer's end token is appended to each."""

    ENCODER = TextEncoder
