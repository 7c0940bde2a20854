"""Messages of the protocol as tokens of a model, and sampled tokens as a reply."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from meshctl.agents.trajectories import Forest, Message, digests
from meshctl.data.tokenizer import ChatError, Tokenizer

MARKER = f"reply-{secrets.token_hex(8)}"
"""The content of a reply that is rendered in place of a sampled one."""
TOOL_CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)
THINKING = re.compile(r"^\s*(?:<think>)?(.*?)</think>\s*", re.DOTALL)
OPENING = "<tool_call>"


class Prompt(NamedTuple):
    tokens: list[int]
    parent: int | None
    """The index of the call whose tokens are its beginning; None for a new root."""
    history: list[str]
    """The digests of the request."""


class Chat:
    """Renders requests and reads answers with the template of a tokenizer."""

    def __init__(
        self, tokenizer: Tokenizer, ends: Collection[int], history: Literal["append", "render"] = "append"
    ) -> None:
        """`ends` are the tokens that end an answer.

        With `append`, a request that continues a call has its tokens, and behind them what the template
        renders behind a marker: the end of the reply, the new messages, the start of the next reply. With
        `render` every request is rendered whole, and continues a call if it begins with the same tokens.
        """
        self._tokenizer, self._ends, self._history = tokenizer, frozenset(ends), history

    def prompt(self, forest: Forest, messages: Sequence[Message], tools: Sequence[Any] | None) -> Prompt:
        """Returns the tokens of a request. Raises `ChatError` if the template fails."""
        history = digests(messages, tools)
        if self._history == "append" and (found := forest.longest(history)):
            number, count = found
            if (behind := self._behind_reply(messages, tools, count)) is not None:
                call = forest.calls[number]
                if behind[:1] and behind[0] in self._ends and call.tokens[-1] in self._ends:
                    behind = behind[1:]  # the sampled end token stands for that of the template
                return Prompt([*call.prompt, *call.tokens, *behind], number, history)
        tokens = self._tokenizer.text(self._tokenizer.rendered_prompt(messages, tools), is_start=False)
        parent = forest.with_prefix(tokens) if self._history == "render" else None
        return Prompt(tokens, parent, history)

    def text(self, tokens: Sequence[int]) -> str:
        """Returns the text of tokens, special ones included."""
        return self._tokenizer.decode(tokens)

    def _behind_reply(
        self, messages: Sequence[Message], tools: Sequence[Any] | None, count: int
    ) -> list[int] | None:
        """Returns the tokens behind the reply that is message `count - 1`; None if the template does not
        render the reply."""
        marked = [*messages[: count - 1], {"role": "assistant", "content": MARKER}, *messages[count:]]
        try:
            _, found, behind = self._tokenizer.rendered_prompt(marked, tools).rpartition(MARKER)
        except ChatError:  # such as a result of a tool behind a reply without a call
            return None
        return self._tokenizer.text(behind, is_start=False) if found else None

    def reply(
        self,
        key: str,
        prompt: Sequence[int],
        tokens: Sequence[int],
        tools: Sequence[Any] | None,
        stop: Sequence[str],
    ) -> tuple[Message, int]:
        """Returns the reply to the request `key`, with its content, its reasoning and its calls of tools, and
        the number of calls that cannot be parsed and stay in the content. A text of `stop` and what follows
        it are left out."""
        own = tokens[:-1] if tokens[-1] in self._ends else tokens
        parsed = self._tokenizer.parsed_response(own, prompt, tools)
        found = _message_of(parsed) if parsed is not None else None
        if found is not None:
            content, reasoning, calls, errors = *found, 0
        else:
            [text] = self._tokenizer.decode_rows([own], is_plain=True)
            thought = THINKING.match(text)
            content, reasoning = (text[thought.end() :], thought[1].strip()) if thought else (text, "")
            content, calls, errors = _calls_in(content) if tools else (content, [], 0)
        for text in stop:
            content = content.partition(text)[0]
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if reasoning:
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = [
                {"id": f"call_{key[:16]}_{number}", "type": "function", "function": function}
                for number, function in enumerate(calls)
            ]
        return message, errors


def _message_of(parsed: Mapping[str, Any]) -> tuple[str, str, list[dict[str, Any]]] | None:
    """Returns content, reasoning and calls of tools that a response template has read. Returns None if they
    have other types, such as a call without a name."""
    content, reasoning = parsed.get("content") or "", ""
    for key in ("thinking", "reasoning_content"):
        reasoning = parsed.get(key) or reasoning
    given = parsed.get("tool_calls") or []
    calls = [one.get("function", one) if isinstance(one, Mapping) else one for one in given]
    if not isinstance(content, str) or not isinstance(reasoning, str) or not all(map(_is_call, calls)):
        return None
    return content, reasoning, [{"name": one["name"], "arguments": one.get("arguments", {})} for one in calls]


def _is_call(value: Any) -> bool:
    is_named = isinstance(value, Mapping) and isinstance(value.get("name"), str)
    return is_named and isinstance(value.get("arguments", {}), Mapping)


def _calls_in(content: str) -> tuple[str, list[dict[str, Any]], int]:
    """Returns the content without its calls of tools, these calls as `name` and `arguments`, and the number
    of those that cannot be parsed."""
    calls, errors = list[dict[str, Any]](), 0

    def taken(found: re.Match[str]) -> str:
        nonlocal errors
        try:
            call = json.loads(found[1])
        except (ValueError, RecursionError):
            call = None
        if _is_call(call):
            calls.append({"name": call["name"], "arguments": dict(call.get("arguments", {}))})
            return ""
        errors += 1
        return found[0]

    rest = TOOL_CALL.sub(taken, content)
    errors += OPENING in TOOL_CALL.sub("", rest)  # a call without an end
    return rest.strip() if calls else rest, calls, errors
