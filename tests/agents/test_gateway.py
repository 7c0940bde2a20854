"""The server of the protocol: what it answers to clients, to mistakes, to strangers and to noise."""

from __future__ import annotations

import asyncio
import io
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from meshctl.agents.agent import Agent
from meshctl.agents.gateway import MAX_BODY, Episode
from meshctl.runtime.event_loop import event_loop, result_of
from tests.agents.worlds import HERE, ScriptedSampler, agent, questions

ASK = {"messages": [{"role": "user", "content": "hi"}]}
TOOL = {"type": "function", "function": {"name": "add"}}


def say(prompt: str) -> str:
    return "one two three"


class Site:
    """A gateway with an open episode, and a client."""

    def __init__(self, made: Agent) -> None:
        self.made, self.gateway = made, made._gateway
        self.episode = result_of(self._opened())

    async def _opened(self) -> Episode:
        self.made._chat  # noqa: B018
        episode = Episode("7.0", step=1)
        self.gateway.open(episode)
        return episode

    def post(
        self, body: Any, token: str | None = None, path: str = "/chat/completions", method: str = "POST"
    ) -> tuple[int, Any]:
        return result_of(self.posted(body, token, path, method))

    async def posted(
        self, body: Any, token: str | None = None, path: str = "/chat/completions", method: str = "POST"
    ) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self.episode.token if token is None else token}"}
        async with (
            aiohttp.ClientSession() as session,
            session.request(
                method, self.gateway.base_url + path, data=io.BytesIO(data), headers=headers
            ) as response,
        ):
            text = await response.text()
            return response.status, None if text.startswith("data") else json.loads(text)

    def close(self) -> None:
        async def closed() -> None:
            self.gateway.close(self.episode)

        result_of(closed())


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with agent(say, tmp_path_factory.mktemp("run"), function=f"{HERE}.turns", max_turns=10_000) as made:
        yield Site(made)


def test_a_reply_has_the_form_of_the_protocol_and_the_same_bytes_for_the_same_request(site: Site) -> None:
    status, reply = site.post({**ASK, "model": "m", "temperature": 0.3, "user": "me", "n": 1})
    assert status == 200 and reply["object"] == "chat.completion" and reply["model"] == "m"
    [choice] = reply["choices"]
    assert choice["message"] == {"role": "assistant", "content": "one two three"}
    assert choice["finish_reason"] == "stop" and reply["usage"]["completion_tokens"] == 14
    assert site.post(ASK)[1]["id"] != reply["id"]  # the request once more is another one


def test_options_of_a_request(site: Site) -> None:
    _, short = site.post({**ASK, "max_tokens": 5})
    assert short["choices"][0]["message"]["content"] == "one t"
    assert short["choices"][0]["finish_reason"] == "length"
    _, stopped = site.post({**ASK, "stop": ["two"], "max_completion_tokens": 9})
    assert stopped["choices"][0]["message"]["content"] == "one "
    assert site.made._engine.stepper.requests[-1].stop == ("two",)  # type: ignore[attr-defined]
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    site.post({"messages": [{"role": "developer", "content": parts}, *ASK["messages"]]})
    prompt = site.made._engine.tokenizer.decode(site.made._engine.stepper.requests[-1].prompt)  # type: ignore[attr-defined]
    assert prompt.startswith("<|im_start|>system\nab<|im_end|>")
    assert site.post(b"", path="/models", method="GET")[1]["data"][0]["id"] == "policy"


def test_a_stream_has_one_piece(site: Site) -> None:
    async def streamed() -> list[str]:
        headers = {"Authorization": f"Bearer {site.episode.token}"}
        body = {**ASK, "stream": True, "stream_options": {"include_usage": True}}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{site.gateway.base_url}/chat/completions", json=body, headers=headers) as response,
        ):
            return (await response.text()).split("\n\n")

    *pieces, end, _ = result_of(streamed())
    first, last, usage = (json.loads(piece.removeprefix("data: ")) for piece in pieces)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": "one two three"}
    assert last["choices"][0]["finish_reason"] == "stop" and usage["usage"]["completion_tokens"] == 14
    assert end == "data: [DONE]"


WRONG: dict[str, tuple[Any, int, str]] = {
    "no json": (b"{", 400, "the body is not JSON"),
    "deep": (b"[" * 100_000, 400, "the body is not JSON"),
    "surrogate": (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', 400, "the body is not JSON"),
    "list": ([], 400, "the body is not an object"),
    "no messages": ({}, 400, "`messages` is not a list of messages"),
    "role": ({"messages": [{"content": "x"}]}, 400, "`messages[0]` is not an object with `role`"),
    "image": (
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        400,
        "`messages[0].content` has a part of the type `image_url`",
    ),
    "number": ({"messages": [{"role": "user", "content": 3}]}, 400, "`content` is a text"),
    "option": ({**ASK, "best_of": 2}, 400, "there is no option `best_of` here"),
    "n": ({**ASK, "n": 2}, 400, "`n` is 1 here"),
    "tool_choice": ({**ASK, "tool_choice": "required"}, 400, "`tool_choice` is auto here"),
    "tools": ({**ASK, "tools": [{"name": "add"}]}, 400, "`tools` is a list of functions"),
    "max_tokens": ({**ASK, "max_tokens": 0.5}, 400, "`max_tokens` is a positive integer"),
    "no token": ({**ASK, "max_tokens": 0}, 400, "`max_tokens` is a positive integer"),
    "stop": ({**ASK, "stop": [1]}, 400, "`stop` is a text or a list of texts"),
    "large": (b" " * (MAX_BODY + 1), 413, f"a body has at most {MAX_BODY} bytes"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_request_is_an_error_of_the_protocol(case: str, site: Site) -> None:
    body, status, message = WRONG[case]
    found, reply = site.post(body)
    assert (found, reply["error"]["message"][: len(message)]) == (status, message)
    assert reply["error"]["type"] == "invalid_request_error"


def test_strangers_and_ended_episodes(site: Site, tmp_path: Path) -> None:
    rejected = site.gateway.rejected
    assert site.post(ASK, token="")[0] == site.post(ASK, token="sk-" + "0" * 32)[0] == 401
    assert site.post(b"", token="x", path="/models", method="GET")[0] == 401
    with agent(say, tmp_path, function=f"{HERE}.turns") as other:
        ended = Site(other)
        assert ended.post(ASK)[0] == 200 and site.post(ASK, token=ended.episode.token)[0] == 401
        ended.close()
        status, reply = ended.post(ASK)
    assert (status, reply["error"]["code"]) == (410, "episode_ended")
    assert site.gateway.rejected == rejected + 4
    assert site.post(ASK, path="/embeddings")[1]["error"]["message"] == "there is no /v1/embeddings"
    assert site.post(b"", method="GET")[0] == 405
    assert site.gateway.base_url.startswith("http://127.0.0.1:")


def test_a_call_whose_client_has_gone_is_aborted_and_not_recorded(tmp_path: Path) -> None:
    asked = asyncio.Event()

    def first_waits(prompt: str) -> str | None:
        if "first" in prompt:
            event_loop().call_soon_threadsafe(asked.set)
        return None if "first" in prompt else "said"

    sampler = ScriptedSampler(first_waits)
    with agent(sampler, tmp_path, function=f"{HERE}.turns") as made:
        site = Site(made)

        async def gone() -> None:
            task = asyncio.create_task(site.posted({"messages": [{"role": "user", "content": "first"}]}))
            await asked.wait()
            task.cancel()
            while not sampler.stepper.aborted:
                await asyncio.sleep(0.01)

        result_of(gone())
        assert site.post(ASK)[0] == 200
        assert [call.reply["content"] for call in site.episode.forest.calls] == ["said"]


NOISE: list[Any] = [
    None,
    True,
    -1,
    1e308,
    "",
    "x",
    [],
    {},
    [[]],
    [None],
    {"role": "user"},
    {"function": 3},
    "\0",
]


@pytest.mark.parametrize("seed", range(3))
def test_noise_is_answered_and_nothing_else_happens(seed: int, site: Site) -> None:
    """Requests in which random values are replaced by others. None is an error of the server, and the next
    request is answered."""
    draw = random.Random(seed)
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    whole = {
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "3", "tool_call_id": "c"},
        ],
        **{"tools": [TOOL], "stop": ["x"], "max_tokens": 9, "stream": False, "n": 1, "model": "m"},
    }

    def spoilt(value: Any) -> Any:
        if draw.random() < 0.08:
            return draw.choice(NOISE)
        if isinstance(value, dict):
            return {key: spoilt(one) for key, one in value.items() if draw.random() < 0.97}
        return [spoilt(one) for one in value] if isinstance(value, list) else value

    async def all_of(bodies: list[Any]) -> list[int]:
        found = await asyncio.gather(*(site.posted(body) for body in bodies))
        return [status for status, _ in found]

    statuses = result_of(all_of([spoilt(whole) for _ in range(150)]))
    assert set(statuses) == {200, 400} and statuses.count(400) > 50
    texts = [json.dumps(whole).encode() for _ in range(50)]
    cut = [text[: draw.randrange(len(text))] for text in texts]
    assert set(result_of(all_of(cut))) == {400}
    assert site.post(ASK)[0] == 200


def test_the_address_of_a_node_is_not_loopback_where_there_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshctl.agents.agent.default_address", lambda: "127.0.0.2")
    with agent(say, tmp_path, function=f"{HERE}.turns", listen="node") as made:
        assert made._gateway.base_url.startswith("http://127.0.0.2:")
        assert len(made.run(questions("hi"))) == 1
