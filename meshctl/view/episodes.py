"""The kept episodes of agents as text: a table of them, and one as a conversation."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from meshctl.run.episodes import KeptCall, KeptEpisode
from meshctl.text.english import counted
from meshctl.view.formatting import duration, number

SAMPLED, GIVEN = "▌ ", "  "
"""The beginnings of lines that were sampled, and of others."""
HEADS = ("episode", "component", "attempt", "step", "end", "reward", "turns", "tokens", "time")


def table(episodes: Sequence[KeptEpisode]) -> Iterator[str]:
    """Yields the lines of a table."""
    rows = [HEADS, *map(cells, episodes)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row, one in zip(rows, (None, *episodes), strict=True):
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield f"{line}  {one.error if one else ''}".rstrip()


def cells(one: KeptEpisode) -> tuple[str, ...]:
    """Returns the facts about an episode, as in `HEADS`."""
    step, reward = str(one.step or "-"), "-" if one.reward is None else number(one.reward)
    turns, tokens = str(len(one.calls)), str(one.tokens)
    return (
        one.id,
        one.component,
        str(one.attempt),
        step,
        one.reason,
        reward,
        turns,
        tokens,
        duration(one.seconds),
    )


def conversation(one: KeptEpisode) -> Iterator[str]:
    """Yields the lines of an episode."""
    reward = "" if one.reward is None else f", reward {number(one.reward)}"
    counts = f"{counted(len(one.calls), 'turn')}, {counted(one.tokens, 'sampled token')}"
    where = f"attempt {one.attempt}" + (f", step {one.step}" if one.step else "")
    yield f"episode {one.id} of {one.component}, {where}: {one.reason}{reward}"
    yield f"{counts}, {duration(one.seconds)}"
    yield from ([one.error] if one.error else [])
    for name, value in one.columns.items():
        yield f"{GIVEN}{name}: {value if isinstance(value, str) else json.dumps(value)}"
    if names := [str(tool["function"]["name"]) for call in one.calls[:1] for tool in call.tools]:
        yield f"{GIVEN}tools: {', '.join(names)}"
    for index, call in enumerate(one.calls):
        if call.parent != (index - 1 if index else None):
            yield ""
            yield f"call {index + 1} " + (
                "begins a new history" if call.parent is None else f"continues call {call.parent + 1}"
            )
        for message in call.messages[call.skip :]:
            yield ""
            yield message["role"]
            yield from (f"{GIVEN}{line}" for line in text_of(message).splitlines())
        yield ""
        yield f"assistant, {sampled(call)}"
        yield from (f"{SAMPLED}{line}" for line in call.text.splitlines())


def sampled(call: KeptCall) -> str:
    """Returns what is known about the tokens of a call."""
    mean = sum(call.logprobs) / max(len(call.logprobs), 1)
    return f"{counted(len(call.tokens), 'token')}, mean log-probability {mean:.2f}, {call.finish_reason}"


def text_of(message: Mapping[str, Any]) -> str:
    """Returns the content of a message, and its calls of tools as JSON."""
    calls = [json.dumps(call.get("function")) for call in message.get("tool_calls") or ()]
    return "\n".join([str(message.get("content") or ""), *calls]).strip("\n")
