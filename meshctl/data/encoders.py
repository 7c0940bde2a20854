"""Encoders, which convert a row to token columns: a chat, a text, or a pair of answers.

The result of an encoder is an example: the columns of one row. The labels of an example are aligned with its
tokens. The first label is -100, because no position predicts the first token.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from meshctl.data.errors import DataError
from meshctl.data.rows import Row
from meshctl.data.tables import ArrowRow
from meshctl.data.tokenizer import Tokenizer
from meshctl.labels import IGNORED

Example = dict[str, list[int]]
MAX_SHOWN = 8
"""The maximum number of keys of a row that a message lists."""


class Encoder(ABC):
    """Converts rows to examples."""

    LEARN: ClassVar[tuple[str, ...]]
    """The accepted values of the argument `learn`. The first one is the default."""
    COLUMNS: ClassVar[tuple[str, ...]] = ("input_ids", "labels")
    FIELDS: ClassVar[tuple[str, ...]]
    """The keys of a row that the encoder reads. The argument `fields` maps them to other names."""
    CAN_PACK: ClassVar[bool] = True
    CAN_SPLIT: ClassVar[bool] = False
    CAN_TRUNCATE: ClassVar[bool] = True
    MAX_LENGTH: ClassVar[str] = "max_length"
    """The argument with the maximum number of tokens, for messages."""

    def __init__(self, tokenizer: Tokenizer, learn: str, fields: Mapping[str, str]) -> None:
        if unknown := [name for name in fields if name not in self.FIELDS]:
            raise DataError(f"`fields` has no `{unknown[0]}`; this source reads {', '.join(self.FIELDS)}")
        if learn and learn not in self.LEARN:
            raise DataError(f"`learn: {learn}` is not one of {', '.join(self.LEARN)}")
        self._tokenizer, self._fields = tokenizer, fields
        self.learn = learn or self.LEARN[0]

    @abstractmethod
    def __call__(self, row: Row) -> Example:
        """Returns the columns of a row. Raises `DataError` if the row lacks a key or has an unsuitable
        value."""

    def _value(self, row: Row, name: str) -> Any:
        key = self._fields.get(name, name)
        if key not in row:
            shown = ", ".join(list(row)[:MAX_SHOWN]) or "none"
            raise DataError(f"the row has no `{key}`; its keys are {shown}")
        return without_nulls(row[key]) if isinstance(row, ArrowRow) else row[key]

    def _has(self, row: Row, name: str) -> bool:
        return row.get(self._fields.get(name, name)) is not None


class ChatEncoder(Encoder):
    """Reads the key `messages`, a list of objects with `role` and `content`, and the optional key `tools`."""

    LEARN = ("assistant", "last", "all")
    FIELDS = ("messages", "tools")

    def __init__(self, tokenizer: Tokenizer, learn: str, fields: Mapping[str, str]) -> None:
        super().__init__(tokenizer, learn, fields)
        tokenizer.check_template()

    def __call__(self, row: Row) -> Example:
        chat = messages(self._value(row, "messages"), "messages")
        tools = self._value(row, "tools") if self._has(row, "tools") else None
        answers = [number for number, message in enumerate(chat) if message["role"] == "assistant"]
        if not answers and self.learn != "all":
            raise DataError("no message has the role `assistant`, so there is nothing to learn")
        ids, learned = self._tokenizer.chat(chat, tools, answers[-1] if self.learn == "last" else 0)
        if self.learn == "all":
            learned = [True] * len(ids)
        elif not any(learned):
            raise DataError(
                "no token of an assistant's message was found: the chat template drops them, or its "
                "{% generation %} block is empty"
            )
        return {"input_ids": ids, "labels": labels(ids, learned)}


class TextEncoder(Encoder):
    """Reads the key `text`, and appends the tokenizer's end token."""

    LEARN = ("all",)
    FIELDS = ("text",)
    CAN_SPLIT = True

    def __call__(self, row: Row) -> Example:
        ids = self._tokenizer.ended_text(string(self._value(row, "text"), "text"))
        return {"input_ids": ids, "labels": labels(ids, [True] * len(ids))}


class PairsEncoder(Encoder):
    """Reads the keys `prompt`, `chosen` and `rejected`, whose values are texts or lists of messages.

    For lists of messages, `prompt` is optional. The default is the common beginning of `chosen` and
    `rejected`.
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


class PromptsEncoder(Encoder):
    """Reads the key `prompt`, a text or a list of messages, and the optional key `tools`."""

    LEARN = ("",)
    FIELDS = ("prompt", "tools")
    COLUMNS = ("prompt_ids",)
    CAN_PACK = False
    CAN_TRUNCATE = False
    MAX_LENGTH = "max_prompt_tokens"

    def __init__(self, tokenizer: Tokenizer, fields: Mapping[str, str], as_chat: bool, system: str) -> None:
        """`as_chat` is whether a text is the message of a user. `system` is the first message of each chat
        that has no such message; empty for none."""
        super().__init__(tokenizer, "", fields)
        self._as_chat, self._system = as_chat, system

    def __call__(self, row: Row) -> Example:
        prompt = self._value(row, "prompt")
        ids = self._tokenizer.text(self.text(row), is_start=self._is_plain(prompt))
        if not ids:
            raise DataError("`prompt` has no token")
        return {"prompt_ids": ids}

    def text(self, row: Row) -> str:
        """Returns the text of a row's prompt: the text itself, or a chat as the chat template renders it."""
        prompt = self._value(row, "prompt")
        if self._is_plain(prompt):
            return str(prompt)
        chat = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        chat = messages(chat, "prompt")
        if self._system and chat[0]["role"] != "system":
            chat = [{"role": "system", "content": self._system}, *chat]
        tools = self._value(row, "tools") if self._has(row, "tools") else None
        return self._tokenizer.rendered_prompt(chat, tools)

    def _is_plain(self, prompt: Any) -> bool:
        return isinstance(prompt, str) and not self._as_chat


def labels(ids: Sequence[int], learned: Sequence[bool]) -> list[int]:
    """Returns the labels of the tokens `ids`: the token itself where `learned` is true, and -100 elsewhere.
    The first label is always -100."""
    found = [id if is_learned else IGNORED for id, is_learned in zip(ids, learned, strict=True)]
    return [IGNORED, *found[1:]] if found else []


def without_nulls(value: Any) -> Any:
    """Returns a value without the keys at any depth whose value is null."""
    if isinstance(value, Mapping):
        return {key: without_nulls(one) for key, one in value.items() if one is not None}
    return [without_nulls(one) for one in value] if isinstance(value, list) else value


def string(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise DataError(f"`{name}` is {value!r:.40}, not a text")
    return value


def messages(value: Any, name: str) -> list[Mapping[str, Any]]:
    """Returns `value` as a list of messages. Raises `DataError` if a message has no role, or has neither
    content nor tool calls. `name` is the key in the error message."""
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise DataError(f"`{name}` is not a list of messages")
    for number, message in enumerate(value):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise DataError(f"`{name}[{number}]` is not an object with `role` and `content`")
        if message.get("content") is None and not message.get("tool_calls"):
            raise DataError(f"`{name}[{number}]` has no `content`")
    return list(value)


def _common(first: Sequence[Any], second: Sequence[Any]) -> int:
    """Returns the number of messages in the common beginning of both lists; 0 if one list begins with the
    other."""
    pairs = zip(first, second, strict=False)
    return next((number for number, (one, other) in enumerate(pairs) if one != other), 0)
