"""The classes that a worker's progress record and data plane have while its tracer records.

The class of the existing object is changed, so all references to it see the change, and a worker that is not
traced has no cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import get_ident
from time import perf_counter
from typing import TYPE_CHECKING, Any

from torch import Tensor

from meshctl.run.progress import Activity, text_of
from meshctl.runtime.progress import Progress
from meshctl.runtime.transports.buffers.frames import Frame
from meshctl.runtime.transports.data_plane import DataPlane
from meshctl.runtime.transports.transport import Delivery, Lease

if TYPE_CHECKING:
    from meshctl.runtime.trace.tracer import Tracer


class TracedProgress(Progress):
    """A progress record whose activities, passes and collectives are spans."""

    tracer: Tracer
    _thread = 0
    _called: tuple[str, str, str, float] = ("", "", "", 0.0)
    """The operation, the process group, the call site and the begin of the collective that runs."""

    @classmethod
    def begin(cls, progress: Progress, tracer: Tracer) -> None:
        assert type(progress) is Progress
        progress.__class__ = cls
        vars(progress).update(tracer=tracer, _thread=get_ident())

    @staticmethod
    def end(progress: Progress) -> None:
        progress.__class__ = Progress

    def begin_step(self, step: int) -> None:
        super().begin_step(step)
        self.tracer.open_step(step)

    def enter(self, activity: Activity, stage: int, now: float) -> None:
        super().enter(activity, stage, now)
        self.tracer.enter(activity, stage, now)

    def take_collective_seconds(self) -> float:
        self.tracer.leave(perf_counter())
        return super().take_collective_seconds()

    def next_pass(self) -> None:
        super().next_pass()
        self.tracer.next_pass()

    def end_step(self) -> dict[str, Any]:
        found = super().end_step()
        self.tracer.end_step()
        return found

    def begin_end(self, step: int, visit: int) -> None:
        super().begin_end(step, visit)
        self.tracer.drop_step(step)

    def begin_call(self, number: int, operation: bytes, site: bytes) -> None:
        super().begin_call(number, operation, site)
        if get_ident() == self._thread:
            key = next(key for key, row in self._rows.items() if row == number)
            self._called = text_of(operation), key, text_of(site), perf_counter()

    def end_call(self) -> None:
        super().end_call()
        if get_ident() == self._thread and self._called[0]:
            (operation, key, site, begin), self._called = self._called, ("", "", "", 0.0)
            facts = {"group": key, "at": site}
            self.tracer.add("collective", operation, begin, perf_counter(), facts)

    def add_wait(self, seconds: float) -> None:
        is_own = not self._is_in_call
        super().add_wait(seconds)
        if is_own:
            now = perf_counter()
            self.tracer.add("collective", "wait for a collective of torch", now - seconds, now)


class TracedDataPlane(DataPlane):
    """A data plane whose frames are spans: from the wait for a slot until the frame is sent, and the wait for
    a frame."""

    tracer: Tracer
    _kind: type[DataPlane]
    """Its class before."""
    _leases: list[tuple[Lease, float]]
    """The leases that are not delivered yet, each with the time at which it was asked for."""
    _had_slot = 0.0
    """The end of the last wait for a slot."""

    @classmethod
    def begin(cls, data_plane: DataPlane, tracer: Tracer) -> None:
        assert isinstance(data_plane, DataPlane) and not isinstance(data_plane, TracedDataPlane)
        kind = type(data_plane)
        data_plane.__class__ = cls if kind is DataPlane else type(cls.__name__, (cls, kind), {})
        vars(data_plane).update(tracer=tracer, _leases=[], _kind=kind)

    @staticmethod
    def end(data_plane: Any) -> None:
        data_plane.__class__ = data_plane._kind

    def lease(
        self,
        to: Sequence[int],
        tag: int,
        nbytes: int,
        out_of_band: Sequence[Tensor] = (),
        writers: Sequence[int] = (),
        writer_tag: int = -1,
    ) -> Lease:
        begin = perf_counter()
        lease = super().lease(to, tag, nbytes, out_of_band, writers, writer_tag)
        self._leases.append((lease, begin))
        return lease

    def deliver(self, lease: Lease) -> None:
        begin = sent = perf_counter()
        super().deliver(lease)
        # The spans of leases that are delivered in another order would overlap, and are left out.
        if self._leases and self._leases[-1][0] is lease:
            begin = self._leases.pop()[1]
        else:
            self._leases = [one for one in self._leases if one[0] is not lease]
        nbytes = lease.frame.nbytes + sum(tensor.nbytes for tensor in lease.out_of_band)
        self.tracer.add_sent(lease.to, lease.tag, nbytes, begin, sent)

    def invite(self, lease: Lease, writer: int, tag: int) -> None:
        begin = perf_counter()
        super().invite(lease, writer, tag)
        self.tracer.add_sent([writer], tag, 0, begin, begin)

    def send_inline(self, to: Sequence[int], tag: int, frame: bytes) -> None:
        begin = perf_counter()
        super().send_inline(to, tag, frame)
        self.tracer.add_sent(to, tag, len(frame), begin, max(begin, self._had_slot))

    def send_gathered(self, to: int, tag: int, frame: Frame) -> None:
        begin = perf_counter()
        super().send_gathered(to, tag, frame)
        self.tracer.add_sent([to], tag, frame.nbytes, begin, max(begin, self._had_slot))

    def next(self, source: int, tag: int) -> Delivery:
        begin = perf_counter()
        delivery = super().next(source, tag)
        frame = delivery.frame
        nbytes = len(frame) if isinstance(frame, bytes) else frame.nbytes
        nbytes += sum(tensor.nbytes for tensor in delivery.out_of_band)
        self.tracer.add_received(source, tag, nbytes, begin)
        return delivery

    def _await_slot(self, key: tuple[int, int]) -> None:
        begin = perf_counter()
        super()._await_slot(key)
        self._had_slot = perf_counter()
        self.tracer.add("wait", f"free slot of {self.name_of(key[0])}", begin, self._had_slot)
