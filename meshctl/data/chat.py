"""`Chat`: chats rendered by a chat template; the tokens of the assistant are learned."""

from __future__ import annotations

from meshctl.data.encoders import ChatEncoder
from meshctl.data.source import Source


class Chat(Source):
    """Reads rows with the key `messages`, a list of objects with `role` and `content`, and the optional key
    `tools`."""

    ENCODER = ChatEncoder
