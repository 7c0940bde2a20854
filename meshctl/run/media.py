"""The images, histograms and tables that components log, each in a file of its own.

    media/step-7/rollouts.samples.table.json         the table that stage `rollouts` has logged in step 7
    media/step-7/rollouts.samples@2.table.json       the second one of that name in the step
    media/step-7/metrics.weights.histogram.json
    media/step-7/exam.board.png

The folder describes itself: events only announce what is new. A worker writes each file whole.
"""

from __future__ import annotations

import re
import shutil
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, unquote

from meshctl.dataclass import dataclass
from meshctl.run.directory import RunDir
from meshctl.run.reading import bytes_of, decoded, text_of

Kind = Literal["image", "histogram", "table"]
SUFFIXES: Mapping[Kind, str] = {"image": ".png", "histogram": ".histogram.json", "table": ".table.json"}
MAX_NAME = 200
"""Maximum number of characters of a name in a file name."""
_FILE = re.compile(r"(?P<name>[^@]+?)(@(?P<number>\d+))?(?P<suffix>\.png|\.histogram\.json|\.table\.json)")
_STEP = re.compile(r"step-(\d{1,15})")
PNG = b"\x89PNG\r\n\x1a\n"
CAPTION = b"iTXtDescription\0\0\0\0\0"
"""The beginning of the chunk with the caption in a PNG file of `png`."""


@dataclass(frozen=True)
class Media:
    """An image, a histogram or a table of one step."""

    step: int
    name: str
    """STAGE.NAME, as for a metric."""
    kind: Kind
    path: Path
    number: int = 1
    """Its number among those of the same name in the step, from 1."""

    def read(self) -> Any:
        """Returns {"columns": [...], "rows": [[...]]} of a table, {"counts": [...], "edges": [...], ...} of a
        histogram, and the bytes of the PNG file of an image. Raises `OSError` and `ValueError`."""
        if self.kind == "image":
            return bytes_of(self.path)
        return decoded(text_of(self.path))

    @property
    def caption(self) -> str:
        """The caption of an image; empty without one."""
        content = bytes_of(self.path) if self.kind == "image" else b""
        at = content.find(CAPTION, 0, 64)
        if at < 0:
            return ""
        (length,) = struct.unpack(">I", content[at - 4 : at])
        return content[at + len(CAPTION) : at + 4 + length].decode(errors="replace")


def media_path(run: RunDir, step: int, name: str, kind: Kind, number: int = 1) -> Path:
    """Returns the path of a file. Raises `ValueError` for a name that is too long."""
    text = quote(name, safe="[](),=+ ")
    if len(text) > MAX_NAME:
        raise ValueError(f"the name {name[:40]!r}... is too long for a file: at most {MAX_NAME} characters")
    again = f"@{number}" if number > 1 else ""
    return run.media / f"step-{step}" / f"{text}{again}{SUFFIXES[kind]}"


def media_at(path: Path) -> Media | None:
    """Returns what a file contains, by its path; None for a file of another name."""
    found, step = _FILE.fullmatch(path.name), _STEP.fullmatch(path.parent.name)
    if not found or not step or path.name.startswith("."):
        return None
    kind = next(kind for kind, suffix in SUFFIXES.items() if suffix == found["suffix"])
    return Media(int(step[1]), unquote(found["name"]), kind, path, int(found["number"] or 1))


def media_of(run: RunDir, name: str | None = None) -> list[Media]:
    """Returns the media of a run, or those of one name, by step."""
    found = [one for path in run.media.glob("step-*/*") if (one := media_at(path))]
    return sorted(
        (one for one in found if name in (None, one.name)), key=lambda one: (one.step, one.name, one.number)
    )


def forget_media(run: RunDir, after: int) -> None:
    """Deletes the media of later steps before these run again."""
    for folder in run.media.glob("step-*"):
        if (step := _STEP.fullmatch(folder.name)) and int(step[1]) > after:
            shutil.rmtree(folder, ignore_errors=True)


# PNG


def png(width: int, height: int, channels: int, rows: bytes, caption: str = "") -> bytes:
    """Returns a PNG file of 8 bits per channel: grey, RGB or RGBA for 1, 3 or 4 channels. `rows` are the
    bytes of all rows, each with a 0 before it."""
    color = {1: 0, 3: 2, 4: 6}[channels]
    head = struct.pack(">IIBBBBB", width, height, 8, color, 0, 0, 0)
    text = _chunk(CAPTION[:4], CAPTION[4:] + caption.encode()) if caption else b""
    data = _chunk(b"IDAT", zlib.compress(rows, 6))
    return b"".join([PNG, _chunk(b"IHDR", head), text, data, _chunk(b"IEND", b"")])


def size_of(content: bytes) -> tuple[int, int]:
    """Returns width and height of a PNG file of `png`, in pixels."""
    width, height = struct.unpack(">II", content[16:24])
    return width, height


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
