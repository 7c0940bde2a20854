"""The partitions of a route, step by step.

Most steps are partitioned as the step before. If their headers differ only in ids, they are not even decoded
again.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import add, le
from struct import Struct
from typing import Any

from meshctl.runtime.routes.end import RouteContext
from meshctl.runtime.routes.header import (
    MAX_ID,
    PartitionKey,
    ProducerHeader,
    even_format,
    partition_key,
    table_of,
)
from meshctl.runtime.routes.step import Partition
from meshctl.runtime.routes.table import are_few
from meshctl.runtime.user_modes import dispatch_mode, execute_mode
from meshctl.topology.consumers import parts_for
from meshctl.topology.samples import RouteError


class Partitions:
    """Divides the samples of one route. All ranks of both sides find the same partition."""

    def __init__(self, context: RouteContext) -> None:
        self._route, self._mesh = context.route, context.consumer.mesh
        self._execute = execute_mode(context.consumer.execute)
        self._dispatch = dispatch_mode(context.route.dispatch.mode)
        self._last: tuple[PartitionKey, Partition] | None = None
        """The last partition that may be used again, with its key."""
        self._known: _KnownTable | None = None

    def known(self, table: Any) -> tuple[Sequence[ProducerHeader], Partition] | None:
        """Returns the headers and the partition of a step whose table differs from an earlier one only in
        ids; None for any other table."""
        known = self._known
        if known is None or (headers := known.headers(table)) is None:
            return None
        return headers, known.partition

    def of(self, headers: Sequence[ProducerHeader], table: Sequence[bytes]) -> Partition | None:
        """Returns the parts of a step with a batch, or None if all producers sent plain values or ended.
        `table` has the headers as bytes."""
        is_even = self._dispatch.is_even  # a user's mode may read the ids
        key = partition_key(headers) if is_even else None
        if self._last is not None and key == self._last[0]:
            if table and all(header.schema is not None and header.schema.is_even for header in headers):
                self._known = _KnownTable(table, headers, self._last[1])
            return self._last[1]
        if all(header.schema is None for header in headers):
            return None
        source, target = self._route.source, self._route.target
        if any(header.schema is None and not header.is_end for header in headers):
            raise RouteError(f"`{source}` returned a Batch on some of its ranks, but not on all")
        modes = self._execute, self._dispatch, self._route.dispatch
        try:
            parts = parts_for(*modes, self._mesh, table_of(headers))
        except RouteError as error:
            raise RouteError(f"`{source}` produces for stage `{target}` {error}") from None
        if key is None:
            return Partition(parts, is_sent=is_even and are_few(parts))
        self._last = key, Partition(parts)
        return self._last[1]


class _KnownTable:
    """A table in which all headers need only their first ids, with the partition that follows."""

    def __init__(
        self, table: Sequence[bytes], headers: Sequence[ProducerHeader], partition: Partition
    ) -> None:
        """`headers` are those of `table`, and all of their schemas `is_even`."""
        self.partition = partition
        self._rows = Struct("<" + "".join(map(even_format, table)))
        self._schemas = [header.schema for header in headers]
        self._counts = [schema.grid[0] for schema in self._schemas if schema]
        found = self._rows.unpack(b"".join(table))
        self._kinds, self._encoded = found[::3], found[2::3]

    def headers(self, table: Any) -> list[ProducerHeader] | None:
        """Returns the headers of a table that differs only in ids, if its samples are divided in the same
        way; None for any other table."""
        try:
            rows = b"".join(table)
        except TypeError:
            return None
        if len(rows) != self._rows.size:
            return None
        found = self._rows.unpack(rows)
        firsts = found[1::3]
        if found[2::3] != self._encoded or found[::3] != self._kinds:
            return None
        if not all(map(le, map(add, firsts, self._counts), (*firsts[1:], MAX_ID))):
            return None
        return [*map(ProducerHeader, self._schemas, firsts)]
