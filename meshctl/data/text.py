"""`Text`: plain texts, of which every token is learned."""

from __future__ import annotations

from typing import ClassVar

from meshctl.data.encoders import TextEncoder
from meshctl.data.source import Source


class Text(Source):
    """Reads rows with the key `text`, and appends the tokenizer's end token to each text."""

    ENCODER = TextEncoder
    COLUMNS = ("text", "args.keep")
    RETURNS: ClassVar = {
        "next": ("input_ids", "labels", "args.keep", {"args.pack": ("position_ids", "segment_ids")})
    }
