"""The adapter of transformers' tokenizers: texts and chats as token ids, with the tokens to learn."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from meshctl.data.errors import DataError
from meshctl.hub_cache import TOKENIZER_FILES, local_folder
from meshctl.package import SHIPPED_TOKENIZERS
from meshctl.runtime.extras import extra

GENERATION = re.compile(r"\{%-?\s*generation\b")
"""The start of the block in which a chat template marks the text that the assistant generates."""
Message = Mapping[str, Any]
SPECIAL_IN_TEXT = "a text contains `%s`, which counts as a special token, as in a rendered chat: `%.40s`"
log = logging.getLogger(__name__)


class ChatError(DataError):
    """Raised if the template cannot render a chat, or if the assistant's tokens in the chat cannot be
    found."""


class Tokenizer:
    """A tokenizer of transformers, which is loaded by name or from a folder."""

    def __init__(
        self,
        name: str,
        chat_template: str = "",
        template_args: Mapping[str, Any] | None = None,
        tokens: Sequence[str] = (),
    ) -> None:
        """Loads the tokenizer `name`: `byte`, a folder, or a name of the hub.

        `chat_template` is a file with a template that replaces the tokenizer's own template. `template_args`
        are variables of the template. `tokens` are added to the vocabulary. Raises `DataError` if the
        tokenizer or the file cannot be found or read.
        """
        self.name, self._template_args = name, dict(template_args or {})
        self._tokenizer = _loaded(name)
        if isinstance(tokens, str) or not all(isinstance(one, str) and one for one in tokens):
            raise DataError(f"`tokens` is {tokens!r:.40}, and not a list of texts that are not empty")
        before = len(self._tokenizer)
        self._tokenizer.add_tokens(list(tokens))
        self.added = range(before, len(self._tokenizer))
        """The ids of the tokens that were added."""
        if chat_template:
            self._tokenizer.chat_template = _file(chat_template).read_text(encoding="utf-8")
        whole, plain = (
            self._tokenizer("a", add_special_tokens=one, verbose=False)["input_ids"] for one in (True, False)
        )
        starts = (n for n in range(len(whole)) if whole[n : n + len(plain)] == plain)
        self._start = list(whole[: next(starts, 0)])
        """The special tokens that the tokenizer adds before a text."""
        added = self._tokenizer.added_tokens_decoder
        self._special = {id for id in added if added[id].special} - {self._tokenizer.unk_token_id}
        """The tokens of which a text is warned; empty after the warning."""

    def __len__(self) -> int:
        """The number of token ids, special tokens included."""
        return len(self._tokenizer)

    def save(self, folder: Path) -> None:
        """Writes the files of the tokenizer to `folder`."""
        self._tokenizer.save_pretrained(folder)

    @property
    def end_token(self) -> int | None:
        """The id of the token that ends a text; None if the tokenizer has no such token."""
        found: int | None = self._tokenizer.eos_token_id
        return found

    @property
    def padding(self) -> int | None:
        """The id of the padding token; None if the tokenizer has no such token."""
        found: int | None = self._tokenizer.pad_token_id
        return found

    def text(self, text: str, *, is_start: bool = True) -> list[int]:
        """Returns the token ids of a text, without an end token. If `is_start` is true, they begin with the
        special tokens that the tokenizer adds before a text. A text that contains these gets no others."""
        ids: list[int] = self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        if not is_start:
            return ids
        if found := self._special.intersection(ids):
            log.warning(SPECIAL_IN_TEXT, self.decode([min(found)]), text)
            self._special = set()
        return ids if ids[: len(self._start)] == self._start else [*self._start, *ids]

    def ended_text(self, text: str, *, is_start: bool = True) -> list[int]:
        """Returns the token ids of a text, followed by the end token. `is_start` has the same meaning as in
        `text`."""
        ids, end = self.text(text, is_start=is_start), self.end_token
        return ids if end is None or ids[-1:] == [end] else [*ids, end]

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(ids))
        return text

    def decode_rows(self, rows: Sequence[Sequence[int]], *, is_plain: bool = False) -> list[str]:
        """Returns the text of each row of token ids. If `is_plain` is true, the special tokens are left
        out."""
        return [
            self._tokenizer.decode(list(row), skip_special_tokens=is_plain) if len(row) else ""
            for row in rows
        ]

    # Chats

    def check_template(self) -> None:
        """Raises `DataError` if the tokenizer has no chat template, or does not report the positions of its
        tokens in a text."""
        self._check_has_template()
        if not self._tokenizer.is_fast:
            raise DataError(
                f"tokenizer `{self.name}` does not report the positions of its tokens in a text, which the "
                "labels need: use its fast form"
            )

    def _check_has_template(self) -> None:
        if not self._tokenizer.chat_template:
            raise DataError(
                f"tokenizer `{self.name}` has no chat template: name a file with one in `chat_template`"
            )

    def rendered_prompt(self, messages: Sequence[Message], tools: Sequence[Any] | None = None) -> str:
        """Returns the text of a chat that ends where the assistant's next message begins. The text contains
        the special tokens. Raises `DataError` without a chat template, and `ChatError` if the template
        fails."""
        self._check_has_template()
        return self._rendered(messages, tools, add_generation_prompt=True)

    def parsed_response(
        self, ids: Sequence[int], prompt: Sequence[int], tools: Sequence[Any] | None
    ) -> Mapping[str, Any] | None:
        """Returns the message of sampled tokens behind those of a prompt, as the tokenizer's response
        template reads it: `content`, `thinking`, `tool_calls`. None if there is no such template or it does
        not fit."""
        if getattr(self._tokenizer, "response_template", None) is None:
            return None
        try:
            found = self._tokenizer.parse_response(list(ids), prefix=list(prompt), tools=tools)
        except Exception:  # it raises what its expressions and parsers of JSON raise
            return None
        return found if isinstance(found, Mapping) else None

    def chat(
        self, messages: Sequence[Message], tools: Sequence[Any] | None, learned: Collection[int]
    ) -> tuple[list[int], list[bool]]:
        """Returns the token ids of a chat, and for each token whether it is learned.

        `learned` has the numbers of the assistant's messages to learn. If the template marks the assistant's
        text with `{% generation %}`, these marks are used. Otherwise the text of a message is the difference
        between the chats rendered with and without this message. Raises `ChatError` if the chat cannot be
        rendered or the text of a message cannot be found.
        """
        if GENERATION.search(self._tokenizer.get_chat_template()):
            return self._marked(messages, tools, learned)
        text = self._rendered(messages, tools)
        encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        spans = self._spans(text, messages, tools, learned)
        starts = [start for start, _ in encoded["offset_mapping"]]
        flags = [any(first <= start < last for first, last in spans) for start in starts]
        return encoded["input_ids"], flags

    def _marked(
        self, messages: Sequence[Message], tools: Sequence[Any] | None, learned: Collection[int]
    ) -> tuple[list[int], list[bool]]:
        with _template_errors(self.name):
            encoded = self._tokenizer.apply_chat_template(
                list(messages),
                tools=tools,
                tokenize=True,
                return_dict=True,
                return_assistant_tokens_mask=True,
                **self._template_args,
            )
        flags = [bool(one) for one in encoded["assistant_masks"]]
        answers = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
        if len(learned) == len(answers):
            return encoded["input_ids"], flags
        ends = [False, *flags, False]
        edges = [n for n in range(len(flags) + 1) if ends[n] != ends[n + 1]]  # of runs of learned tokens
        if len(edges) != 2 * len(answers):
            counts = f"{len(edges) // 2} texts for {len(answers)} messages of the assistant"
            raise ChatError(f"the chat template of `{self.name}` marks {counts}, so one cannot be left out")
        for number, start, stop in zip(answers, edges[::2], edges[1::2], strict=True):
            flags[start:stop] = [number in learned] * (stop - start)
        return encoded["input_ids"], flags

    def _spans(
        self, text: str, messages: Sequence[Message], tools: Sequence[Any] | None, learned: Collection[int]
    ) -> list[tuple[int, int]]:
        """Returns the character range (start, stop) of each message whose number is in `learned`."""
        spans = []
        for number in learned:
            before = self._rendered(messages[:number], tools, add_generation_prompt=True)
            through = self._rendered(messages[: number + 1], tools)
            if not (text.startswith(before) and text.startswith(through)):
                raise ChatError(
                    f"the chat template of `{self.name}` renders message {number} differently once "
                    "others follow it, so its tokens cannot be found: write `learn: turns`, which makes a "
                    "sample of each turn, or `learn: last`"
                )
            spans.append((len(before), len(through)))
        return spans

    def _rendered(
        self, messages: Sequence[Message], tools: Sequence[Any] | None, add_generation_prompt: bool = False
    ) -> str:
        with _template_errors(self.name):
            text: str = self._tokenizer.apply_chat_template(
                list(messages),
                tools=tools,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                **self._template_args,
            )
        return text


@contextmanager
def _template_errors(name: str) -> Iterator[None]:
    """Returns a context that converts an error of a template to a `ChatError`."""
    try:
        yield
    except Exception as error:  # a template can raise what any of its expressions raises
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ChatError(f"the chat template of `{name}` fails: {first}") from None


def _loaded(name: str) -> Any:
    with extra("hf"):
        from transformers import AutoTokenizer
    folder = SHIPPED_TOKENIZERS.get(name) or local_folder(name, sys.path, os.environ, TOKENIZER_FILES)
    folder = folder or next((place for place in _places(name) if place.is_dir()), None)
    try:
        return AutoTokenizer.from_pretrained(folder or name)
    except Exception as error:  # the library raises what its readers and the hub raise
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(f"tokenizer `{name}` cannot be loaded: {first}") from None


def _file(name: str) -> Path:
    found = next((place for place in _places(name) if place.is_file()), None)
    if found is None:
        raise DataError(f"no chat template {name!r} in the recipe's folder or the working directory")
    return found


def _places(name: str) -> list[Path]:
    return [Path(folder, name) for folder in sys.path]
