"""An episode as it is kept in the run directory, and the gateway that repeats it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from meshctl.agents.child import Failed
from meshctl.agents.gateway import Episode, Gateway, Refused, Reply, Request
from meshctl.agents.runner import Ended, Interrupted, Runner
from meshctl.agents.trajectories import Call, Message, Row, digests
from meshctl.network.addresses import LOCALHOST
from meshctl.run.episodes import KeptCall, KeptEpisode
from meshctl.text.redaction import HIDDEN


class Attempt(NamedTuple):
    """An attempt of an episode."""

    episode: Episode
    number: int
    ended: Ended
    error: str
    """The reason why the episode begins again; empty if it is data."""
    seconds: float

    @property
    def calls(self) -> Sequence[Call]:
        return self.episode.forest.calls

    @property
    def rows(self) -> list[Row]:
        return [*self.episode.forest.rows()]

    @property
    def reason(self) -> str:
        """The kind of its end: `stop`, `length`, a limit, or `error`."""
        if self.error:
            return "error"
        return self.ended.limit or self.calls[-1].finish_reason.replace("tool_calls", "stop")


KEPT = ("key", "parent", "reply", "finish_reason", "tokens")
"""The fields of a call that are kept as they are."""


def record(
    one: Attempt, component: str, columns: Mapping[str, Any], text: Callable[[Sequence[int]], str]
) -> Any:
    """Returns an episode in the form of `run.episodes`. `text` decodes tokens. The token of the episode is
    hidden."""
    tools, calls = list[Any](), list[dict[str, Any]]()
    for call in one.calls:
        if call.tools is not None and call.tools not in tools:
            tools.append(call.tools)
        skip = _shared(call, one.calls)
        calls.append(
            {
                **{name: getattr(call, name) for name in KEPT},
                "skip": skip,
                "messages": call.messages[skip:],
                "tools": None if call.tools is None else tools.index(call.tools),
                "prompt": len(call.prompt),
                "logprobs": [round(logprob, 6) for logprob in call.logprobs],
                "versions": [[version, len([*some])] for version, some in groupby(call.versions)],
                "text": text(call.tokens),
            }
        )
    facts = {"id": one.episode.name, "component": component, "step": one.episode.step, "attempt": one.number}
    facts |= {"reason": one.reason, "error": one.error, "reward": one.ended.reward, "columns": columns}
    facts |= {"seconds": round(one.seconds, 3), "tools": tools, "calls": calls}
    return json.loads(json.dumps(facts).replace(one.episode.token, HIDDEN))


def _shared(call: Call, calls: Sequence[Call]) -> int:
    """Returns how many first messages of a call are those of its parent and the reply to it."""
    if call.parent is None:
        return 0
    parent = calls[call.parent]
    history = [*parent.messages, parent.reply]
    own = call.messages[: len(history)]
    return len(history) if digests(own, None)[-1] == digests(history, None)[-1] else 0


class Difference(NamedTuple):
    """The first request of a repeated episode that the kept one does not have."""

    messages: Sequence[Message]
    nearest: KeptCall | None
    """The kept request with the most equal first messages."""
    equal: int
    """The number of these messages."""


class Repeated:
    """Answers the requests of an agent with the replies of a kept episode, without a model."""

    def __init__(self, kept: KeptEpisode) -> None:
        self._replies = {call.key: call for call in kept.calls}
        self._calls = kept.calls
        self._asked = Counter[str]()
        self.answered = list[str]()
        """The keys of the requests that were answered."""
        self.difference: Difference | None = None

    async def answer(self, episode: Episode, request: Request) -> Reply:
        history = digests(request.messages, request.tools)
        key = f"{history[-1]}{self._asked[history[-1]]}"
        found = self._replies.get(key)
        if found is None:
            if len(self.answered) < len(self._calls):
                self.difference = self.difference or self._difference(request.messages)
            episode.limit("a further request")
            raise Refused(410, "the kept episode has no such request", "episode_ended")
        self._asked[history[-1]] += 1
        self.answered.append(key)
        return Reply(key, found.reply, found.finish_reason, found.prompt, len(found.tokens))

    def _difference(self, messages: Sequence[Message]) -> Difference:
        own, best = digests(messages, None), Difference(messages, None, 0)
        for call in self._calls:
            pairs = zip(own[1:], digests(call.messages, None)[1:], strict=False)
            equal = sum(one == other for one, other in pairs)
            if best.nearest is None or equal > best.equal:
                best = Difference(messages, call, equal)
        return best


async def replay(
    kept: KeptEpisode, repeated: Repeated, spec: Mapping[str, Any], timeout_s: float
) -> tuple[str, bool]:
    """Runs the agent of a kept episode again. Returns how it ended, and whether it failed. `spec` is the
    first message to its process. Raises `Failed` if its function cannot be used."""
    runner, gateway, episode = Runner(spec, 1), Gateway(repeated.answer), Episode(kept.id)
    runner.columns()
    await gateway.start(LOCALHOST)
    await runner.start()
    try:
        gateway.open(episode)
        task = {"id": kept.id, "columns": kept.columns}
        task |= {"base_url": gateway.base_url, "api_key": episode.token}
        ended = await runner.run(task, episode.ended, timeout_s, is_alone=False)
        reward = "no reward" if ended.reward is None else f"reward {ended.reward:g}"
        return f"ended by {ended.limit}" if ended.limit else reward, False
    except Failed as failed:
        return str(failed), True
    except Interrupted:
        return "the agent goes on after its limit of time", True
    finally:
        await runner.close()
        await gateway.stop()
