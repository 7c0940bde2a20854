"""Rows of files by number: JSON, and the sequences that other files and libraries provide.

`source.Source` makes samples from rows. A row is a mapping from names to plain data, and `place(n)` names its
file and line for messages. A file of JSON lines is split at `\\n` only, because its strings may contain the
other line separators of Unicode. The index of a file holds the offset of each line; the lines stay on disk.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import sys
import tempfile
import weakref
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, Protocol, overload

from meshctl.data import tables
from meshctl.data.errors import DataError, RowError, errors_at
from meshctl.hub_cache import DATASET_FILES, has_any, is_hub_name
from meshctl.split_files import data_suffix, files_at

Row = Mapping[str, Any]
MAX_SHOWN = 40
"""The maximum number of characters of a row that a message shows."""


class Rows(Protocol):
    """Rows that are read by number. Reading a row raises `RowError` if its content is not a valid row."""

    def __len__(self) -> int: ...
    def __getitem__(self, number: int, /) -> Row: ...
    def place(self, number: int) -> str:
        """Returns the place of a row for messages: its file, and its line or number."""
        ...


class JsonLines:
    """The rows of a file of JSON lines: one object in each line. Blank lines are skipped."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._starts, self._lines = array("q"), array("q")
        try:
            with unpacked(path) as file:
                self._file = os.dup(file.fileno())
            weakref.finalize(self, os.close, self._file)
            self._find_lines()
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}") from None

    def _find_lines(self) -> None:
        start = 0
        with open(self._file, "rb", closefd=False) as file:
            for number, line in enumerate(file, 1):  # a binary file has lines that end with \n only
                if line.strip():
                    self._starts.append(start)
                    self._lines.append(number)
                start += len(line)
        self._size = start

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, number: int) -> Row:
        start = self._starts[number]
        stop = self._starts[number + 1] if number + 1 < len(self._starts) else self._size
        # A read at an offset, since processes forked from this one share the file's position.
        line = os.pread(self._file, stop - start, start).split(b"\n", 1)[0]
        return self._parsed(line, number)

    def _parsed(self, line: bytes, number: int) -> Row:
        try:
            row = json.loads(line.decode("utf-8-sig"))
        except UnicodeDecodeError as error:
            raise RowError(self.place(number), f"byte {error.start + 1} is not UTF-8") from None
        except json.JSONDecodeError as error:
            raise RowError(self.place(number), f"{error.msg} at column {error.colno}") from None
        except RecursionError:
            raise RowError(self.place(number), "its values are nested too deeply") from None
        if not isinstance(row, dict):
            raise RowError(self.place(number), f"a row is an object, not {json.dumps(row)[:MAX_SHOWN]}")
        return row

    def place(self, number: int) -> str:
        return f"{self._path}:{self._lines[number]}"


class JsonArray:
    """The rows of a file with one JSON array of objects, which is read into memory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with unpacked(path) as file:
                self._rows = json.load(file)
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}") from None
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path} is not JSON: {error}") from None

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> Row:
        row = self._rows[number]
        if not isinstance(row, dict):
            raise RowError(self.place(number), f"a row is an object, not {json.dumps(row)[:MAX_SHOWN]}")
        return row

    def place(self, number: int) -> str:
        return f"{self._path}, row {number}"


@contextmanager
def unpacked(path: Path) -> Iterator[BinaryIO]:
    """Opens a file. The content of a `.gz` file is unpacked into a temporary file. Raises `DataError` if the
    content is not of this format."""
    with open(path, "rb") as file:
        if path.suffix != ".gz":
            yield file
            return
        with tempfile.TemporaryFile() as plain:
            try:
                shutil.copyfileobj(gzip.GzipFile(fileobj=file), plain)
            except (gzip.BadGzipFile, EOFError, zlib.error) as error:
                raise DataError(f"{path} cannot be unpacked: {error}") from None
            plain.seek(0)
            yield plain


def from_json(path: Path) -> Rows:
    """Opens a `.json` file, which has one array of objects, or one object in each line."""
    try:
        with unpacked(path) as file:
            is_array = next((line.strip() for line in file if line.strip()), b"").startswith(b"[")
    except OSError:
        is_array = False
    return JsonArray(path) if is_array else JsonLines(path)


def from_table(path: Path) -> Rows:
    """Opens a `.parquet` or `.csv` file."""
    if path.suffix != ".gz":
        return tables.from_file(path, path)
    try:
        with unpacked(path) as file:
            return tables.from_file(path, file)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None


class Concatenated:
    """The rows of all parts, one part after another."""

    def __init__(self, parts: Sequence[Rows]) -> None:
        self._parts = parts
        self._stops = list(accumulate(map(len, parts)))

    def __len__(self) -> int:
        return self._stops[-1] if self._stops else 0

    def _part(self, number: int) -> tuple[Rows, int]:
        index = bisect_right(self._stops, number)
        return self._parts[index], number - (self._stops[index - 1] if index else 0)

    def __getitem__(self, number: int) -> Row:
        part, inner = self._part(number)
        return part[inner]

    def place(self, number: int) -> str:
        part, inner = self._part(number)
        return part.place(inner)


class Selected:
    """The rows with the given numbers, out of other rows."""

    def __init__(self, rows: Rows, numbers: Sequence[int]) -> None:
        self._rows, self._numbers = rows, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, number: int) -> Row:
        return self._rows[self._numbers[number]]

    def place(self, number: int) -> str:
        return self._rows.place(self._numbers[number])


class Expanded:
    """The parts of rows, each as a row: those of the first row, then those of the second, and so on."""

    def __init__(self, rows: Rows, parts: Callable[[Row], Sequence[Row]]) -> None:
        """Reads all rows and counts their parts. A row that cannot be read is one part, which raises the
        error when it is read."""
        self._rows, self._parts = rows, parts
        self._index = [(row, part) for row in range(len(rows)) for part in range(self._count(row))]

    def _count(self, row: int) -> int:
        try:
            return len(self._parts(self._rows[row]))
        except DataError:
            return 1

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, number: int) -> Row:
        row, part = self._index[number]
        with errors_at(self._rows.place(row)):
            return self._parts(self._rows[row])[part]

    def place(self, number: int) -> str:
        row, part = self._index[number]
        return f"{self._rows.place(row)}, turn {part + 1}"


def open_rows(path: str, split: str) -> Rows:
    """Opens the rows of one or several files, of a folder, or of a dataset of the hub.

    `path` is a `.jsonl`, `.json`, `.csv` or `.parquet` file, one of them with a further suffix `.gz`, a
    pattern such as `data/*.jsonl`, a folder of such files, a folder of `datasets.save_to_disk`, or the name
    of a dataset of the hub. `split` selects the split of a
    dataset, or files by their names. A relative path is searched for in the folders of `sys.path`, of which
    the recipe's folder is the first. Raises `DataError` if nothing can be read at the path or if there are no
    rows.
    """
    rows = _opened(path, split)
    if not len(rows):
        raise DataError(f"{path} has no rows")
    return rows


def _opened(path: str, split: str) -> Rows:
    if folder := saved_folder(path):
        return tables.from_disk(folder, split)
    if files := files_of(path, split):
        return Concatenated([READERS[data_suffix(file)](file) for file in files])
    check_hub_name(path)
    return tables.from_hub(path, split)


def saved_folder(path: str) -> Path | None:
    """Returns the folder at `path` if `datasets.save_to_disk` wrote it; None otherwise."""
    place = next((place for folder in sys.path if (place := Path(folder, path)).exists()), None)
    return place if place is not None and has_any(place, DATASET_FILES) else None


def files_of(path: str, split: str) -> list[Path]:
    """Returns the files at `path` that belong to `split`; empty if nothing is at `path`. Raises `DataError`
    if there are no such files, or if one of them has another suffix."""
    files, wrong = files_at(path, sys.path, tuple(READERS), split)
    if wrong:
        raise DataError(wrong)
    return files


def check_hub_name(path: str) -> None:
    """Raises `DataError` if `path` cannot be the name of a dataset of the hub. The caller found no file at
    `path`."""
    if data_suffix(Path(path)) in READERS or not is_hub_name(path):
        raise DataError(
            f"no file {path!r} in the recipe's folder, the working directory, or where modules are found"
        )


READERS: dict[str, Any] = {
    ".jsonl": JsonLines,
    ".json": from_json,
    ".ndjson": JsonLines,
    ".parquet": from_table,
    ".csv": from_table,
}
"""Suffix of a file name without `.gz` -> function that opens the file."""


def split_off(rows: Rows, holdout: float, *, held_out: bool) -> Rows:
    """Returns the held-out rows if `held_out` is true, and all other rows if it is false, in their order.

    `holdout` is the number of held-out rows, or their fraction if it is below 1. The choice of rows depends
    only on `holdout` and the number of rows. A source with `held_out` and a source without it therefore have
    no row in common. Raises `DataError` if no row or every row would be held out. If `holdout` is 0, all rows
    are returned, and `held_out` raises `DataError`.
    """
    count = round(holdout * len(rows)) if holdout < 1 else int(holdout)
    if not holdout:
        if held_out:
            raise DataError("`held_out: true` needs `holdout`, the number or fraction of the held-out rows")
        return rows
    if not 0 < count < len(rows):
        raise DataError(f"`holdout: {holdout}` takes {count} of {len(rows)} rows")
    chosen = set(Permutation(len(rows), "holdout")[:count])
    return Selected(rows, [number for number in range(len(rows)) if (number in chosen) == held_out])


ROUNDS = 6
WORD = (1 << 64) - 1
MULTIPLIERS = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""The two multipliers of the hash function splitmix64."""


class Permutation(Sequence[int]):
    """The numbers 0 to `size` - 1 in a pseudo-random order, which `words` determine as a seed: position ->
    row in constant time and without memory, the same on every machine and with every library version.

    It is a Feistel network over the bits of a position, which is a bijection of [0, 4^k). A result beyond the
    last row is permuted again until it is one (cycle walking, Black and Rogaway, 2002).
    """

    def __init__(self, size: int, *words: object) -> None:
        self._size = size
        self._half_bits = max(1, ((max(size, 2) - 1).bit_length() + 1) // 2)
        self._mask = (1 << self._half_bits) - 1
        digest = hashlib.blake2b(repr(words).encode(), digest_size=8 * ROUNDS).digest()
        self._keys = [int.from_bytes(digest[8 * n : 8 * n + 8], "big") for n in range(ROUNDS)]

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, position: int) -> int: ...
    @overload
    def __getitem__(self, position: slice) -> list[int]: ...
    def __getitem__(self, position: int | slice) -> int | list[int]:
        if isinstance(position, slice):
            return [self[number] for number in range(*position.indices(self._size))]
        if not 0 <= position < self._size:
            raise IndexError(f"position {position} of {self._size}")
        found = self._permuted(position)
        while found >= self._size:
            found = self._permuted(found)
        return found

    def _permuted(self, number: int) -> int:
        left, right = number >> self._half_bits, number & self._mask
        for key in self._keys:
            mixed = right ^ key
            mixed = ((mixed ^ mixed >> 30) * MULTIPLIERS[0]) & WORD
            mixed = ((mixed ^ mixed >> 27) * MULTIPLIERS[1]) & WORD
            left, right = right, left ^ ((mixed ^ mixed >> 31) & self._mask)
        return left << self._half_bits | right
