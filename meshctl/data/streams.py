"""Sources whose rows are read in order, without an index: `ChatStream`, `TextStream` and `PairsStream`.

A stream has no length, so `run.steps` or the end of the stream ends the run. Every rank reads all rows and
encodes its own samples. Where the number of samples depends on the lengths of rows (`pack`,
each `over_length` but `error`), every rank encodes all rows. Rows in which nothing is left to learn are left
out. The number of a sample determines its content.
A resumed run reads all earlier rows again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import count, islice
from typing import Any, ClassVar

import torch

from meshctl.argument_limits import check_arguments
from meshctl.data import tables
from meshctl.data.checks import STREAM
from meshctl.data.encoders import Encoder, Example
from meshctl.data.errors import DataError, RowError, errors_at
from meshctl.data.examples import (
    LEFT_OUT,
    NOTHING,
    PACKED,
    Kept,
    cut,
    is_learned,
    joined,
    length_of,
    limit_of,
    packed,
    ragged,
)
from meshctl.data.prefetch import Prefetch
from meshctl.data.rows import Permutation, Row, Rows, check_hub_name, files_of, open_rows, saved_folder
from meshctl.data.source import ChatRows, PairsRows, TextRows
from meshctl.data.tokenizer import Tokenizer
from meshctl.dataclass import dataclass
from meshctl.runtime.batch.batch import Batch, Column
from meshctl.runtime.component import Component, endpoint

log = logging.getLogger(__name__)
WINDOW = 512
"""The number of parts of rows that are packed together."""


@dataclass(frozen=True)
class Sample:
    """A sample of a stream: a row, and its example if the row is already encoded."""

    place: str
    row: Row
    example: Example | None = None


class Stream(Component):
    """Reads examples from rows in order. A subclass sets `ENCODER`."""

    ENCODER: ClassVar[type[Encoder]]
    EXTRA = "hf"

    def __init__(
        self,
        path: str,
        tokenizer: str,
        *,
        split: str = "train",
        fields: Mapping[str, str] | None = None,
        keep: Sequence[str] = (),
        learn: str = "",
        max_length: int | None = None,
        over_length: str = "error",
        pack: bool = False,
        shuffle: bool = True,
        buffer: int = 1000,
        seed: int = 0,
        repeat: bool = False,
        tokens: Sequence[str] = (),
        chat_template: str = "",
        template_args: Mapping[str, Any] | None = None,
        workers: int = 0,
    ) -> None:
        """Opens the stream. Raises `DataError` for unreadable data and for invalid arguments.

        The arguments are those of `Source` without `holdout` and `held_out`, and two others:

        buffer: the number of rows in memory from which `shuffle` draws the next row. Rows of jsonl files and
            saved datasets can be read by number, so they are shuffled as a whole.
        repeat: whether the stream begins again at its end; otherwise the run ends there.
        """
        check_arguments(STREAM, locals(), DataError)
        self._repeat, self._pack = repeat, pack
        self._limit = limit_of(self.ENCODER, max_length, over_length, pack)
        loaded = Tokenizer(tokenizer, chat_template, template_args, tokens)
        self._encode = self.ENCODER(loaded, learn, fields or {})
        if keep and over_length == "split":
            raise DataError("`keep` needs one sample for each row: leave out `over_length: split`")
        self._rows, self._epoch = _opened(path, split, seed, buffer if shuffle else 0)
        first = next(self._epoch(0), None)
        if first is None:
            raise DataError(f"{path} has no rows")
        self._kept = [Kept.of(name, name, first[1]) for name in keep]
        self._is_counted, self._lost = pack or self._limit.changes_count(self._encode.learn), 0
        self._position, self._samples = 0, self._all_samples()
        self._prefetch = Prefetch(self._columns, workers)

    @endpoint
    def next(self, samples: range) -> Batch | None:
        """Returns the samples of these numbers. At the end of the stream it returns fewer samples, and after
        the end None."""
        columns = self._prefetch(samples)
        if columns is None:
            return None
        batch = Batch(columns)
        return Batch(columns, ids=torch.arange(samples.start, samples.start + len(batch)))

    def close(self) -> None:
        self._prefetch.close()

    def _columns(self, samples: range) -> dict[str, Column] | None:
        found = self._read(samples)
        if samples and not found:
            return None
        names = (*self.ENCODER.COLUMNS, *(PACKED if self._pack else ()))
        columns = ragged([self._example(sample) for sample in found], names)
        for kept in self._kept:
            columns[kept.name] = kept.column([self._kept_value(kept, sample) for sample in found])
        return columns

    def _read(self, samples: range) -> list[Sample]:
        """Returns the samples of these numbers. If they lie before the current position, the stream is read
        again from its first row."""
        if samples.start < self._position:
            self._position, self._samples = 0, self._all_samples()
        for _ in islice(self._samples, samples.start - self._position):
            pass
        found = list(islice(self._samples, len(samples)))
        self._position = samples.stop
        return found

    def _all_samples(self) -> Iterator[Sample]:
        for epoch in count() if self._repeat else range(1):
            rows, is_empty = self._expanded(self._epoch(epoch)), True
            samples = (Sample(place, row) for place, row in rows)
            for sample in self._encoded(rows) if self._is_counted else samples:
                yield sample
                is_empty = False
            if is_empty:
                raise DataError(f"no row of at most {self._limit.size} tokens is left")

    def _expanded(self, rows: Iterator[tuple[str, Row]]) -> Iterator[tuple[str, Row]]:
        """Yields the samples of rows that have several, each with its place."""
        if (parts := self._encode.parts) is None:
            yield from rows
            return
        for place, row in rows:
            with errors_at(place):
                found = parts(row)
            yield from ((f"{place}, turn {number}", part) for number, part in enumerate(found, 1))

    def _encoded(self, rows: Iterator[tuple[str, Row]]) -> Iterator[Sample]:
        parts = self._parts(rows)
        if not self._pack or self._limit.size is None:
            yield from parts
            return
        while window := list(islice(parts, WINDOW)):
            examples = [part.example for part in window if part.example is not None]
            for pack in packed(list(map(length_of, examples)), self._limit.size):
                first = window[pack[0]]
                yield Sample(first.place, first.row, joined([examples[index] for index in pack]))

    def _parts(self, rows: Iterator[tuple[str, Row]]) -> Iterator[Sample]:
        for place, row in rows:
            with errors_at(place):
                example = self._encode(row)
            if self._is_counted and not self._limit.keeps_labels(example):
                self._lost += 1
                if not str(self._lost).strip("0")[1:]:  # at 1, 2, ..., 10, 20, ...
                    log.warning(LEFT_OUT, self._lost, self._limit.shown, place)
                continue
            if not is_learned(example):
                help = "write `max_length` with `over_length: drop` to leave such rows out"
                raise RowError(place, f"{NOTHING}; {help}")
            with errors_at(place):
                pieces = self._limit.pieces(length_of(example))
            yield from (Sample(place, row, cut(example, tokens)) for tokens in pieces)

    def _example(self, sample: Sample) -> Example:
        if sample.example is not None:
            return sample.example
        [only] = self._parts(iter([(sample.place, sample.row)]))
        return only.example or {}

    def problems(self) -> Iterator[str]:
        """Yields for each row why it cannot be used, with its place, or an empty text."""
        if self._rows is None:
            yield from (self._problem(place, row) for place, row in self._epoch(0))
            return
        for number in range(len(self._rows)):
            try:
                row = self._rows[number]
            except RowError as error:
                yield str(error)
            else:
                yield self._problem(self._rows.place(number), row)

    def _problem(self, place: str, row: Row) -> str:
        try:
            with errors_at(place):
                self._limit.pieces(length_of(example := self._encode(row)))
                for kept in self._kept:
                    kept.value(row)
        except RowError as error:
            return str(error)
        return "" if is_learned(example) else f"{place}: {NOTHING}"

    def _kept_value(self, kept: Kept, sample: Sample) -> Any:
        with errors_at(sample.place):
            return kept.value(sample.row)


class ChatStream(ChatRows, Stream):
    """Reads the rows of `Chat` in order."""


class TextStream(TextRows, Stream):
    """Reads the rows of `Text` in order."""


class PairsStream(PairsRows, Stream):
    """Reads the rows of `Pairs` in order."""


def _opened(path: str, split: str, seed: int, buffer: int) -> tuple[Rows | None, tables.Epoch]:
    """Returns the rows, if they can be read by number, and the function that yields those of an epoch. If
    `buffer` is 0, each epoch has the order of the data."""
    files = [] if saved_folder(path) else files_of(path, split)
    if files and all(file.suffix == ".parquet" for file in files):
        return None, partial(tables.parquet_stream, files, seed, buffer)
    if not files and not saved_folder(path):
        check_hub_name(path)
        return None, tables.hub_stream(path, split, seed=seed, buffer=buffer)
    rows = open_rows(path, split)

    def epoch(number: int) -> Iterator[tables.PlacedRow]:
        for index in Permutation(len(rows), seed, number) if buffer else range(len(rows)):
            yield rows.place(index), rows[index]

    return rows, epoch
