"""Reads files that arguments name, without executing anything: tokenizers and rows of data. Only local files
are read, also those in the cache of the hub.

    chat_template.jinja                                in the folder of a tokenizer
    tokenizer_config.json    {"chat_template": ...}    of older tokenizers
    tokenizer.json           {"model": {"vocab": {"a": 0, ...}}, "added_tokens": [{"id": 256, ...}, ...]}

The path of data is a file, a pattern such as `data/*.jsonl`, a folder of files, a folder of
`datasets.save_to_disk`, or the name of a dataset of the hub.
"""

from __future__ import annotations

import csv
import json
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from meshctl.dataclass import dataclass
from meshctl.hub_cache import DATASET_FILES, MODEL_FILES, TOKENIZER_FILES, cached_folder, has_any, is_hub_name
from meshctl.package import SHIPPED_TOKENIZERS
from meshctl.recipe.compose.folders import contents, files, is_dir, is_file
from meshctl.split_files import data_suffix, files_at

TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json")
CONFIG, TEMPLATE = "tokenizer_config.json", "chat_template"
VOCABULARY = "tokenizer.json"
MAX_CONFIG_BYTES = 1 << 24
MAX_VOCABULARY_BYTES = 1 << 26


@dataclass(frozen=True)
class Tokenizer:
    """The result of looking for a tokenizer."""

    wrong: str = ""
    """The reason why there is no usable tokenizer; empty if there is one."""
    is_remote: bool = False
    """True if it has the name of a tokenizer of the hub that is not in the cache."""
    has_template: bool = True
    folder: Path | None = None
    """The folder of its files."""


def tokenizer(name: str, folders: Sequence[str], hub: Path | None) -> Tokenizer:
    """Finds a tokenizer by the name that a source accepts: a shipped one, a folder in one of `folders`, or a
    name of the hub, which is searched in the folder `hub`."""
    if name in SHIPPED_TOKENIZERS:
        return Tokenizer(folder=SHIPPED_TOKENIZERS[name])
    places = [Path(folder, name) for folder in folders]
    found = next((place for place in places if has_any(place, TOKENIZER_FILES)), None)
    if found is None and hub and is_hub_name(name):
        found = cached_folder(hub, name, TOKENIZER_FILES)
    if found is not None:
        return _read(found, name)
    if any(map(is_dir, places)):
        return Tokenizer(f"the folder `{name}` has no tokenizer: none of {', '.join(TOKENIZER_FILES)}")
    if is_hub_name(name):
        why = f"tokenizer `{name}` is neither a local folder nor in the cache of the hub"
        return Tokenizer(why, is_remote=True)
    return Tokenizer(f"tokenizer `{name}` does not exist on this machine")


def _read(folder: Path, name: str) -> Tokenizer:
    if any(is_file(folder / file) for file in TEMPLATE_FILES):
        return Tokenizer(folder=folder)
    if not is_file(folder / CONFIG):
        return Tokenizer(has_template=False, folder=folder)
    try:
        values = json.loads(contents(folder / CONFIG, MAX_CONFIG_BYTES))
    except OSError as error:
        return Tokenizer(f"`{name}/{CONFIG}` cannot be read: {error.strerror or error}")
    except (ValueError, RecursionError) as error:
        return Tokenizer(f"`{name}/{CONFIG}` is not JSON: {error}")
    if not isinstance(values, dict):
        return Tokenizer(f"`{name}/{CONFIG}` is not a mapping")
    return Tokenizer(has_template=bool(values.get(TEMPLATE)), folder=folder)


def token_count(folder: Path) -> int:
    """Returns the highest token id of the tokenizer in a folder, plus 1; 0 if it is unknown, as it is for
    older formats."""
    try:
        values = json.loads(contents(folder / VOCABULARY, MAX_VOCABULARY_BYTES))
        vocabulary = values["model"]["vocab"]
        is_listed = isinstance(vocabulary, list)  # a list contains (token, score) in the order of the ids
        ids = [len(vocabulary) - 1] if is_listed else list(vocabulary.values())
        ids += [token["id"] for token in values.get("added_tokens") or ()]
        return int(max(ids, default=-1)) + 1
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return 0


ADAPTER = "adapter_config.json"
"""The file of an adapter's options."""


def adapter_config(name: str, folders: Sequence[str]) -> dict[str, Any] | None:
    """Returns the options of the adapter in a folder, which has no model; None if there is no such folder, or
    if the file cannot be read."""
    place = next((place for folder in folders if is_dir(place := Path(folder, name))), None)
    if place is None or not is_file(place / ADAPTER) or has_any(place, MODEL_FILES):
        return None
    try:
        values = json.loads(contents(place / ADAPTER, MAX_CONFIG_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


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
    if is_hub_name(path) and data_suffix(Path(path)) not in suffixes:
        return Found(wrong=f"`{path}` is not on this machine", is_remote=True)
    return Found(wrong=f"file `{path}` does not exist")


def files_nearby(path: str, folders: Sequence[str], suffixes: Sequence[str]) -> list[str]:
    """Returns the data files in the folder of a path that does not exist. One of them may be meant."""
    above = Path(path).parent
    places = [place for folder in folders if is_dir(place := Path(folder, above))]
    ends = [*suffixes, *(f"{one}.gz" for one in suffixes)]
    return [str(above / file.name) for place in places for file in files(place, *ends)]


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
    """Reads the first row of a file. The columns of parquet files are unknown."""
    if not is_file(file):
        return FirstRow(wrong=f"`{file.name}` is not a regular file")
    try:
        start = contents(file, MAX_ROW_BYTES)
    except OSError as error:
        return FirstRow(wrong=f"`{file.name}` cannot be read: {error.strerror or error}")
    suffix, is_whole = data_suffix(file), len(start) <= MAX_ROW_BYTES
    if file.suffix == ".gz":
        try:
            unpacking = zlib.decompressobj(wbits=31)
            start = unpacking.decompress(start, MAX_ROW_BYTES)
            is_whole &= not unpacking.unconsumed_tail
        except zlib.error:
            return FirstRow(wrong=f"`{file.name}` is not a gzip file")
    if suffix == PARQUET:
        is_parquet = start.startswith(PARQUET_MARK)
        return FirstRow(wrong="" if is_parquet else f"`{file.name}` is not a parquet file")
    if suffix == ".csv":
        lines = start.decode("utf-8-sig", errors="replace").splitlines(keepends=True)
        header = next(csv.reader(lines), [])
        return FirstRow(tuple(header), is_empty=is_whole and sum(1 for line in lines if line.strip()) < 2)
    if suffix == ".json" and start.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
        return _first_item(file.name, start, is_whole)
    if suffix not in JSON_LINES:
        return FirstRow()
    return _first_line(file.name, start, is_whole)


def _first_item(name: str, start: bytes, is_whole: bool) -> FirstRow:
    """Reads the first row of a JSON array."""
    text = start.decode("utf-8-sig", errors="replace").lstrip()[1:].lstrip()
    try:
        row, _ = ([], 0) if text.startswith("]") else json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError) as error:
        return FirstRow(wrong=f"{name}: {error}") if is_whole else FirstRow()
    return FirstRow(is_empty=True) if text.startswith("]") else _columns(name, row)


def _first_line(name: str, start: bytes, is_whole: bool) -> FirstRow:
    for number, line in enumerate(start.split(b"\n"), 1):
        if not line.strip():
            continue
        if not is_whole and number == start.count(b"\n") + 1:
            return FirstRow()  # the row is longer than the beginning that was read
        place = f"{name}:{number}"
        try:
            return _columns(place, json.loads(line.decode("utf-8-sig")))
        except UnicodeDecodeError as error:
            return FirstRow(wrong=f"{place}: byte {error.start + 1} is not UTF-8")
        except json.JSONDecodeError as error:
            return FirstRow(wrong=f"{place}: {error.msg} at column {error.colno}")
        except RecursionError:
            return FirstRow(wrong=f"{place}: its values are nested too deeply")
    return FirstRow(is_empty=True) if is_whole else FirstRow()


def _columns(place: str, row: Any) -> FirstRow:
    if not isinstance(row, dict):
        return FirstRow(wrong=f"{place}: a row is an object, not {type(row).__name__}")
    return FirstRow(tuple(row))
