"""The images, histograms and tables that a component logs.

    self.log({
        "board": meshctl.Image(pixels, caption="the last game"),
        "weights": meshctl.Histogram(self.model.head.weight),
        "samples": meshctl.Table(["prompt", "answer", "reward"], rows),
    })

One rank writes them, that of data rank 0 whose numbers count, as files of the run directory (`run/media.py`).
An event announces each file, from which trackers show it.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

import torch

from meshctl.run.directory import RunDir, write_whole
from meshctl.run.events import Journal
from meshctl.run.media import Kind, media_path, png
from meshctl.text.english import counted

MAX_SIDE = 4096
"""Maximum width and height of an image in pixels."""
MAX_BINS = 512
MAX_ROWS, MAX_COLUMNS, MAX_CELL = 1_000, 100, 10_000
"""Maximum size of a table; `MAX_CELL` is the number of characters of a text in it."""
MAX_OF_STEP = 100
"""Maximum number of media of one stage in a step."""
CHANNELS = (1, 3, 4)

Content = tuple[bytes, str]
"""The bytes of a file, and a warning about what was left out; empty without one."""


class Image:
    """An image. `data` is a tensor or an array of shape H x W, H x W x C or C x H x W with 1, 3 or 4
    channels: uint8 from 0 to 255, bool, or floats from 0 to 1."""

    kind: Kind = "image"

    def __init__(self, data: Any, caption: str = "") -> None:
        self.data, self.caption = data, caption

    def content(self) -> Content:
        """Raises `TypeError` and `ValueError` for what is not an image."""
        pixels = _tensor(self.data, "an image")
        shape = list(pixels.shape)
        if pixels.ndim == 2:
            pixels = pixels.unsqueeze(-1)
        if pixels.ndim == 3 and pixels.shape[-1] not in CHANNELS and pixels.shape[0] in CHANNELS:
            pixels = pixels.permute(1, 2, 0)
        if pixels.ndim != 3 or pixels.shape[-1] not in CHANNELS or not pixels.numel():
            raise ValueError(f"an image has the shape H x W, H x W x C or C x H x W, not {shape}")
        height, width, channels = pixels.shape
        if max(height, width) > MAX_SIDE:
            return b"", f"is an image of {width} x {height} pixels, at most {MAX_SIDE} x {MAX_SIDE} are kept"
        rows = _bytes(pixels).reshape(height, width * channels)
        rows = torch.cat([torch.zeros(height, 1, dtype=torch.uint8), rows], dim=1).contiguous()
        return png(width, height, channels, rows.numpy().tobytes(), str(self.caption)), ""


class Histogram:
    """The distribution of the finite values of a tensor or an array of any shape, in `bins` equal intervals.
    Of a DTensor, it is that of this rank's part."""

    kind: Kind = "histogram"

    def __init__(self, values: Any, bins: int = 64) -> None:
        self.values, self.bins = values, bins

    def content(self) -> Content:
        """Raises `TypeError` for what is not a tensor of numbers, and `ValueError` for a number of bins."""
        if isinstance(self.bins, bool) or not isinstance(self.bins, int) or not 1 <= self.bins <= MAX_BINS:
            raise ValueError(f"a histogram has 1 to {MAX_BINS} bins, not {self.bins!r}")
        values = _tensor(self.values, "a histogram").flatten()
        total = values.numel()
        values = values.float() if values.is_floating_point() else values.double()
        values = values[values.isfinite()]
        low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 0.0)
        if low == high:
            low, high = low - 0.5, high + 0.5
        counts = torch.histc(values.cpu(), self.bins, low, high)
        width = (high - low) / self.bins
        data = {
            "counts": [int(count) for count in counts],
            "edges": [low + width * index for index in range(self.bins)] + [high],
            "sum": float(values.double().sum()),
            "sum_of_squares": float(values.double().square().sum()),
            "not_finite": total - len(values),
        }
        return _json(data), ""


class Table:
    """A table of texts and numbers, such as samples of rollouts: the names of the columns, and rows with one
    cell for each of them. A cell is text, a number, a bool or None."""

    kind: Kind = "table"

    def __init__(self, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        self.columns, self.rows = columns, rows

    def content(self) -> Content:
        """Raises `TypeError` and `ValueError` for what is not a table."""
        if isinstance(self.columns, str) or not all(isinstance(name, str) for name in self.columns):
            raise TypeError("the columns of a table are a list of names")
        columns, rows, warning = list(self.columns), list(self.rows), ""
        if len(columns) > MAX_COLUMNS:
            raise ValueError(f"a table has at most {MAX_COLUMNS} columns, not {len(columns)}")
        for number, row in enumerate(rows[:MAX_ROWS]):
            if isinstance(row, (str, Mapping)) or len(row) != len(columns):
                raise ValueError(f"row {number} of a table must have {counted(len(columns), 'cell')}")
        kept = [[_cell(cell) for cell in row] for row in rows[:MAX_ROWS]]
        if any(isinstance(cell, str) and len(cell) > MAX_CELL for row in kept for cell in row):
            warning = f"is a table with texts that are cut to {MAX_CELL} characters"
            kept = [[cell[:MAX_CELL] if isinstance(cell, str) else cell for cell in row] for row in kept]
        if left_out := len(rows) - len(kept):
            warning = f"is a table of which {counted(left_out, 'row')} are left out"
        return _json({"columns": columns, "rows": kept}), warning


class MediaWriter:
    """Writes the media that one stage logs on this rank."""

    def __init__(self, run: Path, stage: str, events: Journal, writes: bool) -> None:
        """`writes` is false on the ranks whose media do not count."""
        self._run, self._stage, self._events, self._writes = RunDir(run), stage, events, writes
        self._step = 0
        self._numbers: dict[str, int] = {}
        """Name -> how many of that name were written in the step."""
        self._warned: set[str] = set()

    def write(self, name: str, media: Image | Histogram | Table, step: int) -> None:
        """Writes one image, histogram or table. What is too large, or a full disk, is a warning. Raises
        `TypeError` and `ValueError` for what is not one."""
        if not self._writes:
            return
        if step != self._step:
            self._step, self._numbers = step, {}
        try:
            content, warning = media.content()
        except (TypeError, ValueError) as error:
            raise type(error)(f"self.log: {name!r}: {error}") from None
        if sum(self._numbers.values()) >= MAX_OF_STEP:
            content, warning = b"", f"is left out: a stage keeps {MAX_OF_STEP} images and tables of a step"
        if content:
            warning = self._write(name, media.kind, content, step) or warning
        if warning and name not in self._warned:
            self._warned.add(name)
            logging.getLogger("meshctl").warning(f"`{self._stage}.{name}` {warning}")

    def again(self) -> None:
        """Begins a repetition of the running call. Its files replace those of the failed call."""
        self._numbers = {}

    def _write(self, name: str, kind: Kind, content: bytes, step: int) -> str:
        number = self._numbers[name] = self._numbers.get(name, 0) + 1
        path = media_path(self._run, step, f"{self._stage}.{name}", kind, number)
        try:
            write_whole(path, content)
        except OSError as error:
            return f"cannot be written: {error.strerror}: {path}"
        file = str(path.relative_to(self._run.path))
        self._events.write("media", step=step, stage=self._stage, metric=name, kind=kind, file=file)
        return ""


def _tensor(data: Any, what: str) -> torch.Tensor:
    if hasattr(data, "to_local"):
        data = data.to_local()
    try:
        found = data.detach() if isinstance(data, torch.Tensor) else torch.as_tensor(_array(data))
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{what} is made of a tensor or an array, not a {type(data).__name__}") from None
    if found.is_complex():
        raise TypeError(f"{what} is made of real numbers")
    return found


def _array(data: Any) -> Any:
    """Returns an array of what is one, such as an image of PIL; torch cannot take one that is read-only."""
    import numpy as np

    return np.array(data) if hasattr(data, "__array__") or hasattr(data, "__array_interface__") else data


def _bytes(pixels: torch.Tensor) -> torch.Tensor:
    """Returns the bytes of pixels. Raises `TypeError` for another type, and `ValueError` for floats that are
    not from 0 to 1."""
    if pixels.dtype == torch.bool:
        pixels = pixels.to(torch.uint8) * 255
    if pixels.is_floating_point():
        pixels = pixels.float().nan_to_num(0.0)
        low, high = float(pixels.min()), float(pixels.max())
        if low < -1e-3 or high > 1 + 1e-3:
            raise ValueError(f"an image of floats has values from 0 to 1, not from {low:g} to {high:g}")
        pixels = (pixels.clamp(0, 1) * 255).round().to(torch.uint8)
    if pixels.dtype != torch.uint8:
        raise TypeError(
            f"an image is of uint8, bool or floats, not of {str(pixels.dtype).removeprefix('torch.')}"
        )
    return pixels.cpu().contiguous()


def _cell(cell: Any) -> Any:
    if isinstance(cell, torch.Tensor) and cell.numel() == 1:
        cell = cell.item()
    if cell is None or isinstance(cell, (bool, int, str)):
        return cell
    if isinstance(cell, Real):
        return number if math.isfinite(number := float(cell)) else str(number)
    raise TypeError(f"a cell of a table is text, a number, a bool or None, not a {type(cell).__name__}")


def _json(data: Mapping[str, Any]) -> bytes:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
