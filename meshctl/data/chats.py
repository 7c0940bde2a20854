"""Chats in the forms that files have, as lists of messages with `role` and `content`.

    messages: [{role: user, content: Hi}, ...]           content may be [{type: text, text: Hi}]
    conversations: [{from: human, value: Hi}, ...]
    prompt: Hi, completion: Hello                        each a text, or a list of messages
    instruction: Add., input: 1 and 2, output: 3         optionally `system`, and `history: [[text, answer]]`

A message of the assistant is not learned with `weight: 0`, `train: false` or `loss_mask: 0`. The template
gets neither these keys nor a key whose value is null.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from meshctl.data.errors import DataError

ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
}
"""The value of `from` -> role."""
FLAGS = ("weight", "train", "loss_mask")
"""The keys that say whether a message of the assistant is learned."""


class Messages(list[dict[str, Any]]):
    """The messages of a chat. `unlearned` has the numbers of those that must not be learned."""

    def __init__(self, messages: Sequence[dict[str, Any]], unlearned: Collection[int] = ()) -> None:
        super().__init__(messages)
        self.unlearned = set(unlearned)

    def followed_by(self, others: Messages) -> Messages:
        return Messages(
            [*self, *others], self.unlearned | {len(self) + number for number in others.unlearned}
        )

    def answers(self, start: int = 0) -> list[int]:
        """Returns the numbers of the assistant's messages from `start` on."""
        return [n for n, one in enumerate(self) if n >= start and one["role"] == "assistant"]


def messages_of(value: Any, name: str, role: str = "") -> Messages:
    """Returns a list of messages with `role` and `content`. With `role`, a text becomes one message of this
    role. Raises `DataError` for a message that cannot be read. `name` is the key of `value`."""
    if role and isinstance(value, str):
        return Messages([{"role": role, "content": value}])
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise DataError(f"`{name}` is not a list of messages")
    found, unlearned = [], []
    for number, message in enumerate(value):
        place = f"{name}[{number}]"
        found.append(_message(message, place))
        if not _is_learned(message, found[-1]["role"], place):
            unlearned.append(number)
    return Messages(found, unlearned)


def _message(given: Any, place: str) -> dict[str, Any]:
    if isinstance(given, Mapping) and "role" not in given and "from" in given:
        role = ROLES.get(given["from"]) if isinstance(given["from"], str) else None
        if role is None:
            raise DataError(f"`{place}` is from {given['from']!r:.40}; known are {', '.join(ROLES)}")
        rest = {key: one for key, one in given.items() if key not in ("from", "value")}
        given = {"role": role, "content": given.get("value"), **rest}
    if not isinstance(given, Mapping) or not isinstance(given.get("role"), str):
        raise DataError(f"`{place}` is not an object with `role` and `content`")
    found = {key: one for key, one in given.items() if one is not None and key not in FLAGS}
    if "content" not in found and not found.get("tool_calls"):
        raise DataError(f"`{place}` has no `content`")
    if isinstance(found.get("content"), list):
        found["content"] = _joined(found["content"], place)
    if "tool_calls" in found:
        calls = json_list(found["tool_calls"], f"{place}.tool_calls")
        found["tool_calls"] = [_call(one) for one in calls]
    return found


def _joined(parts: Sequence[Any], place: str) -> str:
    for part in parts:
        if not isinstance(part, str) and not (
            isinstance(part, Mapping) and isinstance(part.get("text"), str)
        ):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise DataError(f"`{place}.content` has a part of the type `{kind}`; only texts are read")
    return "".join(part if isinstance(part, str) else part["text"] for part in parts)


def _call(call: Any) -> Any:
    """Returns a call of a tool whose arguments are an object, which chat templates expect."""
    function = call.get("function") if isinstance(call, Mapping) else None
    arguments = function.get("arguments") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(arguments, str):
        return call
    try:
        parsed = json.loads(arguments)
    except ValueError:
        return call
    return {**call, "function": {**function, "arguments": parsed}}


def _is_learned(message: Mapping[str, Any], role: str, place: str) -> bool:
    flags = {key: message[key] for key in FLAGS if message.get(key) is not None}
    for key, flag in flags.items():
        if flag not in (0, 1):
            raise DataError(f"`{place}.{key}` is {flag!r:.40}: it must be 0 or 1")
        if flag and role != "assistant" and key != "weight":
            raise DataError(f"`{place}.{key}` is {flag!r}, but only messages of the assistant are learned")
    return all(flags.values())


def json_list(value: Any, name: str) -> list[Any]:
    """Returns a list that a file has as it is, or as JSON text. Raises `DataError` for anything else."""
    found = value
    if isinstance(value, str):
        try:
            found = json.loads(value)
        except ValueError:
            found = None
    if not isinstance(found, list):
        raise DataError(f"`{name}` is {value!r:.40}, neither a list nor the JSON text of one")
    return found
