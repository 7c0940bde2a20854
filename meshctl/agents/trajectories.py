"""The calls of an episode, as a forest of continued histories, and the rows that are trained.

    call 0   a prompt                              its answer
    call 1   prompt 0 + answer 0 + new messages    its answer     continues call 0
    call 2   prompt 0 + answer 0 + new messages    its answer     the same request again: another branch
    call 3   a history that was rewritten          its answer     a new root

The prompt of a call begins with exactly the tokens of the call that it continues. Each leaf (here 1, 2 and 3)
is a row. A sampled token is a label in the first row that has it, and in no other.
"""

from __future__ import annotations

import json
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from meshctl.dataclass import dataclass
from meshctl.labels import IGNORED

Message = Mapping[str, Any]
"""A message with `role` and `content`, whose calls of tools have arguments as data."""
UNKNOWN = -1
"""The version of a token that was not sampled."""


@dataclass(frozen=True, eq=False)
class Call:
    """One request of an agent that was answered."""

    key: str
    """Identifies messages, tools and the repetition of a request in an episode."""
    parent: int | None
    """The index of the call that it continues; None for a root."""
    messages: Sequence[Message]
    tools: Sequence[Any] | None
    reply: Message
    finish_reason: str
    """`stop`, `tool_calls`, or `length`"""
    prompt: Sequence[int]
    tokens: Sequence[int]
    """The sampled tokens, the end token included."""
    logprobs: Sequence[float]
    versions: Sequence[int] = ()
    """The version of the weights that sampled each token; empty if unknown."""


class Row(NamedTuple):
    """A leaf with all tokens before it."""

    call: Call
    tokens: list[int]
    labels: list[int]
    logprobs: list[float]
    versions: list[int]


def digests(messages: Sequence[Message], tools: Sequence[Any] | None) -> list[str]:
    """Returns a digest of the tools and the first k messages, for each k from 0 on. Reasoning, ids of calls
    and spaces around a reply are not compared, because clients need not send them back."""
    found = [_digest(json.dumps(tools or [], sort_keys=True).encode())]
    for message in messages:
        found.append(_extended(found[-1], message))
    return found


def _extended(history: str, message: Message) -> str:
    """Returns the digest of a history with one message more."""
    return _digest(f"{history}{json.dumps(_compared(message), sort_keys=True)}".encode())


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=12).hexdigest()


def _compared(message: Message) -> list[Any]:
    content, role = message.get("content") or "", message["role"]
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    calls = [[one["name"], one.get("arguments")] for one in functions]
    return [role, content.strip() if role == "assistant" else content, message.get("name"), calls]


class Forest:
    """The calls of an episode, in the order in which they were answered."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._by_history: dict[str, int] = {}
        """The digest of messages and reply -> the call."""
        self._asked = Counter[str]()

    def longest(self, history: Sequence[str]) -> tuple[int, int] | None:
        """Returns the call whose messages and reply are the most first messages of a request, and their
        number. `history` are the digests of the request."""
        for count in range(len(history) - 1, 0, -1):
            if (found := self._by_history.get(history[count])) is not None:
                return found, count
        return None

    def with_prefix(self, tokens: Sequence[int]) -> int | None:
        """Returns the call with the most tokens, of those with which `tokens` begin."""
        lengths = {n: len(call.prompt) + len(call.tokens) for n, call in enumerate(self.calls)}
        for number in sorted(lengths, key=lambda one: lengths[one], reverse=True):
            call = self.calls[number]
            if [*call.prompt, *call.tokens] == list(tokens[: lengths[number]]):
                return number
        return None

    def begin(self, prompt: str) -> int:
        """Counts a request whose tokens have this digest, and returns how many there were before."""
        self._asked[prompt] += 1
        return self._asked[prompt] - 1

    def forget(self, prompt: str) -> None:
        """Takes back `begin` for a request that was not answered."""
        self._asked[prompt] -= 1

    def add(self, call: Call, history: str) -> None:
        """Adds a call. `history` is the digest of its messages and tools."""
        self._by_history[_extended(history, call.reply)] = len(self.calls)
        self.calls.append(call)

    def rows(self) -> Iterator[Row]:
        """Yields a row for each leaf."""
        continued, labelled = {call.parent for call in self.calls}, set[int]()
        for leaf in range(len(self.calls)):
            if leaf in continued:
                continue
            last = self.calls[leaf]
            tokens = [*last.prompt, *last.tokens]
            row = Row(last, tokens, [IGNORED] * len(tokens), [0.0] * len(tokens), [UNKNOWN] * len(tokens))
            number: int | None = leaf
            while number is not None and number not in labelled:
                labelled.add(number)
                call = self.calls[number]
                own = slice(len(call.prompt), len(call.prompt) + len(call.tokens))
                row.labels[own], row.logprobs[own] = call.tokens, call.logprobs
                row.versions[own] = call.versions or [UNKNOWN] * len(call.tokens)
                number = call.parent
            yield row


def digest_of(tokens: Sequence[int]) -> str:
    return _digest(array("q", tokens).tobytes())
