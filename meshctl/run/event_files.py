"""The names of event files. The file of a process is continued in segments, and old segments are folded.

train-0.jsonl, train-0.1.jsonl, train-0.2.jsonl, ...   the segments, in the order of writing
train-0.5.folded.jsonl                                 replaces the segments up to number 5
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from meshctl.dataclass import dataclass

SUFFIX = ".jsonl"
_NAME = re.compile(r"(?P<who>[^.]+)(?:\.(?P<number>\d{1,9}))?(?P<folded>\.folded)?\.jsonl")


@dataclass(frozen=True)
class EventFiles:
    """The event files of one process."""

    who: str
    folded: int
    """The number of the last segment that is folded; -1 if none is."""
    segments: Sequence[int]
    """The numbers of the segments that are not folded, in rising order."""

    @property
    def last(self) -> int:
        """The number of the newest segment."""
        return self.segments[-1] if self.segments else self.folded

    def names_from(self, number: int) -> list[tuple[int, str]]:
        """Returns the names of all files from a segment on, or of all with the folded one if it is negative,
        in the order of their events, each with the number of its last segment."""
        names = [(each, segment_name(self.who, each)) for each in self.segments if each >= number]
        has_folded = self.folded >= 0 and number < 0
        return [(self.folded, folded_name(self.who, self.folded)), *names] if has_folded else names


def segment_name(who: str, number: int) -> str:
    return f"{who}.{number}{SUFFIX}" if number else f"{who}{SUFFIX}"


def folded_name(who: str, number: int) -> str:
    return f"{who}.{number}.folded{SUFFIX}"


def event_files(folder: Path) -> list[EventFiles]:
    """Returns the event files of a folder by process. A segment that a folded file contains is left out: the
    process that folded it was killed before it deleted the segment."""
    folded, segments = dict[str, int](), dict[str, list[int]]()
    for name in _names(folder):
        if found := _NAME.fullmatch(name):
            who, number = found["who"], int(found["number"] or 0)
            of_process = segments.setdefault(who, [])
            if found["folded"]:
                folded[who] = max(number, folded.get(who, -1))
            else:
                of_process.append(number)
    return [
        EventFiles(who, folded.get(who, -1), sorted(n for n in numbers if n > folded.get(who, -1)))
        for who, numbers in sorted(segments.items())
    ]


def newest_segment(path: Path) -> Path:
    """Returns the file to which a process appends, given the path of its first segment."""
    who = path.name.removesuffix(SUFFIX)
    numbers = [0]
    for name in _names(path.parent):
        found = _NAME.fullmatch(name)
        if found and found["who"] == who:
            numbers.append(int(found["number"] or 0) + bool(found["folded"]))
    return path.with_name(segment_name(who, max(numbers)))


def segment_after(path: Path) -> Path:
    found = _NAME.fullmatch(path.name)
    assert found, path
    return path.with_name(segment_name(found["who"], int(found["number"] or 0) + 1))


def delete_folded(folder: Path, who: str, number: int) -> None:
    """Deletes the files of a process that its folded file with this number contains."""
    for name in _names(folder):
        found = _NAME.fullmatch(name)
        if found and found["who"] == who and int(found["number"] or 0) < number + (not found["folded"]):
            (folder / name).unlink(missing_ok=True)


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
