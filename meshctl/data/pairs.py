"""`Pairs`: preferred and rejected answers to prompts."""

from __future__ import annotations

from typing import ClassVar

from meshctl.data.encoders import Encoder, PairsEncoder
from meshctl.data.source import Source


class PairsRows:
    """The declarations of sources of pairs."""

    ENCODER: ClassVar[type[Encoder]] = PairsEncoder
    RETURNS: ClassVar = {
        "next": ("chosen_input_ids", "chosen_labels", "rejected_input_ids", "rejected_labels", "args.keep")
    }


class Pairs(PairsRows, Source):
    """Reads rows with the keys `prompt`, `chosen` and `rejected`. The values are texts or lists of
    messages."""
