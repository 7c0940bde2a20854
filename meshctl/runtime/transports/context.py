"""The facts about a job that its data planes need: the peers, their names in messages, and the maximum number
of frames in flight."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import field

import torch

from meshctl.dataclass import dataclass
from meshctl.runtime.transports.errors import OutOfMemory, PeerLost
from meshctl.runtime.transports.transport import Transfers

SLOTS = 2
"""The default number of slots of a tag, which limits its frames in flight between two job ranks. The two ends
of a tag without slots take turns, so it has at most this number of frames in flight as well."""
UNBOUNDED = 1 << 31
"""Slots of a tag that needs no bound."""

OnBroken = Callable[[int, Exception], None]
"""Called with a job rank to which, or from which, nothing can be transferred any more."""


@dataclass(frozen=True)
class Context:
    """The facts about a job that its data planes need."""

    job_rank: int
    slots: Mapping[int, int] = field(default_factory=dict)
    """Tag -> how many frames may be in flight between two job ranks; `SLOTS` where a tag is missing."""
    name_of: Callable[[int], str] = "job rank {}".format
    """Job rank -> its name in messages."""
    route_of: Callable[[int], str] = lambda tag: ""
    """Tag -> the name of its route in messages."""
    group_of: Callable[[int], str] = lambda job_rank: ""
    """Job rank -> its peer group."""
    generations: Mapping[str, int] = field(default_factory=dict)
    """Peer group -> its generation; 0 if a group is missing."""
    restartable: Set[str] = frozenset()
    """The other peer groups that restart alone after a loss."""
    has_left: Callable[[int], bool] = lambda job_rank: False
    """Returns whether a job rank has left the run in order. Called if a connection ends without a goodbye."""
    on_wait: Callable[[int, int], None] = lambda job_rank, tag: None
    """Called with the job rank and the tag for which this process begins to wait, and with (-1, -1) when the
    wait ends."""
    has_digests: bool = False
    """True if digests of sent memory are compared (`SentMemory`)."""
    device: torch.device | None = None
    """This worker's device unless it is the CPU. Tensors that come from a device are put there."""
    make_transfers: Callable[[OnBroken], Transfers] | None = None
    """Makes the transfers of this worker's device, where it has any."""

    def peer_lost(self, job_rank: int, how: str, tag: int = -1) -> PeerLost:
        """Returns the error for a lost peer. Its message is the peer's name followed by `how`; `tag` is the
        one under which this process waits for the peer."""
        return PeerLost(f"{self.name_of(job_rank)} {how}", job_rank, self.route_of(tag))

    def out_of_memory(self, nbytes: int, tag: int, why: Exception) -> OutOfMemory:
        """Returns the error for a frame that gets no memory. `nbytes` is its size with the out-of-band
        tensors."""
        route = self.route_of(tag)
        return OutOfMemory(f"cannot get {nbytes:,} bytes{f' for `{route}`' if route else ''}: {why}")
