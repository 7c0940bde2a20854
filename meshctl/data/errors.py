"""Errors of data that a user can correct. Their messages are shown without a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from meshctl.runtime.component import ComponentError


class DataError(ComponentError):
    """Raised if a source cannot use its data, its tokenizer or an argument."""


class RowError(DataError):
    """Raised if a row cannot be used. The message begins with the row's file and line."""

    def __init__(self, place: str, problem: str) -> None:
        super().__init__(f"{place}: {problem}")
        self.place, self.problem = place, problem


@contextmanager
def errors_at(place: str) -> Iterator[None]:
    """Converts a `DataError` to the `RowError` of the row at `place`."""
    try:
        yield
    except RowError:
        raise
    except DataError as error:
        raise RowError(place, str(error)) from None
