"""Encoders, which convert a row to token columns: a chat, a text, or a pair of answers.

The result of an encoder is an example: the columns of one row. The labels of an example are aligned with its
tokens. The first label is -100, because no position predicts the first token.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from meshctl.data.chats import Messages, json_list, messages_of
from meshctl.data.checks import CHATS
from meshctl.data.errors import DataError
from meshctl.data.rows import Row
from meshctl.data.tables import ArrowRow
from meshctl.data.tokenizer import Tokenizer
from meshctl.labels import IGNORED

Example = dict[str, list[int]]
LABEL = "label"
"""The key and the column with the label of a whole text."""
SIDES = ("user", "assistant")
"""The roles of an instruction and of its output."""
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

    @property
    def parts(self) -> Callable[[Row], Sequence[Row]] | None:
        """The function that returns the samples of a row as rows; None if each row is one sample."""
        return None

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

    def _tools(self, row: Row) -> list[Any] | None:
        return json_list(self._value(row, "tools"), "tools") if self._has(row, "tools") else None


class ChatEncoder(Encoder):
    """Reads a chat in one of the forms of `chats`, and the optional key `tools`."""

    LEARN = ("assistant", "turns", "last", "all")
    FIELDS = (*dict.fromkeys(name for form in CHATS for name in form), "input", "system", "history", "tools")

    def __init__(self, tokenizer: Tokenizer, learn: str, fields: Mapping[str, str]) -> None:
        super().__init__(tokenizer, learn, fields)
        tokenizer.check_template()
        self._own_keys = {fields.get(name, name) for name in self.FIELDS}

    def __call__(self, row: Row) -> Example:
        chat, start = self._chat(row)
        answers = chat.answers(start)
        if not answers and self.learn != "all":
            raise DataError("no message has the role `assistant`, so there is nothing to learn")
        if chat.unlearned and self.learn == "all":
            raise DataError(
                "`learn: all` learns each message, and this row excludes some by `weight` or `train`"
            )
        answers = answers[-1:] if self.learn in ("last", "turns") else answers
        learned_ones = [number for number in answers if number not in chat.unlearned]
        if answers and not learned_ones:
            raise DataError("each message to learn has a `weight` of 0, so there is nothing to learn")
        ids, learned = self._tokenizer.chat(chat, self._tools(row), learned_ones)
        if self.learn == "all":
            learned = [True] * len(ids)
        elif not any(learned):
            raise DataError(
                "no token of an assistant's message was found: the chat template drops them, or its "
                "{% generation %} block is empty"
            )
        return {"input_ids": ids, "labels": labels(ids, learned)}

    @property
    def parts(self) -> Callable[[Row], Sequence[Row]] | None:
        return self._turns_of if self.learn == "turns" else None

    def _turns_of(self, row: Row) -> list[Row]:
        """Returns a row for each message of the assistant that is learned: the chat up to this message, as it
        was when the message was generated."""
        chat, start = self._chat(row)
        turns = [number for number in chat.answers(start) if number not in chat.unlearned]
        rest = {key: value for key, value in row.items() if key not in self._own_keys}
        if self._has(row, "tools"):
            rest[self._fields.get("tools", "tools")] = self._tools(row)
        name = self._fields.get("messages", "messages")
        return [{**rest, name: chat[: number + 1]} for number in turns] or [row]

    def _chat(self, row: Row) -> tuple[Messages, int]:
        """Returns the messages of a row, and the number of the first one that may be learned."""
        form = max(CHATS, key=lambda one: sum(self._has(row, name) for name in one) / len(one))
        if form == ("prompt", "completion"):
            prompt = messages_of(self._value(row, "prompt"), "prompt", "user")
            completion = messages_of(self._value(row, "completion"), "completion", "assistant")
            return prompt.followed_by(completion), len(prompt)
        if form == ("instruction", "output"):
            return messages_of(self._turns(row), "history"), 0
        return messages_of(self._value(row, form[0]), form[0]), 0

    def _turns(self, row: Row) -> list[Mapping[str, Any]]:
        """Returns the messages of an instruction with its output, and of earlier ones in `history`."""
        given = {name: string(self._value(row, name), name) for name in ("instruction", "output")}
        given |= {
            name: string(self._value(row, name), name) for name in ("system", "input") if self._has(row, name)
        }
        question = "\n\n".join(text for name in ("instruction", "input") if (text := given.get(name)))
        history = self._value(row, "history") if self._has(row, "history") else []
        is_list = isinstance(history, Sequence) and not isinstance(history, str)
        if not is_list or any(not isinstance(turn, Sequence) or len(turn) != 2 for turn in history):
            raise DataError("`history` is not a list of pairs, each of an instruction and its output")
        sides: list[Mapping[str, Any]] = [{"role": "system", "content": given.get("system")}]
        for turn in [*history, (question, given["output"])]:
            sides += [{"role": role, "content": text} for role, text in zip(SIDES, turn, strict=True)]
        return sides if given.get("system") else sides[1:]


class TextEncoder(Encoder):
    """Reads the key `text`, and appends the tokenizer's end token."""

    LEARN = ("all",)
    FIELDS = ("text",)
    CAN_SPLIT = True

    def __call__(self, row: Row) -> Example:
        ids = self._tokenizer.ended_text(string(self._value(row, "text"), "text"))
        return {"input_ids": ids, "labels": labels(ids, [True] * len(ids))}


class LabelledEncoder(Encoder):
    """Reads the key `text`. The source reads the label, which is no column of tokens."""

    LEARN = ("all",)
    FIELDS = ("text", LABEL)
    COLUMNS = ("input_ids",)
    CAN_PACK = False

    def __call__(self, row: Row) -> Example:
        ids = self._tokenizer.text(string(self._value(row, "text"), "text"))
        if not ids:
            raise DataError("`text` has no token")
        label, key = self._value(row, LABEL), self._fields.get(LABEL, LABEL)
        is_number = isinstance(label, (int, float)) and label % 1 == 0
        if not is_number and not (isinstance(label, str) and label):
            raise DataError(f"`{key}` is {label!r:.40}, and not a whole number or a name")
        return {"input_ids": ids}


class PairsEncoder(Encoder):
    """Reads the keys `prompt`, `chosen` and `rejected`, whose values are texts or lists of messages.

    For lists of messages, `prompt` is optional. The default is the common beginning of `chosen` and
    `rejected`, which may also repeat a `prompt` that is a text.
    """

    LEARN = ("answer",)
    SIDES = ("chosen", "rejected")
    COLUMNS = tuple(f"{side}_{name}" for side in SIDES for name in ("input_ids", "labels"))
    FIELDS = ("prompt", *SIDES)
    CAN_PACK = False

    def __call__(self, row: Row) -> Example:
        names = [name for name in self.FIELDS if name in self.SIDES or self._has(row, name)]
        is_plain = all(isinstance(self._value(row, name), str) for name in names)
        encoded = self._texts(row) if is_plain else self._chats(row)
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
        sides = [messages_of(self._value(row, side), side, "assistant") for side in self.SIDES]
        start, given = _common(*sides), self._value(row, "prompt") if self._has(row, "prompt") else None
        is_repeated = isinstance(given, str) and any(one.get("content") == given for one in sides[0][:start])
        if given is not None and not is_repeated:
            prompt = messages_of(given, "prompt", "user")
            sides = [prompt.followed_by(side) for side in sides]
            start = len(prompt)
        return [self._tokenizer.chat(side, None, side.answers(start)) for side in sides]


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
        chat: list[dict[str, Any]] = messages_of(prompt, "prompt", "user")
        if self._system and chat[0]["role"] != "system":
            chat = [{"role": "system", "content": self._system}, *chat]
        return self._tokenizer.rendered_prompt(chat, self._tools(row))

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


def _common(first: Sequence[Any], second: Sequence[Any]) -> int:
    """Returns the number of messages in the common beginning of both lists; 0 if one list begins with the
    other."""
    pairs = zip(first, second, strict=False)
    return next((number for number, (one, other) in enumerate(pairs) if one != other), 0)
