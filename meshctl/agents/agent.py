"""`agents.Agent`: a component that runs episodes of an agent and returns what was sampled in them.

Each sample has `group_size` episodes. Functions run in child processes, many at a time, and a command is a
process for each episode. They call the gateway of their rank, so all requests of an episode are answered by
the sampler of this rank. An episode that fails begins again whole; one that reaches a limit is data.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import cached_property
from math import nan
from statistics import fmean
from time import perf_counter
from typing import Any, ClassVar, Literal

import torch

from meshctl.agents.chat import Chat
from meshctl.agents.checks import AGENT
from meshctl.agents.child import Failed
from meshctl.agents.episodes import Attempt, record
from meshctl.agents.gateway import Episode, Gateway, Refused, Reply, Request
from meshctl.agents.runner import TIMEOUT_S, Ended, Interrupted, Runner
from meshctl.agents.trajectories import Call, digest_of
from meshctl.argument_limits import check_arguments
from meshctl.data.tokenizer import ChatError, Tokenizer
from meshctl.labels import IGNORED
from meshctl.network.addresses import LOCALHOST, default_address
from meshctl.run.episodes import Keeper
from meshctl.runtime.batch.batch import Batch, Column, Ragged, plain_values
from meshctl.runtime.batch.ids import shown_ids
from meshctl.runtime.component import Component, ComponentError, endpoint
from meshctl.runtime.event_loop import PASS_CALL, Advances, result_of
from meshctl.sampling.answers import EPISODE, VERSION, VERSIONS, AnswerSampler, seeds_of
from meshctl.sampling.continuous import Answer
from meshctl.sampling.continuous import Request as Prompt
from meshctl.text.redaction import HIDDEN

MAX_FAILED = 16
"""The number of samples of a rank that may fail in a row."""
LOOPBACK: Literal["loopback"] = "loopback"
_log = logging.getLogger(__name__)


class AgentError(ComponentError):
    """Raised if an agent cannot be run, or if all of its episodes fail."""


class Agent(Component):
    """Runs an agent for each sample, `group_size` times."""

    EXTRA: ClassVar = "agents"
    LAYOUTS: ClassVar = {"dims": ("dp",)}
    RETURNS: ClassVar = {
        "run": (
            *("*", "input_ids", "labels", "sampled_logprobs", "response", "messages"),
            *("turns", "finish_reason", "rewards"),
        )
    }

    def __init__(
        self,
        sampler: str,
        *,
        function: str = "",
        options: Mapping[str, Any] | None = None,
        command: Sequence[str] = (),
        group_size: int = 1,
        at_once: int = 64,
        timeout_s: float = TIMEOUT_S,
        max_turns: int = 32,
        attempts: int = 2,
        on_limit: float = 0.0,
        history: Literal["append", "render"] = "append",
        listen: Literal["loopback", "node"] = LOOPBACK,
        workers: int = 1,
        episodes: bool = False,
        chat_template: str = "",
        template_args: Mapping[str, Any] | None = None,
    ) -> None:
        """Stores and checks the arguments. `setup` starts the processes. Raises `AgentError` for invalid
        arguments.

        sampler: the component of the same group that answers: an `hf.Sampler` or a `vllm.Sampler`.
        function, options: the dotted path of an `async` function and its keyword-only arguments. Its first
            parameter is the episode, with `base_url` and `api_key`; the others name columns. It returns a
            reward, a mapping with `reward` and further numbers, or None.
        command: in place of a function, a command for each episode. Its environment has `OPENAI_BASE_URL`,
            `OPENAI_API_KEY` and `MESHCTL_TASK`, a JSON file with the columns. Its last line of output is a
            number, a JSON object like the mapping, or any other text for no reward.
        group_size: the number of episodes of each sample.
        at_once: the most episodes that a rank runs at the same time.
        timeout_s: the seconds after which an episode ends.
        max_turns: the most requests of an episode.
        attempts: how often an episode is begun that ends with an error. If all fail, the sample is dropped.
        on_limit: the reward of an episode that ends by `timeout_s`, `max_turns` or a full context.
        history: `append` continues a history with its sampled tokens; `render` renders every request, for
            templates that drop reasoning, and makes more rows.
        listen: `loopback`, or `node` for agents on other machines. The traffic is not encrypted.
        workers: the processes that run the function.
        episodes: whether every episode is kept in the run directory. The last ones that failed always are.
        chat_template, template_args: a file with another template, and the variables of the template.
        """
        check_arguments(AGENT, locals(), AgentError)
        self.sampler = sampler
        self._spec = {"function": function, "options": dict(options or {}), "command": [*command]}
        self._group_size, self._at_once, self._timeout_s = group_size, at_once, timeout_s
        self._max_turns, self._attempts, self._on_limit = max_turns, attempts, on_limit
        self._history: Literal["append", "render"] = history
        self._listen, self._workers, self._keeps_all = listen, workers, episodes
        self._template = chat_template, template_args
        self._failed_in_row, self._has_succeeded = 0, False
        self._runner: Runner | None = None

    # Building

    def setup(self) -> None:
        """Starts the processes and the gateway. Raises `AgentError` if the agent cannot be used."""
        self._runner = Runner(self._spec, self._workers)
        try:
            self._required, self._optional = self._runner.columns()
        except Failed as failed:
            self._runner = None
            raise AgentError(str(failed)) from None
        result_of(self._start(self._runner))

    async def _start(self, runner: Runner) -> None:
        self._gateway = Gateway(self._answer)
        self._slots = asyncio.Semaphore(self._at_once)
        await self._gateway.start(LOCALHOST if self._listen == LOOPBACK else default_address())
        await runner.start()

    def close(self) -> None:
        if runner := self._runner:
            self._runner = None
            result_of(runner.close())
            result_of(self._gateway.stop())

    @cached_property
    def _engine(self) -> AnswerSampler:
        found = self.place.peers.get(self.sampler)
        if not isinstance(found, AnswerSampler):
            raise AgentError(f"`sampler` is `{self.sampler}`, which is not a sampler of this group")
        return found

    @cached_property
    def _chat(self) -> Chat:
        engine = self._engine
        tokenizer = Tokenizer(engine.tokenizer_name, *self._template, tokens=engine.tokens)
        return Chat(tokenizer, engine.end_tokens, self._history)

    @cached_property
    def _keeper(self) -> Keeper:
        return Keeper(self.place.run_dir, f"{self.place.name}-{self.rank}", self._keeps_all)

    # Episodes

    @endpoint
    async def run(self, batch: Batch) -> Batch:
        """Runs `group_size` episodes for each sample, and returns a row for each branch of an episode, whose
        id is that of the sample, the number of the episode and that of the row.

        All columns are kept, and these are added:

            input_ids         ragged int64     the prompt of the last call of the branch, and its answer
            labels            ragged int64     the sampled tokens, each in one row, and -100 elsewhere
            sampled_logprobs  ragged           log-probability of each label, 0 elsewhere
            response          list of texts    the content of the last reply
            messages          list of lists    the conversation
            turns             int64            the requests of the episode
            finish_reason     list of texts    `stop` or `length` of the last reply, or the limit that ended
                                               the episode: `turns`, `time` or `context`
            rewards           float32          the reward of the episode, NaN where the agent returned none

        Logs the means over episodes `reward`, `turns`, `tokens`, `rows`, `tool_errors`, `limited`, `seconds`
        and the further numbers of the agent, and `failed`, the samples that were dropped. Raises `AgentError`
        if a column is missing, or if all samples fail.
        """
        if self._runner is None:
            raise AgentError("the agent is closed, or `setup` was not called")
        tasks, _ = self._tasks(batch), self._chat  # whose tokenizer is loaded before an episode begins
        names = [".".join(map(str, id)) for id in batch.ids.tolist()]
        with self._engine.awake():
            groups = await asyncio.gather(*map(self._group, names, tasks))
        failed = [(row, one.error) for row, group in enumerate(groups) for one in group if one.error]
        self._check_failures(failed, batch)
        dropped = {row for row, _ in failed}
        done = [(row, group) for row, group in enumerate(groups) if row not in dropped]
        self._log_metrics([one for _, group in done for one in group], len(dropped))
        return self._engine.marked(self._rows(batch, done))

    async def _answer(self, episode: Episode, request: Request) -> Reply:
        """Answers a request of an episode, as its gateway calls it."""
        forest = episode.forest
        if len(forest.calls) + len(episode.running) > self._max_turns:
            episode.limit("turns")
            raise Refused(410, f"the episode has had {self._max_turns} turns", "episode_ended")
        try:
            prompt = self._chat.prompt(forest, request.messages, request.tools)
        except ChatError as error:
            raise Refused(400, str(error), param="messages") from None
        room = self._room(episode, prompt.tokens)
        most = min(room, request.max_tokens or room)
        number = forest.begin(digest := digest_of(prompt.tokens))
        words = (self.place.seed, self.place.name, episode.step, episode.name, digest)
        seeds = seeds_of(words, torch.tensor([[number]]))
        try:
            answer = await self._sampled(episode, Prompt(prompt.tokens, seeds, most, request.stop))
        except BaseException:
            forest.forget(digest)
            raise
        key = f"{prompt.history[-1]}{number}"
        given = prompt.tokens, answer.tokens, request.tools, request.stop
        message, tool_errors = self._chat.reply(key, *given)
        reason = "tool_calls" if message.get("tool_calls") else answer.finish_reason
        episode.tool_errors += tool_errors
        sent = key, prompt.parent, request.messages, request.tools, message, reason, prompt.tokens
        forest.add(Call(*sent, answer.tokens, answer.logprobs, answer.versions), prompt.history[-1])
        Advances.add()
        if episode.step:
            self.place.progress.advance()
        return Reply(key, message, reason, len(prompt.tokens), len(answer.tokens))

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

    def _tasks(self, batch: Batch) -> list[dict[str, Any]]:
        """Returns the columns of the agent for each sample, as plain data."""
        if missing := [name for name in self._required if name not in batch]:
            raise AgentError(
                f"the agent has a parameter `{missing[0]}`, and the batch no such column; it has "
                f"{', '.join(batch.names)}"
            )
        named = batch.names if self._optional is None else (*self._required, *self._optional)
        values = {name: plain_values(batch[name]) for name in named if name in batch}
        return [{name: column[row] for name, column in values.items()} for row in range(len(batch))]

    async def _group(self, name: str, task: Mapping[str, Any]) -> list[Attempt]:
        """Returns the last attempt of each episode of a sample."""
        names = [f"{name}.{number}" for number in range(self._group_size)]
        running = [asyncio.create_task(self._episode(one, task)) for one in names]
        try:
            return await asyncio.gather(*running)
        except BaseException:
            for one in running:
                one.cancel()
            raise

    async def _episode(self, name: str, task: Mapping[str, Any]) -> Attempt:
        """Begins an episode until it ends without an error. Returns the last attempt."""
        number, is_alone = 1, False
        while True:
            try:
                async with self._slots:
                    one = await self._attempt(name, task, number, is_alone)
            except Interrupted:
                is_alone = True
                continue
            if one.error:
                _log.warning("episode %s, attempt %d of %d: %s", name, number, self._attempts, one.error)
            if not one.error or number == self._attempts:
                return one
            number += 1

    async def _attempt(self, name: str, task: Mapping[str, Any], number: int, is_alone: bool) -> Attempt:
        assert self._runner is not None
        begin, episode = perf_counter(), Episode(name, self.step)
        given = {"id": name, "columns": task, "base_url": self._gateway.base_url, "api_key": episode.token}
        ended, error = Ended(""), ""
        self._gateway.open(episode)
        try:
            ended = await self._runner.run(given, episode.ended, self._timeout_s, is_alone)
            if not episode.forest.calls:
                how = "reached its limit of time" if ended.limit else "returned"
                error = f"the agent {how} before the sampler had answered a request"
        except Failed as failed:
            error = str(failed).replace(episode.token, HIDDEN)
        finally:
            self._gateway.close(episode)
        if ended.limit:
            ended = Ended(ended.limit, self._on_limit)
        one = Attempt(episode, number, ended, error, perf_counter() - begin)
        if error or ended.limit or self._keeps_all:
            try:
                kept = record(one, self.place.name, task, self._chat.text)
                await asyncio.to_thread(self._keeper.keep, kept)
            except OSError as problem:
                _log.warning("episode %s is not kept: %s", name, problem)
        return one

    def _check_failures(self, failed: Sequence[tuple[int, str]], batch: Batch) -> None:
        """Raises `AgentError` if all samples of a rank failed in its first step, or many in a row."""
        count = len({row for row, _ in failed})
        if count < len(batch):
            self._has_succeeded, self._failed_in_row = True, 0
            return
        self._failed_in_row += count
        is_first = not self._has_succeeded and not PASS_CALL.get()
        if failed and (is_first or self._failed_in_row >= MAX_FAILED):
            row, reason = failed[0]
            first = f"sample {shown_ids([batch.ids[row].tolist()])}: {reason}"
            raise AgentError(f"all {self._failed_in_row} samples failed: {first}")

    def _log_metrics(self, episodes: Sequence[Attempt], failed: int) -> None:
        self.log({"failed": float(failed if PASS_CALL.get() else failed * self.mesh.data_size)})
        numbers: dict[str, list[float]] = {
            "reward": [one.ended.reward for one in episodes if one.ended.reward is not None],
            "turns": [len(one.calls) for one in episodes],
            "tokens": [sum(len(call.tokens) for call in one.calls) for one in episodes],
            "rows": [len(one.rows) for one in episodes],
            "tool_errors": [one.episode.tool_errors for one in episodes],
            "limited": [bool(one.ended.limit) for one in episodes],
            "seconds": [one.seconds for one in episodes],
        }
        for name, value in (item for one in episodes for item in one.ended.metrics.items()):
            numbers.setdefault(name, []).append(value)
        for name, values in numbers.items():
            if values:
                self.log({name: fmean(values)}, weight=len(values))

    def _rows(self, batch: Batch, done: Sequence[tuple[int, Sequence[Attempt]]]) -> Batch:
        """Returns the rows of all episodes. `done` are the samples with their episodes."""
        found = [
            (sample, number, index, one, row)
            for sample, group in done
            for number, one in enumerate(group)
            for index, row in enumerate(one.rows)
        ]
        rows = [row for *_, row in found]
        given = batch.take([sample for sample, *_ in found])
        ids = batch.ids[[sample for sample, *_ in found]]
        own = torch.tensor([[number, index] for _, number, index, *_ in found], dtype=torch.int64)
        dtype, episodes = self._engine.logprobs_dtype, [one for *_, one, _ in found]

        def ragged(values: list[list[Any]], dtype: torch.dtype = torch.int64) -> Ragged:
            return Ragged.of([torch.tensor(one, dtype=dtype) for one in values], dtype)

        columns: dict[str, Column] = {
            "input_ids": ragged([row.tokens for row in rows]),
            "labels": ragged([row.labels for row in rows]),
            "sampled_logprobs": ragged([row.logprobs for row in rows], dtype),
            "response": [row.call.reply["content"] for row in rows],
            "messages": [[dict(one) for one in (*row.call.messages, row.call.reply)] for row in rows],
            "turns": torch.tensor([len(one.calls) for one in episodes], dtype=torch.int64),
            "finish_reason": [one.reason for one in episodes],
            "rewards": torch.tensor(
                [nan if one.ended.reward is None else one.ended.reward for one in episodes],
                dtype=torch.float32,
            ),
            EPISODE: torch.ones(len(rows), dtype=torch.int64),
        }
        if self._engine.generator.version is not None:
            columns[VERSIONS] = ragged([row.versions for row in rows])
            oldest = [
                min(v for v, one in zip(row.versions, row.labels, strict=True) if one != IGNORED)
                for row in rows
            ]
            columns[VERSION] = torch.tensor(oldest, dtype=torch.int64)
        kept = {name: column for name, column in given.columns.items() if name not in columns}
        ids = torch.cat([ids, own.reshape(-1, 2)], 1)
        return Batch({**columns, **kept}, ids=ids, group_depth=batch.ids.shape[1])
