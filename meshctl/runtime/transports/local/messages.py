"""Messages between two processes of one node: one datagram of a unix socket each.

    kind | generation | tag | block | size | nbytes | body          with files, passed by SCM_RIGHTS

`block` is the number of a block of shared memory. `size` is the block's size in bytes where its file comes
with the message, and 0 if the receiver has the file already. `nbytes` is the size of the frame in bytes.
Kinds without a frame use some of these fields for something else.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

HEAD = struct.Struct("<BIiqqq")
HEAD_BYTES = HEAD.size
BUFFER_REF = struct.Struct("<qqqq")
"""One out-of-band tensor: number of its block, size of the block where its file comes along (else 0), offset
of the tensor in the block, size of the tensor."""
MAX_REFS, MAX_FILES = 64, 8
"""The most out-of-band tensors, and the most files, of one message."""


class Kind(IntEnum):
    HELLO = 0
    """Body: the run's token. `tag` is the sender's job rank, `block` the receiver's generation."""
    INLINE = 1
    """Body: a frame."""
    BLOCK = 2
    """A frame, which lies in a block."""
    WRITE = 3
    """An invitation to write to a frame, which lies in a block."""
    CREDIT = 4
    """A slot of the tag is free."""
    FREE = 5
    """The last view of a block has died; `tag` is its `Use`."""
    DROP = 6
    """A block is not used any more; `tag` is its `Use`."""
    GOODBYE = 7
    OUT_OF_BAND = 8
    """Body: `BUFFER_REF`s of tensors in registered buffers, for the next frame."""
    LOST = 9
    """The sender ends because the job rank `tag` is lost."""
    DEVICE = 10
    """Body: one out-of-band tensor on a device (`device_buffers`)."""
    CLEAR_TO_SEND = 11
    """The next transfer between devices may begin."""


class Use(IntEnum):
    """The use of a block."""

    FRAME = 0
    REGISTERED = 1
    """In a message `FREE`, `nbytes` is the tag of the lease."""
    DEVICE = 2


class Message(NamedTuple):
    kind: int
    generation: int
    tag: int
    block: int
    size: int
    nbytes: int
    body: bytes = b""
    files: Sequence[int] = ()
