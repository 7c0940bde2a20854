"""A program that solves a sum with a calculator. It was not written for meshctl: it knows an OpenAI client, whose
address and key are in the environment, and a file with its task."""

import json
import os
import sys

from openai import OpenAI


def add(a: int, b: int) -> int:
    return a + b


def length(text: str) -> int:
    return len(text)


def tool(function: object, **parameters: str) -> object:
    properties = {name: {"type": kind} for name, kind in parameters.items()}
    name = function.__name__  # type: ignore[attr-defined]
    schema = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def main() -> None:
    assert sys.argv[1] == os.environ["MESHCTL_TASK"]
    with open(sys.argv[1]) as file:
        task = json.load(file)
    mode = os.stat(os.environ["MESHCTL_TASK"]).st_mode & 0o777
    assert mode == 0o600 and os.environ["TMPDIR"] in os.environ["MESHCTL_TASK"], oct(mode)
    tools = [tool(add, a="integer", b="integer"), tool(length, text="string")]
    messages = [{"role": "user", "content": task["question"]}]
    client = OpenAI()
    while True:
        reply = client.chat.completions.create(model="any", messages=messages, tools=tools)  # type: ignore[call-overload]
        messages.append(reply.choices[0].message)
        if not reply.choices[0].message.tool_calls:
            break
        for call in reply.choices[0].message.tool_calls:
            value = globals()[call.function.name](**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(value)})
    answer = reply.choices[0].message.content
    print(json.dumps({"reward": float(answer == "42"), "length": len(answer)}))


main()
