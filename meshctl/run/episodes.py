"""The kept episodes of agents, `episodes/COMPONENT-RANK.jsonl` in a run directory: one line of JSON for each.

    {"id": "17.3", "component": "agent", "step": 12, "attempt": 1, "reason": "stop", "error": "",
     "reward": 1.0, "seconds": 2.5, "columns": {"question": "..."}, "tools": [[...]],
     "calls": [{"key": "...", "parent": null, "skip": 0, "messages": [...], "tools": 0, "reply": {...},
                "finish_reason": "stop", "prompt": 51, "tokens": [...], "logprobs": [...],
                "versions": [[11, 20]], "text": "..."}]}

`step` is 0 for a pass of a block with `take`, and `reason` is `stop`, a limit, or `error`. The messages of a
call are the first `skip` ones of the call `parent` and its reply, and behind them those in `messages`.
`tools` is an index of the tools of the episode, `prompt` the number of tokens before the sampled ones.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from meshctl.dataclass import dataclass
from meshctl.run.directory import RunDir, write_whole
from meshctl.run.reading import DAMAGED, MAX_LINE_BYTES, appended, decoded, lines_of

FOLDER, ENDING = "episodes", ".jsonl"
KEPT_FAILED = 100
"""The number of failed episodes of a rank that are kept."""


class Keeper:
    """Writes the episodes of one rank."""

    def __init__(self, run: Path, name: str, keeps_all: bool) -> None:
        """Without `keeps_all`, only the last ones are kept."""
        self._path, self._keeps_all = run / FOLDER / f"{name}{ENDING}", keeps_all
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        self._lines = sum(1 for _ in lines_of(self._path))

    def keep(self, episode: Mapping[str, Any]) -> None:
        """Appends an episode. Raises `OSError`."""
        file = appended(self._path)
        with os.fdopen(file, "wb") as opened:
            os.fchmod(file, 0o600)
            opened.write(json.dumps(episode, ensure_ascii=False).encode() + b"\n")
        self._lines += 1
        if not self._keeps_all and self._lines >= 2 * KEPT_FAILED:
            last = [*lines_of(self._path)][-KEPT_FAILED:]
            write_whole(self._path, b"".join(last), private=True)
            self._lines = len(last)


@dataclass(frozen=True)
class KeptCall:
    key: str
    parent: int | None
    skip: int
    """The number of first messages that are those of the parent and its reply."""
    messages: Sequence[Mapping[str, Any]]
    """All messages of the request."""
    tools: Sequence[Any]
    reply: Mapping[str, Any]
    finish_reason: str
    prompt: int
    """The number of tokens before the sampled ones."""
    tokens: Sequence[int]
    logprobs: Sequence[float]
    text: str
    """The sampled tokens as a text, special ones included."""


@dataclass(frozen=True)
class KeptEpisode:
    id: str
    component: str
    step: int
    attempt: int
    reason: str
    error: str
    reward: float | None
    seconds: float
    columns: Mapping[str, Any]
    calls: Sequence[KeptCall] = field(default_factory=tuple)

    @property
    def tokens(self) -> int:
        """The number of sampled tokens."""
        return sum(len(call.tokens) for call in self.calls)


def episodes_of(run: RunDir) -> Iterator[KeptEpisode]:
    """Yields the kept episodes of a run, file by file. Damaged lines are left out. Raises `OSError`."""
    folder = run.path / FOLDER
    files = sorted(folder.glob(f"*{ENDING}")) if folder.is_dir() and not folder.is_symlink() else []
    for line in (line for file in files for line in lines_of(file)):
        if line.endswith(b"\n") and len(line) <= 4 * MAX_LINE_BYTES:
            try:
                yield _episode(decoded(line.decode()))
            except DAMAGED:
                continue


def _episode(data: Mapping[str, Any]) -> KeptEpisode:
    calls = list[KeptCall]()
    for one in data["calls"]:
        parent, skip = one["parent"], int(one["skip"])
        before = [*calls[parent].messages, calls[parent].reply][:skip] if skip else []
        calls.append(
            KeptCall(
                str(one["key"]),
                None if parent is None else int(parent),
                skip,
                [*before, *({**message, "role": str(message["role"])} for message in one["messages"])],
                [] if one["tools"] is None else [*data["tools"][one["tools"]]],
                {**one["reply"], "content": str(one["reply"]["content"])},
                str(one["finish_reason"]),
                int(one["prompt"]),
                [*map(int, one["tokens"])],
                [*map(float, one["logprobs"])],
                str(one["text"]),
            )
        )
    return KeptEpisode(
        id=str(data["id"]),
        component=str(data["component"]),
        step=int(data["step"]),
        attempt=int(data["attempt"]),
        reason=str(data["reason"]),
        error=str(data["error"]),
        reward=None if data["reward"] is None else float(data["reward"]),
        seconds=float(data["seconds"]),
        columns=dict(data["columns"]),
        calls=calls,
    )
