"""Kept episodes: what they contain, `meshctl episode`, and agents that run again without a model."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from meshctl.agents.episodes import Repeated, replay
from meshctl.agents.runner import EMPTY
from meshctl.cli.episode import episode as command
from meshctl.cli.load import plan_of
from meshctl.run.directory import RunDir, Start
from meshctl.run.episodes import KeptEpisode, episodes_of
from meshctl.view.episodes import conversation, table
from tests.agents.worlds import HERE, agent, questions
from tests.paths import ROOT


def kept(run: Path) -> list[KeptEpisode]:
    return [*episodes_of(RunDir(run))]


def adds(prompt: str) -> str:
    call = '<tool_call>{"name": "add", "arguments": {"a": 40, "b": 2}}</tool_call>'
    return "42" if "<|im_start|>tool\n" in prompt else f"<think>a sum</think>\n{call}"


def test_an_episode_is_a_conversation_in_which_sampled_text_is_marked(tmp_path: Path) -> None:
    with agent(adds, tmp_path, function=f"{HERE}.adds", episodes=True) as made:
        made.run(questions("40 + 2"))
    [one] = kept(tmp_path)
    assert (one.id, one.step, one.reason, one.reward) == ("0.0", 1, "stop", 42.0)
    assert [call.parent for call in one.calls] == [None, 0] and one.calls[1].skip == 2
    heads = [*table([one])]
    assert heads[0].split() == [
        "episode",
        "component",
        "attempt",
        "step",
        "end",
        "reward",
        "turns",
        "tokens",
        "time",
    ]
    assert heads[1].split()[:8] == ["0.0", "agent", "1", "1", "stop", "42", "2", str(one.tokens)]
    lines = "\n".join(conversation(one)).split("\n\n")
    assert lines[0].splitlines()[0] == "episode 0.0 of agent, attempt 1, step 1: stop, reward 42"
    assert lines[0].endswith("  question: 40 + 2\n  tools: add")
    assert lines[1:2] == ["user\n  40 + 2"] and lines[3] == "tool\n  42"
    assert lines[2].splitlines()[1:] == [
        "▌ <think>a sum</think>",
        '▌ <tool_call>{"name": "add", "arguments": {"a": 40, "b": 2}}</tool_call><|im_end|>',
    ]
    assert lines[4].splitlines()[1] == "▌ 42<|im_end|>"


def repeated(one: KeptEpisode, **spec: Any) -> tuple[str, Repeated]:
    replies = Repeated(one)
    return asyncio.run(replay(one, replies, {**EMPTY, **spec}, 60))[0], replies


@pytest.mark.parametrize("function", ["adds", "branches", "turns"])
def test_an_agent_that_runs_again_asks_the_same(function: str, tmp_path: Path) -> None:
    number = 0

    def said(prompt: str) -> str:
        nonlocal number
        number += 1
        return adds(prompt) if function == "adds" else f"reply {number}"

    with agent(said, tmp_path, function=f"{HERE}.{function}", episodes=True) as made:
        made.run(questions("40 + 2"))
    [one] = kept(tmp_path)
    end, replies = repeated(one, function=f"{HERE}.{function}")
    assert end == f"reward {one.reward:g}" and replies.difference is None
    assert sorted(replies.answered) == sorted(call.key for call in one.calls)


@pytest.mark.parametrize("count", [2, pytest.param(100, marks=pytest.mark.nightly)])
def test_the_replies_are_the_same_bytes(count: int, tmp_path: Path) -> None:
    with agent(adds, tmp_path, function=f"{HERE}.exact", episodes=True) as made:
        made.run(questions(*(f"{number} + 2" for number in range(count))))
    assert len({one.reward for one in kept(tmp_path)}) == count
    for one in kept(tmp_path):
        assert repeated(one, function=f"{HERE}.exact")[0] == f"reward {one.reward:g}"


def test_the_first_request_that_differs_is_shown_beside_the_nearest(tmp_path: Path) -> None:
    with agent(lambda prompt: "so", tmp_path, function=f"{HERE}.turns", episodes=True) as made:
        made.run(questions("hi"))
    [one] = kept(tmp_path)
    end, replies = repeated(one, function=f"{HERE}.turns", options={"turns": 4})
    assert end == "ended by a further request" and not replies.difference and len(replies.answered) == 3
    end, replies = repeated(one, function=f"{HERE}.turns", options={"word": "or"})
    found = replies.difference
    assert end == "ended by a further request" and found and len(replies.answered) == 1
    assert found.nearest in one.calls[1:] and found.equal == 2
    end, replies = repeated(one, function=f"{HERE}.either")
    assert end == "reward 1" and len(replies.answered) == 1  # another agent, with fewer requests


def run_of(path: Path, **args: Any) -> None:
    """Writes the files of a run of a recipe whose agent has these arguments."""
    recipe = path / "recipe.yaml"
    recipe.write_text(
        f"""
groups: {{rollout: {{ranks: 1, device_type: cpu}}}}
components:
  tasks: {{_target_: meshctl.components.Cycle, group: rollout, args: {{path: tasks.jsonl}}}}
  sampler: {{_target_: meshctl.hf.Sampler, group: rollout, args: {{model: {{model_type: qwen3}}, tokenizer: byte, max_new_tokens: 9}}}}
  agent: {{_target_: meshctl.agents.Agent, group: rollout, args: {json.dumps({"sampler": "sampler", **args})}}}
pipeline:
  task: {{call: tasks.next, samples: 2}}
  done: {{call: agent.run, in: task}}
run: {{steps: 2}}
"""
    )
    ready, run = plan_of(str(recipe), []), RunDir(path)
    run.write_start(Start((str(ROOT),)))
    run.plan.write_text(ready.plan.to_json())


def test_a_failed_episode_is_debugged_without_a_model(tmp_path: Path, capsys: Any) -> None:
    """From the command line: the list, the conversation, and the agent again before and after a repair."""
    flaky = {"function": f"{HERE}.flaky", "options": {"folder": str(tmp_path)}}
    run_of(tmp_path, **flaky)
    with agent(adds, tmp_path, **flaky) as made:
        made.run(questions("why"))
    (tmp_path / "why").unlink()
    words = [str(tmp_path), "0.0"]
    assert command(words[:1], False, "runs") == 0
    assert "the agent raised RuntimeError: the first time" in capsys.readouterr().out
    assert command(words, False, "runs") == 0 and "▌ <think>a sum</think>" in capsys.readouterr().out
    assert command(words, True, "runs") == 1
    assert "1 request of 1 as in the kept episode; the agent raised RuntimeError" in capsys.readouterr().out
    assert command(words, True, "runs") == 0 and capsys.readouterr().out.endswith("; reward 1\n")
    run_of(tmp_path, function=f"{HERE}.turns")
    assert command(words, True, "runs") == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["the kept episode ends here, and the agent goes on"]
    run_of(tmp_path, function=f"{HERE}.turns", options={"word": "or", "begin": "but why"})
    assert command(words, True, "runs") == 1
    assert capsys.readouterr().out.splitlines()[1:] == [
        "the next request differs after 0 messages:",
        "  asked now: user: but why",
        "  kept: user: why",
    ]
    assert command([str(tmp_path), "0"], False, "runs") == 0 and "user\n  why" in capsys.readouterr().out
    assert command([str(tmp_path), "9.9"], False, "runs") == 3
    assert command([str(tmp_path)], True, "runs") == 2 and command(["a", "b"], False, "runs") == 2
