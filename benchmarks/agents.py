"""The cost of a request to the gateway of `agents.Agent`, without the engine.

    python benchmarks/agents.py [--rounds 5]

An engine answers at once with eight tokens. 32 clients of another process ask at the same time, each in a
conversation of 4,000 tokens, and each request goes on with the history of the one before. A round has 320
requests; its figure is its time, divided by their number. The other side is the same traffic to a server of
aiohttp that returns a constant reply, which the figure contains.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from typing import Any

GOAL_MS, CLIENTS, TURNS, HISTORY = 2.0, 32, 10, 4000

CLIENT = """
import asyncio, json, sys, time
import aiohttp

async def talk(session, url, token, text, turns):
    messages = [{"role": "user", "content": text}]
    for _ in range(turns):
        headers = {"Authorization": f"Bearer {token}"}
        async with session.post(url, json={"messages": messages}, headers=headers) as response:
            reply = (await response.json())["choices"][0]["message"]
        messages += [reply, {"role": "user", "content": "on"}]

async def main():
    given = json.loads(sys.stdin.readline())
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        for url, tokens in iter(lambda: json.loads(sys.stdin.readline() or "null"), None):
            begin = time.perf_counter()
            await asyncio.gather(*(talk(session, url, one, given["text"], given["turns"]) for one in tokens))
            print(time.perf_counter() - begin, flush=True)

asyncio.run(main())
"""


def made() -> Any:
    """Returns an agent whose sampler answers at once."""
    from pathlib import Path
    from tempfile import mkdtemp

    from meshctl.agents import Agent
    from meshctl.data.examples import PromptLimits
    from meshctl.runtime.rank_context import RankContext
    from meshctl.sampling.answers import AnswerSampler
    from meshctl.sampling.continuous import Answer, Continuous

    class Stepper:
        def __init__(self) -> None:
            self.waiting: list[Any] = []

        def add(self, key: Any, request: Any) -> None:
            self.waiting.append(key)

        def step(self) -> list[Any]:
            found = [(key, 0, Answer([*b"a reply", 258], [-1.0] * 8, "stop")) for key in self.waiting]
            self.waiting.clear()
            return found

    class Instant(AnswerSampler):
        end_tokens = (258,)
        tokenizer_name, group_size = "byte", 1
        generator = Continuous(Stepper())  # type: ignore[assignment, arg-type]
        limits = PromptLimits(259, None, 8, ValueError)  # type: ignore[assignment, arg-type]

        def _scores(self, texts: Any) -> Any: ...

    agent = Agent("sampler", command=["true"], max_turns=10**6)
    peers: dict[str, object] = {"sampler": Instant()}
    agent._context = RankContext("agent", run_dir=Path(mkdtemp()), peers=peers)
    agent.setup()
    return agent


async def constant() -> str:
    """Starts the server with a constant reply, and returns its address."""
    from aiohttp import web

    async def reply(request: web.Request) -> web.Response:
        await request.read()
        message = {"role": "assistant", "content": "a reply"}
        return web.json_response({"choices": [{"index": 0, "message": message}]})

    app = web.Application(client_max_size=1 << 24)
    app.router.add_post("/", reply)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return f"http://127.0.0.1:{runner.addresses[0][1]}/"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    from meshctl.agents.gateway import Episode
    from meshctl.runtime.event_loop import result_of

    agent, bare = made(), result_of(constant())
    agent._policy  # noqa: B018

    async def opened() -> list[Any]:
        found = [Episode(f"{number}.0") for number in range(CLIENTS)]
        for one in found:
            agent._gateway.open(one)
        return found

    text = " ".join(f"word {number}" for number in range(HISTORY))[:HISTORY]
    process = subprocess.Popen(
        [sys.executable, "-c", CLIENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin and process.stdout

    def said(value: Any) -> None:
        process.stdin.write(json.dumps(value) + "\n")  # type: ignore[union-attr]
        process.stdin.flush()  # type: ignore[union-attr]

    said({"text": text, "turns": TURNS})
    found: dict[str, list[float]] = {"gateway": [], "constant": []}
    for _ in range(rounds + 1):
        episodes = result_of(opened())
        for side, url in (("gateway", f"{agent._gateway.base_url}/chat/completions"), ("constant", bare)):
            said([url, [one.token for one in episodes]])
            found[side].append(float(process.stdout.readline()) / (CLIENTS * TURNS) * 1000)
        for one in episodes:
            calls = one.forest.calls
            assert len(calls) == TURNS and [call.parent for call in calls] == [None, *range(TURNS - 1)]
    process.stdin.close()
    process.wait()
    result_of(asyncio.sleep(0))
    gateway, other = (statistics.median(found[side][1:]) for side in ("gateway", "constant"))
    print(f"{CLIENTS} clients, histories of {HISTORY} tokens, {time.strftime('%Y-%m-%d')}")
    print(f"  a request to the gateway    {gateway:6.2f} ms")
    print(f"  to a server with one reply  {other:6.2f} ms")
    value = round(gateway, 2)
    print(json.dumps({"name": "agents", "value": value, "goal": GOAL_MS, "ok": value <= GOAL_MS}))
    agent.close()


if __name__ == "__main__":
    main()
