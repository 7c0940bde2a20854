"""Errors of data that a user can correct. Their messages are shown without a traceback."""

from __future__ import annotations

from meshctl.runtime.component import ComponentError


class DataError(ComponentError):
    """Data, a tokenizer or an argument that a source cannot use."""


class RowError(DataError):
    """A row that cannot be used. The message begins with its file and line."""

    def __init__(self, place: str, problem: str) -> None:
        super().__init__(f"{place}: {problem}")
        self.place, self.problem = place, problem
