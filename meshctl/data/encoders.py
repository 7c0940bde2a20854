"""Rows as token columns: a chat, a text, or a pair of answers.

An encoder gives an example, which is the columns of one row. Its labels are aligned with its tokens, and the
first one is -100, since nothing predicts it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from meshctl.data.errors import DataError
from meshctl.data.rows import Row
from meshctl.data.tokenizer import Tokenizer

IGNORED = -100
"""The label of a token that is not learned, as in torch and transformers."""
Example = dict[str, list[int]]
MAX_SHOWN = 8
"""The most keys of a row in a message."""


class Encoder(ABC):
    """Makes examples of rows."""

    LEARN: ClassVar[tuple[str, ...]]
    """The accepted values of the argument `learn`. The first one is the default."""
    COLUMNS: ClassVar[tuple[str, ...]] = ("input_ids", "labels")
    FIELDS: ClassVar[tuple[str, ...]]
    """The keys of a row that are read; `fields` maps them to other names."""
    CAN_PACK: ClassVar[bool] = True
    CAN_SPLIT: ClassVar[bool] = False

    def __init__(self, tokenizer: Tokenizer, learn: str, fields: Mapping[str, str]) -> None:
        if unknown := [name for name in fields if name not in self.FIELDS]:
            raise DataError(f"`fields` has no `{unknown[0]}`; this source reads {', '.join(self.FIELDS)}")
        if learn and learn not in self.LEARN:
            raise DataError(f"`learn: {learn}` is not one of {', '.join(self.LEARN)}")
        self._tokenizer, self._fields = tokenizer, fields
        self._learn = learn or self.LEARN[0]

    @abstractmethod
    def __call__(self, row: Row) -> Example:
        """Returns the columns of a row. Raises `DataError` if it is not such a row."""

    def _value(self, row: Row, name: str) -> Any:
        key = self._fields.get(name, name)
        if key not in row:
            shown = ", ".join(list(row)[:MAX_SHOWN]) or "none"
            raise DataError(f"the row has no `{key}`; its keys are {shown}")
        return row[key]

    def _has(self, row: Row, name: str) -> bool:
        return row.get(self._fields.get(name, name)) is not None


class ChatEncoder(Encoder):
    """Reads `messages`, a list of objects with `role` and `content`, and where they are given `tools`."""

    LEARN = ("assistant", "last", "all")
    FIELDS = ("messages", "tools")

    def __init__(self, tokenizer: Tokenizer, learn: str, fields: Mapping[str, str]) -> None:
        super().__init__(tokenizer, learn, fields)
        tokenizer.check_template()

    def __call__(self, row: Row) -> Example:
        chat = messages(self._value(row, "messages"), "messages")
        tools = self._value(row, "tools") if self._has(row, "tools") else None
        answers = [number for number, message in enumerate(chat) if message["role"] == "assistant"]
        if not answers and self._learn != "all":
            raise DataError("no message has the role `assistant`, so there is nothing to learn")
        ids, learned = self._tokenizer.chat(chat, tools, answers[-1] if self._learn == "last" else 0)
        if self._learn == "all":
            learned = [True] * len(ids)
        elif not any(learned):
            raise DataError(
                "no token of an assistant's message was found: the chat template drops them, or its "
                "{% generation %} block is empty"
            )
        return {"input_ids": ids, "labels": labels(ids, learned)}


class TextEncoder(Encoder):
    """Reads `text`. The tokenizer's end token is appended."""

    LEARN = ("all",)
    FIELDS = ("text",)
    CAN_SPLIT = True

    def __call__(self, row: Row) -> Example:
        ids = self._tokenizer.ended_text(string(self._value(row, "text"), "text"))
        return {"input_ids": ids, "labels": labels(ids, [True] * len(ids))}


class PairsEncoder(Encoder):
    """Reads `prompt`, `chosen` and `rejected`: texts, or lists of messages.

    Of lists of messages without a `prompt`, it is what both begin with.
    """

    LEARN = ("answer",)
    SIDES = ("chosen", "rejected")
    COLUMNS = tuple(f"{side}_{name}" for side in SIDES for name in ("input_ids", "labels"))
    FIELDS = ("prompt", *SIDES)
    CAN_PACK = False

    def __call__(self, row: Row) -> Example:
        if all(isinstance(self._value(row, side), str) for side in self.SIDES):
            encoded = self._texts(row)
        else:
            encoded = self._chats(row)
        columns: Example = {}
        for side, (ids, learned) in zip(self.SIDES, encoded, strict=True):
            if not any(learned):
                raise DataError(f"`{side}` has no token after the prompt")
            columns |= {f"{side}_input_ids": ids, f"{side}_labels": labels(ids, learned)}
        return columns

    def _texts(self, row: Row) -> list[tuple[list[int], list[bool]]]:
        prompt = self._tokenizer.text(string(self._value(row, "prompt"), "prompt"))
        answers = [self._tokenizer.ended_text(self._value(row, side), is_start=False) for side in self.SIDES]
        return [(prompt + answer, [False] * len(prompt) + [True] * len(answer)) for answer in answers]

    def _chats(self, row: Row) -> list[tuple[list[int], list[bool]]]:
        self._tokenizer.check_template()
        sides = [messages(self._value(row, side), side) for side in self.SIDES]
        if self._has(row, "prompt"):
            prompt = messages(self._value(row, "prompt"), "prompt")
            sides = [[*prompt, *side] for side in sides]
            start = len(prompt)
        else:
            start = _common(*sides)
        return [self._tokenizer.chat(side, learn_from=start) for side in sides]


def labels(ids: Sequence[int], learned: Sequence[bool]) -> list[int]:
    """Returns the tokens that are learned, and -100 for the others and for the first."""
    found = [id if is_learned else IGNORED for id, is_learned in zip(ids, learned, strict=True)]
    return [IGNORED, *found[1:]] if found else []


def string(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise DataError(f"`{name}` is {value!r:.40}, not a text")
    return value


def messages(value: Any, name: str) -> list[Mapping[str, Any]]:
    """Returns a list of messages. Raises `DataError` if one has no role, or neither content nor a call of a
    tool."""
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise DataError(f"`{name}` is not a list of messages")
    for number, message in enumerate(value):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise DataError(f"`{name}[{number}]` is not an object with `role` and `content`")
        if message.get("content") is None and not message.get("tool_calls"):
            raise DataError(f"`{name}[{number}]` has no `content`")
    return list(value)


def _common(first: Sequence[Any], second: Sequence[Any]) -> int:
    """Returns the number of messages with which both lists begin."""
    pairs = zip(first, second, strict=False)
    return next((number for number, (one, other) in enumerate(pairs) if one != other), 0)
