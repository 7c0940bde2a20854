"""Finds the files of data and reads the first row of JSON lines, without executing anything.

A path is a file, a pattern such as `data/*.jsonl`, a folder of files, a folder of `datasets.save_to_disk`, or
the name of a dataset of the hub. It is searched for in the folders from which workers import.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from meshctl.dataclass import dataclass
from meshctl.hub_cache import DATASET_FILES, has_any, is_hub_name
from meshctl.recipe.compose.folders import contents, files, is_dir, is_file
from meshctl.split_files import files_at

JSON_LINES = (".jsonl", ".json", ".ndjson")
PARQUET, PARQUET_MARK = ".parquet", b"PAR1"
"""The suffix of a file, and the bytes with which it begins and ends."""
SPLIT_HELP = "`split` selects files by names such as `test-1.jsonl`; `holdout` takes some of the rows"
MAX_ROW_BYTES = 1 << 22
"""Maximum size of the beginning of a file in which the first row is searched."""


@dataclass(frozen=True)
class Found:
    """The result of looking for data."""

    files: tuple[Path, ...] = ()
    """The files, in order; empty if they are not known."""
    wrong: str = ""
    """The reason why there are no data; empty if there are some."""
    help: str = ""
    """The remedy, if there is a special one."""
    is_remote: bool = False
    """True if the path can only be the name of a dataset of the hub."""


def find(path: str, folders: Sequence[str], suffixes: Sequence[str], split: str = "") -> Found:
    """Finds data by the path that a source accepts. Relative paths are searched for in `folders`. `split`
    selects files; empty if it is unknown or if the source has no splits."""
    place = next((place for folder in folders if os.path.exists(place := Path(folder, path))), None)
    if place is not None and has_any(place, DATASET_FILES):
        return Found()
    found, wrong = files_at(path, folders, suffixes, split)
    if found or wrong:
        return Found(tuple(found), wrong, SPLIT_HELP if wrong.startswith("`split") else "")
    if is_hub_name(path) and Path(path).suffix not in suffixes:
        return Found(wrong=f"`{path}` is not on this machine", is_remote=True)
    return Found(wrong=f"file `{path}` does not exist")


def files_nearby(path: str, folders: Sequence[str], suffixes: Sequence[str]) -> list[str]:
    """Returns the data files in the folder of a path that does not exist. One of them may be meant."""
    above = Path(path).parent
    places = [place for folder in folders if is_dir(place := Path(folder, above))]
    return [str(above / file.name) for place in places for file in files(place, *suffixes)]


@dataclass(frozen=True)
class FirstRow:
    """The first row of a file."""

    columns: tuple[str, ...] | None = None
    """The names of its columns; None if they are unknown."""
    wrong: str = ""
    """The reason why the file has no usable first row; empty if it has one or if that is unknown."""
    is_empty: bool = False
    """True if the file has no row at all."""


def first_row(file: Path) -> FirstRow:
    """Reads the first row of a file. The columns of other formats than JSON lines are unknown."""
    if not is_file(file):
        return FirstRow(wrong=f"`{file.name}` is not a regular file")
    try:
        start = contents(file, MAX_ROW_BYTES)
    except OSError as error:
        return FirstRow(wrong=f"`{file.name}` cannot be read: {error.strerror or error}")
    if file.suffix == PARQUET:
        is_parquet = start.startswith(PARQUET_MARK)
        return FirstRow(wrong="" if is_parquet else f"`{file.name}` is not a parquet file")
    if file.suffix not in JSON_LINES:
        return FirstRow()
    return _first_line(file.name, start)


def _first_line(name: str, start: bytes) -> FirstRow:
    is_whole = len(start) <= MAX_ROW_BYTES
    for number, line in enumerate(start.split(b"\n"), 1):
        if not line.strip():
            continue
        if not is_whole and number == start.count(b"\n") + 1:
            return FirstRow()  # the row is longer than the beginning that was read
        return _columns(f"{name}:{number}", line)
    return FirstRow(is_empty=True) if is_whole else FirstRow()


def _columns(place: str, line: bytes) -> FirstRow:
    try:
        row: Any = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        return FirstRow(wrong=f"{place}: byte {error.start + 1} is not UTF-8")
    except json.JSONDecodeError as error:
        return FirstRow(wrong=f"{place}: {error.msg} at column {error.colno}")
    except RecursionError:
        return FirstRow(wrong=f"{place}: its values are nested too deeply")
    if not isinstance(row, dict):
        return FirstRow(wrong=f"{place}: a row is an object, not {type(row).__name__}")
    return FirstRow(tuple(row))
