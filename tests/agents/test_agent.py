"""Agents: the rows and columns of their episodes, limits, errors and the processes in which they run."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from meshctl import Batch
from meshctl.agents import AgentError
from meshctl.run.directory import RunDir
from meshctl.run.episodes import KEPT_FAILED, Keeper, episodes_of
from tests.agents.worlds import END, HERE, ScriptedSampler, agent, questions, rows
from tests.paths import ROOT

FOLDER = Path(__file__).parent
CLIENTS = ROOT / ".venv" / "clients"
"""litellm, which `make test-all` installs."""


def said(prompt: str) -> str:
    return f"I say {len(prompt)}"


def test_a_row_has_the_sampled_tokens_as_labels_and_everything_before_them(tmp_path: Path) -> None:
    with agent(said, tmp_path, function=f"{HERE}.turns", options={"turns": 2}, group_size=2) as made:
        batch = made.run(questions("hi", "hello"))
        tokenizer = made._engine.tokenizer
    assert batch.ids.tolist() == [[0, 0, 0], [0, 1, 0], [1, 0, 0], [1, 1, 0]]
    assert batch.group_depth == 1
    text = tokenizer.decode(rows(batch, "input_ids")[0])
    assert text == (
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nI say 52<|im_end|>\n"
        "<|im_start|>user\nand 0?<|im_end|>\n<|im_start|>assistant\nI say 127<|im_end|>"
    )
    labels = [one for one in rows(batch, "labels")[0] if one != -100]
    assert labels == [*b"I say 52", END, *b"I say 127", END]
    assert [value < 0 for value in rows(batch, "sampled_logprobs")[0]] == [
        label != -100 for label in rows(batch, "labels")[0]
    ]
    assert torch.allclose(batch["rewards"], torch.tensor([2.0, 2.1, 5.0, 5.1]))
    assert batch["turns"].tolist() == [2] * 4 and batch["number"] == [0, 0, 1, 1]
    assert batch["response"][0] == "I say 127" and batch["finish_reason"] == ["stop"] * 4
    assert [one["role"] for one in batch["messages"][0]] == ["user", "assistant"] * 2
    logged = made.place.log
    assert {
        name: logged.mean(name) for name in ("reward", "turns", "tokens", "asked", "rows", "limited")
    } == {  # type: ignore[attr-defined]
        **{"reward": pytest.approx(3.55), "turns": 2, "tokens": 19, "asked": 2, "rows": 1, "limited": 0},
    }


def test_tools_are_called_and_their_results_are_no_labels(tmp_path: Path) -> None:
    def calls(prompt: str) -> str:
        if prompt.count("<|im_start|>tool\n") == 2:
            return "12"
        call = '<tool_call>{"name": "add", "arguments": {"a": 5, "b": 7}}</tool_call>'
        return f"Both: {call}{call}"

    with agent(calls, tmp_path, function=f"{HERE}.adds") as made:
        batch = made.run(questions("5 + 7, twice"))
        text = made._engine.tokenizer.decode([one for one in rows(batch, "labels")[0] if one != -100])
    assert batch["rewards"].tolist() == [12.0] and batch["turns"].tolist() == [2]
    assert text.count("<tool_call>") == 2 and text.endswith("<|im_end|>12<|im_end|>")
    assert made.place.log.mean("calls") == 2 and made.place.log.mean("tool_errors") == 0  # type: ignore[attr-defined]


def test_branches_are_rows_in_which_each_sampled_token_is_a_label_once(tmp_path: Path) -> None:
    number = 0

    def counted(prompt: str) -> str:
        nonlocal number
        number += 1
        return f"reply {number}"

    with agent(counted, tmp_path, function=f"{HERE}.branches") as made:
        batch = made.run(questions("go"))
        texts = [
            made._engine.tokenizer.decode([one for one in labels if one != -100])
            for labels in rows(batch, "labels")
        ]
    assert batch.ids.tolist() == [[0, 0, row] for row in range(5)]  # three ways, the retry, the rewritten
    found = [text for row in texts for text in row.split("<|im_end|>") if text]
    assert sorted(found) == [f"reply {one}" for one in range(1, 7)]
    assert batch["turns"].tolist() == [6] * 5 and batch["rewards"].tolist() == [1.0] * 5


LIMITS: dict[str, tuple[str, dict[str, Any], str]] = {
    "turns": ("endless", {"max_turns": 3}, "turns"),
    "time, in a tool that waits": ("wait", {"timeout_s": 3}, "time"),
    "time, in a tool that hangs": ("hang", {"timeout_s": 3}, "time"),
    "context": ("endless", {}, "context"),
}


@pytest.mark.parametrize(
    "case", [pytest.param(one, marks=[pytest.mark.slow_suite] if "hangs" in one else []) for one in LIMITS]
)
def test_an_episode_that_reaches_a_limit_is_data(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    question, args, reason = LIMITS[case]
    monkeypatch.setattr("meshctl.agents.runner.CANCEL_S", 1.0)
    sampler = ScriptedSampler(said, positions=300)
    with agent(sampler, tmp_path, function=f"{HERE}.either", on_limit=-0.5, **args) as made:
        batch = made.run(questions(question, "fine"))
        again = made.run(questions("fine"))  # the process is there, or another one
    assert batch["finish_reason"] == [reason, "stop"]
    assert batch["rewards"].tolist() == [-0.5, 1.0] and again["rewards"].tolist() == [1.0]
    [kept] = episodes_of(RunDir(tmp_path))
    assert (kept.reason, kept.reward, len(kept.calls)) == (reason, -0.5, batch["turns"][0])


def test_a_limit_counts_also_if_the_agent_returns_after_it(tmp_path: Path) -> None:
    with agent(said, tmp_path, function=f"{HERE}.late", max_turns=2) as made:
        batch = made.run(questions("go"))
    assert batch["finish_reason"] == ["turns"] and batch["rewards"].tolist() == [0.0]


ERRORS = {
    "raise": "the agent raised ValueError: no way, <redacted> (agents_of_users.py:",
    "exit": "the agent raised SystemExit: 3 (agents_of_users.py:",
    "crash": "the process of the agent was killed by SIGSEGV",
    "silent": "the agent returned before the sampler had answered a request",
    "text": "the agent returned 'good', not a number",
}


@pytest.mark.parametrize("case", ERRORS)
def test_a_sample_with_an_episode_that_fails_twice_is_dropped(
    case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The other episodes of the process are not lost."""
    with agent(said, tmp_path, function=f"{HERE}.either") as made:
        batch = made.run(questions("fine", case, "fine as well", "good"))
        failed = made.place.log["failed"]  # type: ignore[attr-defined]
    assert batch.ids.tolist() == [[0, 0, 0], [2, 0, 0], [3, 0, 0]] and failed == [(1.0, 1.0)]
    texts = [
        record.getMessage() for record in caplog.records if record.name.startswith("meshctl.agents.agent")
    ]
    assert [text.partition(": ")[0] for text in texts] == [f"episode 1.0, attempt {n} of 2" for n in (1, 2)]
    assert all(ERRORS[case] in text for text in texts)
    kept = [*episodes_of(RunDir(tmp_path))]
    assert [(one.id, one.attempt, one.reason) for one in kept] == [("1.0", 1, "error"), ("1.0", 2, "error")]
    assert ERRORS[case] in kept[1].error and "sk-" not in (tmp_path / "episodes/agent-0.jsonl").read_text()


def test_an_episode_begins_again_whole(tmp_path: Path) -> None:
    options = {"folder": str(tmp_path)}
    with agent(said, tmp_path, function=f"{HERE}.flaky", options=options, group_size=1) as made:
        batch = made.run(questions("one", "two"))
    assert batch["turns"].tolist() == [1, 1] and batch["rewards"].tolist() == [1.0, 1.0]


def test_all_samples_that_fail_end_the_run(tmp_path: Path) -> None:
    with (
        agent(said, tmp_path, function=f"{HERE}.either", attempts=1) as made,
        pytest.raises(AgentError, match=r"all 2 samples failed: sample 0: the agent raised ValueError"),
    ):
        made.run(questions("raise", "raise"))


def test_an_error_of_the_engine_is_no_failure_of_the_agent(tmp_path: Path) -> None:
    def breaks(prompt: str) -> str:
        raise RuntimeError("out of memory")

    with (
        agent(breaks, tmp_path, function=f"{HERE}.turns") as made,
        pytest.raises(RuntimeError, match="out of memory"),
    ):
        made.run(questions("hi"))


def test_no_reward_is_nan_until_a_stage_gives_one(tmp_path: Path) -> None:
    with agent(said, tmp_path, function=f"{HERE}.either") as made:
        batch = made.run(questions("none"))
        empty = made.run(questions("none")[:0])
    assert batch["rewards"].isnan().all() and "reward" not in made.place.log
    assert len(empty) == 0 and set(empty.names) == set(batch.names)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "ordinary": ({"function": f"{HERE}.ordinary"}, "`async def`, as many episodes share a process"),
    "bare": ({"function": f"{HERE}.bare"}, "has no parameter for the episode"),
    "missing": ({"function": f"{HERE}.nothing"}, "has no function 'nothing'"),
    "module": ({"function": "nowhere.solve"}, "module 'nowhere' does not exist"),
    "option": ({"function": f"{HERE}.turns", "options": {"turn": 1}}, "has no option `turn`"),
    "both": ({"function": f"{HERE}.turns", "command": ["true"]}, "exclude each other"),
    "neither": ({}, "needs `function` or `command`"),
}


@pytest.mark.parametrize("case", WRONG)
def test_an_agent_that_cannot_run_is_one_message_before_the_first_step(case: str, tmp_path: Path) -> None:
    args, message = WRONG[case]
    with pytest.raises(AgentError, match=message), agent(said, tmp_path, **args):
        pass


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    with (
        agent(said, tmp_path, function=f"{HERE}.turns") as made,
        pytest.raises(AgentError, match="has a parameter `question`, and the batch no such column"),
    ):
        made.run(Batch({"prompt": ["a"]}))


# Commands


def other(*words: str) -> list[str]:
    return [sys.executable, "other_script_of_users.py", *words]


def test_a_script_that_knows_the_protocol_alone_runs_unchanged(tmp_path: Path, monkeypatch: Any) -> None:
    """It runs in the recipe's folder, the first one that is searched for modules."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setenv("MESHCTL_SCRATCH", str(tmp_path))

    def calls(prompt: str) -> str:
        call = '<tool_call>{"name": "add", "arguments": {"a": 40, "b": 2}}</tool_call>'
        return "42" if "<|im_start|>tool\n" in prompt else call

    with agent(calls, tmp_path, command=["python", "script_of_users.py", "{task}"], group_size=2) as made:
        batch = made.run(questions("40 + 2", "41 + 1"))
        assert not [*tmp_path.glob("meshctl-agent-*")]
    assert batch["rewards"].tolist() == [1.0] * 4 and batch["turns"].tolist() == [2] * 4
    assert made.place.log.mean("length") == 2  # type: ignore[attr-defined]


COMMANDS = {
    "exit": "the agent ended with exit code 3: it cannot go on",
    "kill": "the agent was killed by SIGKILL",
    "nan": "the agent returned nan, not a finite number",
}


@pytest.mark.parametrize("case", COMMANDS)
def test_a_command_that_fails(case: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    with (
        agent(lambda prompt: "42", tmp_path, command=other(case), attempts=1) as made,
        pytest.raises(AgentError) as caught,
    ):
        made.run(questions("40 + 2"))
    assert COMMANDS[case] in str(caught.value)


def test_a_command_is_killed_with_what_it_has_started(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    with agent(lambda prompt: "42", tmp_path, command=other("spawn", str(tmp_path)), max_turns=3) as made:
        batch = made.run(questions("40 + 2"))
    assert set(batch["finish_reason"]) == {"turns"}
    assert_gone(int((tmp_path / "pid").read_text()))


def assert_gone(pid: int) -> None:
    give_up = time.monotonic() + 10
    while os.path.exists(f"/proc/{pid}") and Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z":
        assert time.monotonic() < give_up, f"process {pid} lives"
        time.sleep(0.02)


def test_a_command_that_does_not_exist(tmp_path: Path) -> None:
    with (
        agent(said, tmp_path, command=["no-such-program"], attempts=1) as made,
        pytest.raises(AgentError, match="the agent cannot start `no-such-program`"),
    ):
        made.run(questions("hi"))


# Kept episodes


def test_the_last_failed_episodes_are_kept_and_damaged_lines_are_left_out(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path, "agent-0", keeps_all=False)
    for number in range(2 * KEPT_FAILED + 5):
        facts = {"id": f"{number}.0", "component": "agent", "step": 0, "attempt": 1, "reason": "error"}
        keeper.keep(
            {**facts, "error": "", "reward": None, "seconds": 1, "columns": {}, "tools": [], "calls": []}
        )
    with open(tmp_path / "episodes/agent-0.jsonl", "a") as file:
        file.write('{"id": 1}\n[]\n\xff\n{"id": "7.0", "calls": [{"parent": 9}]}\n')
    found = [one.id for one in episodes_of(RunDir(tmp_path))]
    assert found == [f"{number}.0" for number in range(KEPT_FAILED, 2 * KEPT_FAILED + 5)]
    assert (tmp_path / "episodes/agent-0.jsonl").stat().st_mode & 0o077 == 0


@pytest.mark.slow_suite
@pytest.mark.skipif(not CLIENTS.is_dir(), reason="`make test-all` installs litellm")
def test_another_client_works_as_it_is(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(str(CLIENTS))

    def adds(prompt: str) -> str:
        call = '<tool_call>{"name": "add", "arguments": {"a": 40, "b": 2}}</tool_call>'
        return "42" if "<|im_start|>tool\n" in prompt else call

    with agent(adds, tmp_path, function=f"{HERE}.with_litellm") as made:
        batch = made.run(questions("40 + 2"))
    assert batch["rewards"].tolist() == [42.0] and batch["turns"].tolist() == [2]
    assert len(batch) == 1  # the second request continues the first
