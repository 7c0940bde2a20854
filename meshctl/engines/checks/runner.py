"""The examination: all topics, one after another; what may hang is started first, and measured in children
meanwhile.

checks = examine(Asked(runs=Path("runs")))      # never raises, leaves nothing behind
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from meshctl.diagnostics.health import Check
from meshctl.engines.checks import (
    backends,
    devices,
    disk,
    environment,
    kernel,
    limits,
    memory,
    network,
    versions,
    with_torch,
)
from meshctl.engines.checks.options import Asked
from meshctl.engines.checks.probe import Answer, Probe, in_a_line

BUG = "this is a bug in meshctl, which says nothing of your machine"


class Measured:
    """The children, and what they answer."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.torch = Probe("meshctl.engines.checks.with_torch:tell", [], with_torch.SECONDS)
        self.kernel = kernel.begin()
        self.names = network.begin()
        self.smi = devices.begin()
        self.disk, self.folder = disk.begin(asked)

    def checks(self) -> Iterator[Check]:
        """In the order in which they are shown; a topic that cannot be looked at says so, and the next one
        comes."""
        topics: dict[str, Callable[[], Iterable[Check]]] = {
            versions.SUBJECT: lambda: versions.judge(versions.measure(self.asked, self._torch)),
            devices.SUBJECT: lambda: devices.judge(devices.measure(self.asked, self._torch, self._smi)),
            backends.SUBJECT: lambda: backends.judge(backends.measure(self.asked, self._torch)),
            network.SUBJECT: lambda: network.judge(
                network.measure((self.names[0].answer(), self.names[1].answer()))
            ),
            memory.SUBJECT: lambda: memory.judge(memory.measure()),
            limits.SUBJECT: lambda: limits.judge(limits.measure(self.asked)),
            kernel.SUBJECT: lambda: kernel.judge(kernel.measure(self.kernel.answer())),
            disk.SUBJECT: lambda: disk.judge(disk.measure(self.asked, self.disk.answer())),
            environment.SUBJECT: lambda: environment.judge(environment.measure()),
        }
        for subject, topic in topics.items():
            yield from guarded(subject, topic)

    @property
    def _torch(self) -> dict[str, object]:
        return dict(with_torch.parse(self.torch.answer()))

    @property
    def _smi(self) -> Answer:
        return self.smi.answer() if self.smi is not None else Answer()

    def close(self) -> None:
        for probe in (self.torch, self.kernel, *self.names, self.smi, self.disk):
            if probe is not None:
                probe.close()
        if not self.disk.answered:
            disk.clean(self.asked, self.folder)


def examine(asked: Asked) -> tuple[Check, ...]:
    measured = Measured(asked)
    try:
        return tuple(measured.checks())
    finally:
        measured.close()


def guarded(subject: str, topic: Callable[[], Iterable[Check]]) -> tuple[Check, ...]:
    """A border: machines differ in ways that nobody has seen, and one odd file must not hide all the rest."""
    try:
        return tuple(topic())
    except Exception as error:
        return (Check(subject, "all of it", "warning", f"could not be looked at: {in_a_line(error)}", BUG),)
