"""Two agents with a calculator. They know neither meshctl nor torch: they speak the OpenAI protocol to the
address that they are given. The first parameter of an agent is its episode, and the others name columns."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import aiohttp

EXPRESSION = {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}
CALCULATOR = {
    "type": "function",
    "function": {
        "name": "calculate",
        "description": "Returns the value of an expression of numbers with + and -.",
        "parameters": EXPRESSION,
    },
}


@cache
def session() -> aiohttp.ClientSession:
    """One for all episodes of the process."""
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None))


async def ask(episode: Any, messages: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
    """Asks for the next message, appends it, and returns it."""
    body = {"model": "policy", "messages": messages, **options}
    headers = {"Authorization": f"Bearer {episode.api_key}"}
    async with session().post(f"{episode.base_url}/chat/completions", json=body, headers=headers) as response:
        response.raise_for_status()
        reply: dict[str, Any] = (await response.json())["choices"][0]["message"]
    messages.append(reply)
    return reply


def calculate(expression: str) -> str:
    """Returns the value of a sum such as `3+4-2`, or what is wrong with it."""
    if not re.fullmatch(r"\s*\d+(\s*[+-]\s*\d+)*\s*", expression, re.ASCII):
        return "an expression has numbers, + and -"
    return str(sum(int(term.replace(" ", "")) for term in re.findall(r"[+-]?\s*\d+", expression)))


async def solve(episode: Any, question: str, answer: int, *, max_calls: int = 4) -> dict[str, float]:
    """Calls the calculator as a tool, as a trained model does."""
    content, calls = f"What is {question}? End with the number alone.", 0
    messages: list[dict[str, Any]] = [{"role": "user", "content": content}]
    while tools := (await ask(episode, messages, tools=[CALCULATOR])).get("tool_calls"):
        for one in tools:
            arguments = json.loads(one["function"]["arguments"])
            value = calculate(str(arguments.get("expression")))
            messages.append({"role": "tool", "tool_call_id": one["id"], "content": value})
        if (calls := calls + len(tools)) >= max_calls:
            break
    words = (messages[-1].get("content") or "").split()
    return {"reward": float(words[-1:] == [str(answer)]), "calls": calls}


async def solve_short(episode: Any, question: str, answer: int) -> dict[str, float]:
    """The same for a tiny model with random weights, which cannot write JSON: its reply is one letter, and
    `=` calls the calculator. A call has a small reward of its own, and a guess without one has none."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
    reply, calls = (await ask(episode, messages))["content"], 0
    if reply == "=":
        messages.append({"role": "tool", "content": calculate(question)})
        reply, calls = (await ask(episode, messages))["content"], 1
    is_right = calls and reply == str(answer)
    return {"reward": 1.0 if is_right else 0.2 * (calls and reply != "="), "right": is_right, "calls": calls}
