"""The peers that are lost or have ended, as one data plane knows them. A loss concerns one peer group, and an
end one job rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from meshctl.runtime.transports.context import Context
from meshctl.runtime.transports.errors import PeerLost


class Losses:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._by_group: dict[str | None, PeerLost] = {}
        """Peer group -> its loss; under None a loss that concerns all groups."""
        self._ended: dict[int, str] = {}
        """Job ranks that have ended, and how."""

    def __bool__(self) -> bool:
        return bool(self._by_group or self._ended)

    def __iter__(self) -> Iterator[PeerLost]:
        """Yields the losses, one per peer group."""
        return iter([*self._by_group.values()])

    def check(self, peer: int, tag: int) -> None:
        """Implements `DataPlane.check`."""
        if losses := self._by_group:
            loss = losses.get(None)
            if loss is None and peer == self._context.job_rank:
                loss = next(iter(losses.values()))
            elif loss is None:
                loss = losses.get(self._context.group_of(peer))
            if loss:
                raise PeerLost(loss.how, loss.job_rank, self._context.route_of(tag)) from loss
        if peer in self._ended:
            raise self._context.peer_lost(peer, self._ended[peer], tag)

    def add(self, lost: PeerLost, also: int | None = None) -> None:
        """Records the first loss of a peer group, or of all groups where it names no job rank. `also` is a
        job rank whose group shares the loss."""
        group_of = self._context.group_of
        groups: set[str | None] = {None if lost.job_rank is None else group_of(lost.job_rank)}
        if also is not None:
            groups.add(group_of(also))
        for group in groups:
            self._by_group.setdefault(group, lost)

    def add_end(self, job_rank: int, how: str) -> None:
        self._ended.setdefault(job_rank, how)

    def forget(self, group: str, members: Iterable[int]) -> None:
        """Clears the loss of a peer group, and the ends of its members."""
        self._by_group.pop(group, None)
        for job_rank in members:
            self._ended.pop(job_rank, None)
