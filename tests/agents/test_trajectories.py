"""Tokens in, tokens out: random episodes over several templates, and the labels of their rows."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from meshctl.agents.chat import Chat
from meshctl.agents.trajectories import Call, Forest, digests
from meshctl.data.chats import messages_of
from meshctl.data.tokenizer import Tokenizer
from tests.agents.agents_of_users import TOOLS
from tests.agents.worlds import END

DROPS_REASONING = """\
{%- for message in messages %}
{%- set content = message.content %}
{%- if message.role == 'assistant' and not loop.last %}{% set content = content.split('</think>')[-1] %}{% endif %}
{{- '<|im_start|>' + message.role + '\\n' + (content | trim) }}
{%- for call in message.tool_calls or [] %}{{ '<tool_call>' + (call.function | tojson) + '</tool_call>' }}{% endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>' }}{% endif %}
"""
STRICT = """\
{%- set seen = namespace(calls=false) %}
{%- if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}
{%- for message in messages if message.role != 'system' %}
{%- if message.role == 'assistant' %}
{%- if message.tool_calls %}[CALLS]{{ message.tool_calls | tojson }}{% else %}{{ message.content }}{% endif %}
{{- '<|im_end|>' }}
{%- elif message.role == 'tool' %}
{%- if not seen.calls %}{{ raise_exception('a result without a call') }}{% endif %}[RESULT]{{ message.content }}[/RESULT]
{%- else %}[INST]{{ message.content }}[/INST]{% endif %}
{%- if message.role != 'tool' %}{% set seen.calls = message.tool_calls %}{% endif %}
{%- endfor %}
"""
TEMPLATES = {"byte": "", "drops_reasoning": DROPS_REASONING, "strict": STRICT}


def chat_of(name: str, folder: Path, **options: Any) -> Chat:
    if text := TEMPLATES[name]:
        (folder / name).write_text(text)
    return Chat(Tokenizer("byte", str(folder / name) if text else ""), [END, 0], **options)


def answer(draw: random.Random) -> tuple[list[int], str]:
    """Returns sampled tokens and why they ended: texts, reasoning, calls of tools, and noise."""
    call = json.dumps({"name": "add", "arguments": {"a": draw.randrange(9), "b": 1}})
    text = draw.choice(
        [
            "so",
            "  spaces\n",
            "<think>well</think>\n\nso",
            "well</think> so",
            f"<tool_call>\n{call}\n</tool_call>",
            f"both <tool_call>{call}</tool_call><tool_call>{call}</tool_call>",
            "<tool_call>{broken</tool_call>",
            "<tool_call>cut",
        ]
    )
    tokens = [*text.encode(), *draw.choices(range(256), k=draw.randrange(3))]
    return (tokens, "length") if draw.random() < 0.2 else ([*tokens, draw.choice([END, END, END, 0])], "stop")


def echoed(reply: Any, draw: random.Random) -> dict[str, Any]:
    """Returns a reply as clients send it back: with arguments as text, and often without reasoning."""
    message = {**reply}
    if draw.random() < 0.7:
        message.pop("reasoning_content", None)
    if draw.random() < 0.3:
        message["content"] = message["content"].strip()
    if calls := message.get("tool_calls"):
        message["tool_calls"] = [
            {**one, "function": {**one["function"], "arguments": json.dumps(one["function"]["arguments"])}}
            for one in calls
        ]
        message["content"] = message["content"] or None
    return message


def episode(chat: Chat, draw: random.Random, calls: int) -> tuple[Forest, Counter[str]]:
    """Plays a random episode: histories that go on, branches, retries, and histories that are rewritten.
    Returns its calls, and how many have which kind."""
    forest, kinds = Forest(), Counter[str]()
    histories: list[tuple[list[Any], int | None]] = [([{"role": "user", "content": "begin"}], None)]
    while len(forest.calls) < calls:
        messages, before = draw.choice(histories[-4:])
        if draw.random() < 0.05:
            messages, before = [{"role": "system", "content": "short"}, messages[-1]], None
            if messages[-1]["role"] != "user":
                continue
        tools = TOOLS if before is None or forest.calls[before].tools else None
        parsed = [{"content": "", **one} for one in messages_of(messages, "messages")]
        prompt = chat.prompt(forest, parsed, tools)
        tokens, reason = answer(draw)
        key = f"{prompt.history[-1]}{forest.begin(prompt.history[-1])}"
        reply, _ = chat.reply(key, prompt.tokens, tokens, tools, ())
        kinds["continued" if prompt.parent is not None else "root"] += 1
        if prompt.parent is not None:
            parent = forest.calls[prompt.parent]
            kinds["wrong"] += prompt.tokens[: len(parent.prompt) + len(parent.tokens)] != [
                *parent.prompt,
                *parent.tokens,
            ]
        if before is not None and prompt.parent is not None:
            own, taken = forest.calls[before], forest.calls[prompt.parent]
            histories_of_both = ([*one.messages, one.reply] for one in (own, taken))
            first, second = (digests(one, None)[-1] for one in histories_of_both)
            kinds["another"] += first != second
        kinds["lost"] += before is not None and prompt.parent is None
        number = len(forest.calls)
        sent = key, prompt.parent, parsed, tools, reply, reason, prompt.tokens
        forest.add(
            Call(*sent, tokens, [-1.0 - number] * len(tokens), [number] * len(tokens)), prompt.history[-1]
        )
        further: list[Any] = [{"role": "user", "content": f"go {number}"}]
        if wanted := reply.get("tool_calls"):
            further = [{"role": "tool", "tool_call_id": one["id"], "content": "3"} for one in wanted]
        histories.append(([*messages, echoed(reply, draw), *further], number))
    return forest, kinds


def check_rows(forest: Forest) -> None:
    """Each sampled token is a label once, with its own log-probability and version."""
    labelled = Counter[int]()
    for row in forest.rows():
        assert len({len(one) for one in row[1:]}) == 1
        for token, label, logprob, version in zip(*row[1:], strict=True):
            assert label in (-100, token) and (label == -100) == (logprob == 0.0) == (version == -1)
            labelled[version] += label != -100
            assert version == -1 or logprob == -1.0 - version
    assert labelled[-1] == 0
    assert [labelled[number] for number in range(len(forest.calls))] == [
        len(call.tokens) for call in forest.calls
    ]


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("calls", [300, pytest.param(3400, marks=pytest.mark.nightly)])
def test_a_prompt_begins_with_exactly_the_tokens_of_the_call_that_it_continues(
    template: str, calls: int, tmp_path: Path
) -> None:
    chat, kinds = chat_of(template, tmp_path), Counter[str]()
    for seed in range(calls // 25):
        forest, found = episode(chat, random.Random(seed), 25)
        check_rows(forest)
        kinds += found
    assert not kinds["wrong"] and not kinds["another"] and kinds["continued"] > calls / 3
    # A result behind a reply without a call is an error of the strict template: the history is a new root.
    assert template == "strict" or not kinds["lost"]


def test_histories_that_are_rendered_continue_a_call_only_if_they_begin_with_its_tokens(
    tmp_path: Path,
) -> None:
    chats = {name: chat_of(name, tmp_path, history="render") for name in TEMPLATES}
    messages: list[Any] = [{"role": "user", "content": "begin"}]
    parents = {}
    for name, chat in chats.items():
        forest, own = Forest(), [*messages]
        for text in ("<think>well</think>so", "<think>good</think>then"):
            prompt = chat.prompt(forest, own, None)
            tokens = [*text.encode(), END]
            reply, _ = chat.reply("k", prompt.tokens, tokens, None, ())
            sent = "k", prompt.parent, [*own], None, reply, "stop", prompt.tokens
            forest.add(Call(*sent, tokens, [-1.0] * len(tokens)), prompt.history[-1])
            own += [{"role": "assistant", "content": text}, {"role": "user", "content": "on"}]
        parents[name] = [call.parent for call in forest.calls]
        assert sum(len(row.tokens) > 0 for row in forest.rows()) == 1 + (parents[name][1] is None)
    assert parents == {"byte": [None, 0], "drops_reasoning": [None, None], "strict": [None, 0]}


def test_a_response_template_of_the_tokenizer_reads_the_calls_of_tools(tmp_path: Path) -> None:
    tokenizer = Tokenizer("byte")
    tokenizer._tokenizer.response_template = {
        "start_anchor": "<|im_start|>assistant\n",
        "fields": {
            "thinking": {"open": "<think>", "close": "</think>"},
            "content": {},
            "tool_calls": {"open": "[CALL]", "close": "[/CALL]", "repeats": True, "content": "json"},
        },
    }
    chat = Chat(tokenizer, [END])
    text = '<think>sum</think>It is[CALL]{"name": "add", "arguments": {"a": 1}}[/CALL]'
    prompt = tokenizer.text("<|im_start|>assistant\n", is_start=False)
    reply, _ = chat.reply("0" * 24, prompt, [*text.encode(), END], TOOLS, ())
    assert reply["content"] == "It is" and reply["reasoning_content"] == "sum"
    assert [one["function"] for one in reply["tool_calls"]] == [{"name": "add", "arguments": {"a": 1}}]
    assert reply["tool_calls"][0]["id"] == f"call_{'0' * 16}_0"
    broken, _ = chat.reply("0" * 24, prompt, [*b"It is[CALL][1, 2][/CALL]", END], TOOLS, ())
    assert broken["content"] == "It is[CALL][1, 2][/CALL]" and "tool_calls" not in broken
