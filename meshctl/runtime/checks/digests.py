"""`run.checks: all`: digests of what an endpoint receives, taken before and after its call.

They find writes by any means and at every size: through numpy or an address, into the items of a list, into
values that are no batches, and by a producer that goes on writing to memory which it has returned.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from meshctl.runtime.batch.batch import Batch, Ragged
from meshctl.runtime.checks.borrowed import Borrowed, IsReadOnly, never
from meshctl.runtime.errors import StageError
from meshctl.runtime.routes.inputs import Arguments
from meshctl.runtime.routes.weights import checksum
from meshctl.runtime.transports.buffers.frames import FrameError, bytes_of, pack

Digest = tuple[Any, ...]


class Digested(Borrowed):
    """The arguments of a call and their digests before it."""

    def __init__(self, endpoint: str, is_read_only: IsReadOnly = never) -> None:
        super().__init__(endpoint, is_read_only)
        self._digests: list[tuple[str, Digest]] = []

    def begin(self, arguments: Arguments) -> None:
        super().begin(arguments)
        self._digests = list(_digests(arguments))

    def end(self, arguments: Arguments) -> None:
        super().end(arguments)
        after = list(_digests(arguments))
        for before in self._digests:
            if before not in after:
                raise StageError(
                    f"{before[0]} was written during the call of `{self._endpoint}`, which borrows it: "
                    "clone() a tensor before you change it"
                )


def digest_of(value: Any) -> Digest:
    """Returns a digest of a received value; equal values have equal digests."""
    if isinstance(value, Tensor):
        return (value.dtype, value.shape, checksum(value.detach()))
    if isinstance(value, Ragged):
        return (*digest_of(value.values), *digest_of(value.offsets))
    if isinstance(value, Batch):
        return tuple((name, digest_of(column)) for name, column in value.columns.items())
    if isinstance(value, list) and any(isinstance(item, Batch) for item in value):
        return tuple(map(digest_of, value))  # a packed batch has gaps between its columns, of any bytes
    try:
        return (zlib.crc32(bytes_of(pack(value))),)
    except FrameError as error:  # an object that no route carries was put into it
        return (str(error),)


def _digests(arguments: Arguments) -> Iterator[tuple[str, Digest]]:
    """Yields the name of each column and of each other value, with its digest."""
    given: Sequence[tuple[str, Any]] = [
        *[("the input", value) for value in arguments.positional],
        *[(f"the input `{name}`", value) for name, value in arguments.named.items()],
    ]
    for place, value in given:
        if isinstance(value, Batch):
            for name, column in value.columns.items():
                yield f"column `{name}`", digest_of(column)
        else:
            yield place, digest_of(value)
