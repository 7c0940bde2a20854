"""Agents as users write them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
import zlib
from typing import Any

import aiohttp

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds two numbers.",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            },
        },
    }
]


async def ask(episode: Any, messages: list[Any], **options: Any) -> Any:
    """Asks for a reply and appends it to the messages."""
    body = {"model": "policy", "messages": messages, **options}
    headers = {"Authorization": f"Bearer {episode.api_key}"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{episode.base_url}/chat/completions", json=body, headers=headers) as response,
    ):
        response.raise_for_status()
        data = await response.read()
    choice = {**json.loads(data)["choices"][0], "data": data}
    messages.append(choice["message"])
    return choice


async def turns(
    episode: Any, question: str, *, turns: int = 3, word: str = "and", begin: str = ""
) -> dict[str, float]:
    """A conversation of several turns."""
    messages: list[Any] = [{"role": "user", "content": begin or question}]
    for turn in range(turns):
        await ask(episode, messages)
        messages.append({"role": "user", "content": f"{word} {turn}?"})
    return {"reward": len(question) + int(episode.id.rpartition(".")[2]) / 10, "asked": turns}


async def adds(episode: Any, question: str) -> dict[str, float]:
    """A loop with a tool."""
    messages: list[Any] = [{"role": "user", "content": question}]
    calls = 0
    while (await ask(episode, messages, tools=TOOLS))["finish_reason"] == "tool_calls":
        for one in messages[-1]["tool_calls"]:
            numbers = json.loads(one["function"]["arguments"])
            content = str(numbers["a"] + numbers["b"])
            messages.append({"role": "tool", "tool_call_id": one["id"], "content": content})
            calls += 1
    return {"reward": float(messages[-1]["content"]), "calls": calls}


async def branches(episode: Any, question: str) -> float:
    """Parallel requests, a retry, and a history that is rewritten."""
    first: list[Any] = [{"role": "user", "content": question}]
    await ask(episode, first)
    ways = [[*first, {"role": "user", "content": f"way {number}"}] for number in range(3)]
    await asyncio.gather(*(ask(episode, way) for way in ways), ask(episode, [*ways[0]]))
    await ask(episode, [{"role": "user", "content": f"in short: {question}"}])
    return 1.0


async def either(episode: Any, question: str) -> float | None:
    """Does what the question says."""
    messages: list[Any] = [{"role": "user", "content": question}]
    if question == "silent":
        return 0.0
    await ask(episode, messages)
    if question == "raise":
        raise ValueError(f"no way, {episode.api_key}")
    if question == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if question == "exit":
        raise SystemExit(3)
    if question == "hang":
        time.sleep(3600)
    if question == "wait":
        await asyncio.sleep(3600)
    if question == "endless":
        while True:
            await ask(episode, messages)
    if question == "none":
        return None
    if question == "text":
        return "good"  # type: ignore[return-value]
    return 1.0


async def flaky(episode: Any, question: str, *, folder: str) -> float:
    """Fails when it is first called for a question."""
    await ask(episode, [{"role": "user", "content": question}])
    path = os.path.join(folder, question)
    if not os.path.exists(path):
        with open(path, "w"):
            raise RuntimeError("the first time")
    return 1.0


async def late(episode: Any, question: str) -> float:
    """Asks once more after a refusal."""
    messages: list[Any] = [{"role": "user", "content": question}]
    try:
        while True:
            await ask(episode, messages)
    except aiohttp.ClientError:
        return 5.0


def ordinary(episode: Any, question: str) -> float:
    return 1.0


async def bare() -> float:
    return 1.0


async def exact(episode: Any, question: str) -> float:
    """Returns a checksum of all bytes that it gets."""
    messages: list[Any] = [{"role": "user", "content": question}]
    choices = [await ask(episode, messages, tools=TOOLS) for _ in range(3)]
    choices += await asyncio.gather(*(ask(episode, [*messages]) for _ in range(2)))
    return float(sum(zlib.crc32(one["data"]) for one in choices))


async def with_litellm(episode: Any, question: str) -> float:
    import litellm

    messages: list[Any] = [{"role": "user", "content": question}]
    while True:
        given = {"api_base": episode.base_url, "api_key": episode.api_key, "tools": TOOLS}
        reply = await litellm.acompletion(model="openai/policy", messages=messages, **given)
        messages.append(reply.choices[0].message)
        if not reply.choices[0].message.tool_calls:
            return float(reply.choices[0].message.content)
        for one in reply.choices[0].message.tool_calls:
            numbers = json.loads(one.function.arguments)
            result = {"role": "tool", "tool_call_id": one.id, "content": str(numbers["a"] + numbers["b"])}
            messages.append(result)
