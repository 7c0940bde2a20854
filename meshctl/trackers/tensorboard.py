"""TensorBoard: one folder of event files for each run, written without TensorFlow and without torch.

Each attempt begins a file with the step from which it continues, and TensorBoard drops the later steps of
earlier files. So a curve has each step once.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.summary.writer.record_writer import RecordWriter

from meshctl.run.directory import RunDir
from meshctl.run.media import Media, size_of
from meshctl.trackers.external import ExternalTracker, name_of

VERSION = "brain.Event:2"
"""The version of the file format. From this version on, readers know the step from which a file continues."""


class TensorBoard(ExternalTracker):
    name = "tensorboard"
    forgets_lost_steps = True

    def __init__(self, run: RunDir, dir: str = "") -> None:
        super().__init__(run)
        own = (
            Path(dir).expanduser() / run.path.parent.name / run.path.name if dir else run.trackers / self.name
        )
        self._folder, self._files = own, 0
        self._writer: RecordWriter | None = None

    def begin(self, step: int | None) -> None:
        is_new, self.id = not self.id, str(self._folder)
        self._open(None if is_new else step or 0)
        if is_new:
            for path in self.files():
                self._text(path.name, 0, f"```\n{path.read_text(encoding='utf-8')}\n```")

    def rewind(self, step: int | None) -> None:
        self._open(step or 0)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._write(step, [Summary.Value(tag=name, simple_value=value) for name, value in values.items()])

    def media(self, one: Media) -> None:
        tag, content = name_of(one.name), one.read()
        tag = tag if one.number == 1 else f"{tag}/{one.number}"
        if one.kind == "image":
            width, height = size_of(content)
            image = Summary.Image(width=width, height=height, colorspace=3, encoded_image_string=content)
            self._write(one.step, [Summary.Value(tag=tag, image=image)])
        elif one.kind == "histogram":
            edges, counts = content["edges"], content["counts"]
            histogram = HistogramProto(
                min=edges[0],
                max=edges[-1],
                num=math.fsum(counts),
                sum=content["sum"],
                sum_squares=content["sum_of_squares"],
                bucket_limit=edges[1:],
                bucket=counts,
            )
            self._write(one.step, [Summary.Value(tag=tag, histo=histogram)])
        else:
            columns = content["columns"]
            self._text(
                tag, one.step, "\n".join(map(_line, [columns, ["---"] * len(columns), *content["rows"]]))
            )

    def checkpoint(self, step: int, path: Path) -> None:
        self._text("checkpoints", step, f"`{path}`")

    def note(self, step: int, kind: str, text: str) -> None:
        self._text(f"{kind}s", step, text)

    def end(self, code: int, reason: str) -> None:
        self._text("end", max(self._through, 0), reason or f"exit code {code}")
        assert self._writer is not None
        self._writer.close()

    def _open(self, after: int | None) -> None:
        if self._writer is not None:
            self._writer.close()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._files += 1
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}.{self._files}"
        self._writer = RecordWriter((self._folder / name).open("wb"))
        self._record(Event(wall_time=time.time(), file_version=VERSION))
        if after is not None:
            start = SessionLog(status=SessionLog.START)
            self._record(Event(wall_time=time.time(), step=after + 1, session_log=start))

    def _text(self, tag: str, step: int, text: str) -> None:
        plugin = SummaryMetadata.PluginData(plugin_name="text")
        tensor = TensorProto(
            dtype=DT_STRING,
            string_val=[text.encode()],
            tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)]),
        )
        metadata = SummaryMetadata(plugin_data=plugin)
        self._write(step, [Summary.Value(tag=f"{tag}/text_summary", metadata=metadata, tensor=tensor)])

    def _write(self, step: int, values: list[Summary.Value]) -> None:
        self._record(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def _record(self, event: Event) -> None:
        assert self._writer is not None
        self._writer.write(event.SerializeToString())
        self._writer.flush()


def _line(cells: list[object]) -> str:
    """Returns a row of a table in Markdown."""
    shown = ("" if cell is None else str(cell) for cell in cells)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|').replace(chr(10), '<br>') for cell in shown)} |"
