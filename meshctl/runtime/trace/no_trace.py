"""The tracer of a worker whose run has no trace. It does nothing."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext


class NoTrace:
    """The tracer of a worker in a run without a trace: it records nothing."""

    def begin_step(self, step: int) -> None:
        """Begins a step, before its first part."""

    def span(self, category: str, name: str) -> AbstractContextManager[None]:
        """Records the `with` block as one span, from any thread."""
        return nullcontext()

    def weights_of(self, step: int) -> AbstractContextManager[None]:
        """Frames in the `with` block belong to weights that were sent in `step`."""
        return nullcontext()

    def end(self) -> None:
        """Writes the recorded spans, and records nothing from now on."""
