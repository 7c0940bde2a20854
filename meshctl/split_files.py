"""Selects the data files of a folder, and the files of a split by their names, as `datasets` does.

train-00000-of-00002.parquet        split `train`
train_sft-00000-of-00003.parquet    split `train_sft`
chats-test.jsonl, eval.jsonl        split `test`
val/part-0.jsonl                    split `validation`
part-0.jsonl                        split `train`, if no other file names a split
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from pathlib import Path

WORDS = {"train": "train", "training": "train"}
WORDS |= dict.fromkeys(("validation", "valid", "val", "dev"), "validation")
WORDS |= dict.fromkeys(("test", "testing", "eval", "evaluation"), "test")
"""A word in the name of a file or a folder -> the split that it names."""
WORD = re.compile(rf"(?<![^-._ 0-9])({'|'.join(WORDS)})(?![^-._ 0-9])")
SHARD = re.compile(r"(\w+(?:\.\w+)*)-\d{5}-of-\d{5}")
INFO = r"(config|dataset_infos?|dataset_dict|state|meta|metadata)\.json"
"""The names of files that describe data."""


def files_at(
    path: str, folders: Sequence[str], suffixes: Sequence[str], split: str
) -> tuple[list[Path], str]:
    """Returns the data files that a source reads, and the reason why there are none; neither if nothing is at
    `path`, a file, a folder or a pattern in the first of `folders` that has it. An empty `split` selects all
    files, and without `suffixes` each file is one of data."""
    places = [Path(folder, path) for folder in folders]
    place = next((place for place in places if os.path.exists(place)), None)
    folder = place if place is not None and os.path.isdir(place) else None
    matching = (sorted(map(Path, glob.glob(str(one)))) for one in places if glob.has_magic(str(one)))
    found = [place] if place else next((some for some in matching if some), [])
    if folder and not (found := files_in(folder, suffixes)):
        return [], f"the folder `{path}` has no {' or '.join(suffixes)} file, and no saved dataset"
    if unknown := [one for one in found if suffixes and data_suffix(one) not in suffixes]:
        return [], f"`{unknown[0].name}` is not one of {', '.join(suffixes)}"
    return of_split(found, path, split, folder) if found and split else (found, "")


def files_in(folder: Path, suffixes: Sequence[str]) -> list[Path]:
    """Returns the data files of a folder, and of those folders in it that are called `data` or name a split.
    A `.json` file beside files with other suffixes describes them."""
    inner = [one for one in _entries(folder) if (one.name == "data" or splits(one.name)) and one.is_dir()]
    found = [one for place in (folder, *inner) for one in _entries(place) if data_suffix(one) in suffixes]
    found = [one for one in found if not one.is_dir() and not re.fullmatch(INFO, one.name)]
    return [one for one in found if data_suffix(one) != ".json"] or found


def data_suffix(file: Path) -> str:
    """Returns the suffix of a file's name, without `.gz`."""
    return Path(file.stem).suffix if file.suffix == ".gz" else file.suffix


def _entries(folder: Path) -> list[Path]:
    try:
        return [folder / name for name in sorted(os.listdir(folder)) if not name.startswith(".")]
    except OSError:
        return []


def splits(name: str) -> set[str]:
    """Returns the splits that the name of a file or a folder names."""
    shard = SHARD.match(name)
    words = {shard[1]} if shard else set(WORD.findall(name))
    return words | {WORDS[word] for word in words if word in WORDS}


def of_split(files: Sequence[Path], path: str, split: str, folder: Path | None) -> tuple[list[Path], str]:
    """Returns those of the files at `path` that belong to a split, or else the reason why there are none.

    `folder` is the folder at `path`; None if `path` is a file or a pattern. If no file names a split, all of
    them belong to `train`, and to the split that `path` names. A file or a pattern that names a split itself
    can also be read as `train`, which is the default.
    """
    given = Path(path).parts[-2:]
    parts = {one: one.relative_to(folder).parts if folder else one.parts[-len(given) :] for one in files}
    named = {one: {name for part in parts[one] for name in splits(part)} for one in files}
    chosen = [one for one in files if split in named[one]]
    is_any = any(WORD.search(name) for names in named.values() for name in names)
    own = {name for part in given for name in splits(part)}
    is_default = split == "train" and (not is_any or (folder is None and bool(own)))
    if not chosen and (is_default or (not is_any and split in own)):
        return list(files), ""
    names = " and ".join(f"`{name}`" for name in sorted(set().union(*named.values())))
    why = f"the names of its files name {names}" if names else "no name of its files names a split"
    return chosen, "" if chosen else f"`split: {split}` selects no file of `{path}`: {why}"
