"""The rule about the columns that the loss of a model needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshctl.diagnostics import Diagnostic
from meshctl.recipe.load import load

RECIPE = """
groups:
  rollout: {{ranks: 2, device_type: cpu}}
  train: {{ranks: 2, device_type: cpu}}
vars: {{model: {{model_type: llama, num_hidden_layers: 2, num_attention_heads: 4, vocab_size: 260, hidden_size: 64}}}}
components:
  prompts: {{_target_: "{source}", group: rollout, args: {{path: rows.jsonl, tokenizer: byte, {source_args}}}}}
  sampler: {{_target_: meshctl.hf.Sampler, group: rollout, args: {{model: "${{vars.model}}", tokenizer: byte, max_new_tokens: 4, group_size: 4}}}}
  judge: {{_target_: "{judge}", group: rollout, args: {judge_args}}}
  critic: {{_target_: meshctl.hf.Model, group: train, args: {{model: "${{vars.model}}", head: score, loss: value}}}}
  teacher: {{_target_: meshctl.hf.Model, group: train, args: {{model: "${{vars.model}}", {teacher}}}}}
  actor: {{_target_: "{actor}", group: train, args: {{model: "${{vars.model}}", {args}}}}}
pipeline:
  batch: {{call: prompts.next, samples: 64}}
  rollouts: {{call: sampler.sample, in: batch}}
  scored: {{call: judge.score, in: rollouts}}
  old: {{call: actor.old_logprobs, in: scored}}
  ref: {{call: teacher.ref_logprobs, in: scored}}
  lesson: {{call: teacher.teacher_logprobs, in: scored}}
  values: {{call: critic.values, in: scored}}
  metrics: {{call: actor.update, in: {inputs}}}
"""
MINE = """
from meshctl import Batch, Component, endpoint
from meshctl.data import prompts
from meshctl.hf import Model
from meshctl.rewards import Function
def bonus(logprobs, mask, bonus): ...
def whole(logprobs, mask, sample_index, entropy, response): ...
class Judge(Component):
    @endpoint
    def score(self, batch: Batch) -> Batch: ...
class Prompts(prompts.Prompts):
    def _further_columns(self, rows): ...
class Bonus(Component):
    RETURNS = {"score": ("*", "bonus")}
    @endpoint
    def score(self, batch: Batch) -> Batch: ...
class Renaming(Function):
    @endpoint
    def score(self, batch: Batch) -> Batch: ...
class Actor(Model):
    def loss_inputs(self, batch, names): ...
class Plain(Model):
    LABEL = "plain"
"""


def reported(folder: Path, args: str, inputs: str = "[scored]", **given: str) -> list[Diagnostic]:
    (folder / "mine.py").write_text(MINE + given.pop("own", ""))
    (folder / "rows.jsonl").write_text('{"prompt": "a", "bonus": 1}\n')
    chosen = {"source": "meshctl.data.Prompts", "source_args": "", "teacher": "", "actor": "meshctl.hf.Model"}
    chosen |= {"judge": "meshctl.rewards.Function", "judge_args": "{function: length}"}
    text = RECIPE.format(**{**chosen, **given}, args=args, inputs=inputs)
    (folder / "recipe.yaml").write_text(text)
    found = load("recipe.yaml", [], folder, environ={}).report.diagnostics
    assert not [one for one in found if one.severity == "error" and one.code != "MC461"], found
    return [one for one in found if one.code == "MC461"]


@pytest.mark.parametrize(
    ("args", "inputs"),
    [
        ("loss: grpo, loss_options: {kl: 0.1}", "[scored, ref]"),
        ("loss: grpo, loss_options: {kl: 0.1}, lora: {r: 4}", "scored"),
        ("loss: ppo", "[scored, values]"),
        ("loss: ppo, advantage: whitened", "scored"),
        ("loss: distill, loss_options: {divergence: sampled}", "[rollouts, lesson]"),
        ("loss: cross_entropy", "rollouts"),
        ("loss: mine.whole", "{batch: rollouts}"),
    ],
)
def test_given_columns_are_accepted(tmp_path: Path, args: str, inputs: str) -> None:
    assert reported(tmp_path, args, inputs) == []


@pytest.mark.parametrize(
    ("args", "inputs", "missing", "function", "help"),
    [
        ("loss: grpo", "rollouts", "rewards", "advantage `grpo`", "take `scored` too: in: [rollouts, scored]"),
        ("loss: ppo", "scored", "values", "advantage `gae`", "take `values` too: in: [scored, values]"),
        ("loss: value, head: score", "[scored]", "values", "advantage `gae`", "take `values` too: in: [scored, values]"),
        ("loss: grpo, loss_options: {kl: 0.1}", "[scored]", "ref_logprobs", "loss `grpo`", "take `ref` too: in: [scored, ref]"),
        ("loss: ppo, advantage_options: {kl: 1}", "[scored, values]", "ref_logprobs", "advantage `gae`", "take `ref` too: in: [scored, values, ref]"),
        ("loss: distill, loss_options: {divergence: sampled}", "scored", "teacher_logprobs", "loss `distill`", "take `lesson` too: in: [scored, lesson]"),
        ("loss: distill", "[scored, lesson]", "teacher_top_logprobs", "loss `distill`", "`teacher_top_logprobs` comes from a stage that calls `teacher_logprobs` of a teacher with `top_logprobs`"),
        ("loss: mine.bonus", "[scored]", "bonus", "loss `mine.bonus`", ""),
        ("loss: dpo", "[scored]", "chosen_logprobs`, `rejected_logprobs`, `ref_chosen_logprobs` and `ref_rejected_logprobs", "loss `dpo`", "`chosen_logprobs` comes from a source of pairs, `meshctl.data.Pairs`; take `ref` too: in: [scored, ref]"),
    ],
)  # fmt: skip
def test_a_missing_column_is_reported(
    tmp_path: Path, args: str, inputs: str, missing: str, function: str, help: str
) -> None:
    (one,) = reported(tmp_path, args, inputs)
    assert one.severity == "error"
    assert one.message == f"`metrics` does not receive `{missing}`, which {function} of `actor` needs"
    assert one.primary and one.primary.line == 21 and one.seconds[0].line == 12
    assert one.help == help


@pytest.mark.parametrize("divergence", ["forward_kl", "jsd"])
def test_a_teacher_gives_likeliest_tokens_if_their_number_is_given(tmp_path: Path, divergence: str) -> None:
    args = f"loss: distill, loss_options: {{divergence: {divergence}}}"
    assert len(reported(tmp_path, args, "[scored, lesson]")) == 1
    assert reported(tmp_path, args, "[scored, lesson]", teacher="top_logprobs: 4") == []


@pytest.mark.parametrize(
    "given",
    [
        {"judge": "mine.Judge", "judge_args": "{}"},
        {"judge": "mine.Renaming"},
        {"actor": "mine.Actor"},
        {"source": "mine.Prompts"},
        {"source_args": 'keep: ["${oc.env:KEPT,a}"]'},
    ],
)
def test_unknown_columns_are_not_reported(tmp_path: Path, given: dict[str, str]) -> None:
    assert reported(tmp_path, "loss: mine.bonus", **given) == []


def test_columns_that_a_users_class_declares(tmp_path: Path) -> None:
    own = {"judge": "mine.Bonus", "judge_args": "{}"}
    assert reported(tmp_path, "loss: mine.bonus", **own) == []
    (one,) = reported(tmp_path, "loss: grpo", **own)
    assert "`rewards`" in one.message
    assert one.help == "`rewards` comes from a stage that calls a reward component"


def test_a_loss_and_its_advantage_are_reported_together(tmp_path: Path) -> None:
    found = reported(tmp_path, "loss: ppo, loss_options: {kl: 1}", "[scored]")
    assert [one.message.split("`")[3] for one in found] == ["ref_logprobs", "values"]


def test_columns_that_a_source_keeps(tmp_path: Path) -> None:
    assert reported(tmp_path, "loss: mine.bonus", source_args="keep: [bonus]") == []


def test_a_subclass_without_methods_is_known(tmp_path: Path) -> None:
    assert len(reported(tmp_path, "loss: mine.bonus", actor="mine.Plain")) == 1


SIMPLE = """
groups: {{train: {{ranks: 1, device_type: cpu}}}}
vars: {{model: {{model_type: llama, num_hidden_layers: 2, num_attention_heads: 4, vocab_size: 260, hidden_size: 64}}}}
components:
  rows: {{_target_: "meshctl.data.{source}", group: train, args: {{path: rows.jsonl, tokenizer: byte}}}}
  actor: {{_target_: meshctl.hf.Model, group: train, args: {{model: "${{vars.model}}", loss: {loss}}}}}
pipeline:
  batch: {{call: rows.next, samples: 2}}
  metrics: {{call: actor.update, in: batch}}
"""


@pytest.mark.parametrize(
    ("source", "loss", "lacking", "help"),
    [
        ("Pairs", "simpo", "", ""),
        ("Text", "cross_entropy", "", ""),
        ("Text", "simpo", "chosen_logprobs", "a source of pairs, `meshctl.data.Pairs`"),
        ("Text", "bradley_terry, head: score", "chosen_scores", "a source of pairs, `meshctl.data.Pairs`"),
        ("Pairs", "cross_entropy", "logprobs", "a source of single texts, such as `meshctl.data.Chat`"),
    ],
)
def test_pairs_in_place_of_single_texts(
    tmp_path: Path, source: str, loss: str, lacking: str, help: str
) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "a", "prompt": "a", "chosen": "b", "rejected": "c"}\n')
    (tmp_path / "recipe.yaml").write_text(SIMPLE.format(source=source, loss=loss))
    found = load("recipe.yaml", [], tmp_path, environ={}).report.diagnostics
    assert [one.code for one in found if one.severity == "error"] == ["MC461"] * bool(lacking)
    if lacking:
        assert f"`metrics` does not receive `{lacking}`" in found[0].message
        assert found[0].help == f"`{lacking}` comes from {help}"


@pytest.mark.parametrize(
    ("args", "source_args", "missing", "help"),
    [
        ("{function: mine.solved}", "keep: [bonus]", "", ""),
        ("{function: mine.solved, columns: {bonus: answer}}", "", "answer", "keep: [answer]"),
        ("{function: mine.solved, columns: {bonus: prompt}}", "", "", ""),
        ("{function: mine.solved}", "", "bonus", "a source keeps columns of its rows: keep: [bonus]"),
        ("{functions: {length: 1, mine.solved: 2}}", "", "bonus", "keep: [bonus]"),
        ("{function: mine.of_trl}", "", "completions", "the answer is `response`"),
        ('{function: mine.solved, columns: "${oc.env:COLUMNS}"}', "", "", ""),
        ("{function: mine.solved}", 'keep: ["${oc.env:KEPT,a}"]', "", ""),
    ],
)
def test_a_reward_whose_parameter_no_column_has(
    tmp_path: Path, args: str, source_args: str, missing: str, help: str
) -> None:
    own = "def solved(response, bonus, other=0, *, most=1): ...\ndef of_trl(completions, **more): ...\n"
    found = reported(tmp_path, "loss: grpo", judge_args=args, source_args=source_args, own=own)
    assert len(found) == bool(missing)
    for one in found:
        assert one.message.startswith(f"`scored` does not receive `{missing}`, which `mine.")
        assert help in (one.help or "") and one.primary and one.primary.line == 9
