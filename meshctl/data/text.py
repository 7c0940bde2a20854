"""`Text`: plain texts, of which every token is learned."""

from __future__ import annotations

from typing import ClassVar

from meshctl.data.encoders import Encoder, TextEncoder
from meshctl.data.source import Source


class TextRows:
    """The declarations of sources of texts."""

    ENCODER: ClassVar[type[Encoder]] = TextEncoder
    RETURNS: ClassVar = {
        "next": ("input_ids", "labels", "args.keep", {"args.pack": ("position_ids", "segment_ids")})
    }


class Text(TextRows, Source):
    """Reads rows with the key `text`, and appends the tokenizer's end token to each text."""
