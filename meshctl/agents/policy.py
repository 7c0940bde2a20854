"""Answers the requests of agents with a sampler: a history as tokens, and a sampled answer as a reply."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import torch

from meshctl.agents.chat import Chat
from meshctl.agents.gateway import Episode, Refused, Reply, Request
from meshctl.agents.trajectories import Call, digest_of
from meshctl.data.tokenizer import ChatError
from meshctl.runtime.component import ComponentError
from meshctl.runtime.event_loop import Advances
from meshctl.runtime.rank_context import RankContext
from meshctl.sampling.answers import AnswerSampler, seeds_of
from meshctl.sampling.continuous import Answer
from meshctl.sampling.continuous import Request as Prompt


class Policy:
    """The model with which the episodes of one rank are sampled."""

    def __init__(self, engine: AnswerSampler, chat: Chat, place: RankContext, max_turns: int) -> None:
        self._engine, self.chat, self._place, self._max_turns = engine, chat, place, max_turns

    async def answer(self, episode: Episode, request: Request) -> Reply:
        """Answers a request of an episode, as its gateway calls it."""
        forest = episode.forest
        if len(forest.calls) + len(episode.running) > self._max_turns:
            episode.limit("turns")
            raise Refused(410, f"the episode has had {self._max_turns} turns", "episode_ended")
        try:
            prompt = self.chat.prompt(forest, request.messages, request.tools)
        except ChatError as error:
            raise Refused(400, str(error), param="messages") from None
        room = self._room(episode, prompt.tokens)
        most = min(room, request.max_tokens or room)
        number = forest.begin(digest := digest_of(prompt.tokens))
        words = (self._place.seed, self._place.name, episode.step, episode.name, digest)
        seeds = seeds_of(words, torch.tensor([[number]]))
        try:
            answer = await self._sampled(episode, Prompt(prompt.tokens, seeds, most, request.stop))
        except BaseException:
            forest.forget(digest)
            raise
        key = f"{prompt.history[-1]}{number}"
        reply = self.chat.reply(key, prompt.tokens, answer.tokens, request.tools, request.stop)
        reason = "tool_calls" if reply.message.get("tool_calls") else answer.finish_reason
        episode.tool_errors += reply.tool_errors
        sent = key, prompt.parent, request.messages, request.tools, reply.message, reason, prompt.tokens
        forest.add(Call(*sent, answer.tokens, answer.logprobs, answer.versions), prompt.history[-1])
        Advances.add()
        if episode.step:
            self._place.progress.advance()
        return Reply(key, reply.message, reason, len(prompt.tokens), len(answer.tokens))

    def _room(self, episode: Episode, prompt: Sequence[int]) -> int:
        """Returns the most tokens of an answer. Ends the episode if there is no room for one."""
        limits = self._engine.limits
        room = limits.max_new_tokens
        if limits.positions is not None:
            room = min(room, limits.positions - len(prompt))
        if room < 1:
            episode.limit("context")
            message = f"the request has {len(prompt)} tokens, and the model {limits.positions} positions"
            raise Refused(400, message, "context_length_exceeded")
        return room

    async def _sampled(self, episode: Episode, prompt: Prompt) -> Answer:
        """Returns a sampled answer. An error of the engine ends the episode with it."""
        try:
            [answer] = await asyncio.wrap_future(self._engine.generator.submit([prompt]))
            if answer.finish_reason not in ("stop", "length"):
                raise ComponentError(f"the engine ends episode {episode.name} with `{answer.finish_reason}`")
            return answer
        except Exception as error:
            episode.fail(error)
            raise Refused(500, "the sampler has failed") from error
