"""Messages on one TCP connection: a head (kind, generation, tag, bytes), then the bytes, which are sent from
and received into the memory where they stay."""

from __future__ import annotations

import ipaddress
import struct
from enum import IntEnum
from typing import NamedTuple

from torch import Tensor

from meshctl.dataclass import dataclass

HEAD = struct.Struct("<BIiq")


class Head(NamedTuple):
    kind: int
    generation: int
    tag: int
    nbytes: int


class Message(NamedTuple):
    head: Head
    memory: Tensor
    """uint8 `[nbytes]`."""


class Kind(IntEnum):
    HELLO = 0
    """Body: the receiver's generation, then the run's token. `tag` is the sender's job rank."""
    FRAME = 1
    CREDIT = 2
    """A slot of the tag is free."""
    GOODBYE = 3
    LOST = 4
    """The sender ends because the job rank `tag` is lost."""
    OUT_OF_BAND = 5
    """Body: the size in bytes of one tensor that belongs to the next frame. A transfer between devices brings
    it."""
    CLEAR_TO_SEND = 6
    """The next transfer between devices may begin."""


@dataclass(frozen=True)
class Address:
    """The address at which a job rank listens."""

    host: str
    """An IP address."""
    port: int

    def __str__(self) -> str:
        return f"{self.host} {self.port}"

    @classmethod
    def parse(cls, text: str) -> Address:
        host, _, port = text.partition(" ")
        return cls(host, int(port))

    @property
    def is_loopback(self) -> bool:
        return ipaddress.ip_address(self.host).is_loopback
