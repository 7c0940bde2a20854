"""`Chat`: chats in the template of a tokenizer, to learn what the assistant writes."""

from __future__ import annotations

from meshctl.data.encoders import ChatEncoder
from meshctl.data.source import Source


class Chat(Source):
    """Reads rows with `messages`, lists of objects with `role` and `content`, and if they have it `tools`."""

    ENCODER = ChatEncoder
