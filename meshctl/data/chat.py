"""`Chat`: chats rendered by a chat template; the tokens of the assistant are learned."""

from __future__ import annotations

from typing import ClassVar

from meshctl.data.encoders import ChatEncoder, Encoder
from meshctl.data.source import Source


class ChatRows:
    """The declarations of sources of chats."""

    ENCODER: ClassVar[type[Encoder]] = ChatEncoder
    RETURNS: ClassVar = {
        "next": ("input_ids", "labels", "args.keep", {"args.pack": ("position_ids", "segment_ids")})
    }


class Chat(ChatRows, Source):
    """Reads rows with the key `messages`, a list of objects with `role` and `content`, and the optional key
    `tools`."""
