"""The rules about the columns that the loss of a model, its advantage and a reward need."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshctl.diagnostics import Diagnostic
from tests.recipe.rules import facts

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
PLAIN = {
    **{"source": "meshctl.data.Prompts", "source_args": "", "teacher": "", "actor": "meshctl.hf.Model"},
    **{"judge": "meshctl.rewards.Function", "judge_args": "{function: length}"},
}
MINE = """
from meshctl import Batch, Component, endpoint
from meshctl.data import source
from meshctl.hf import Model
from meshctl.rewards import Function
def bonus(logprobs, mask, bonus): ...
def whole(logprobs, mask, sample_index, entropy, response): ...
def solved(response, bonus, other=0, *, most=1): ...
def of_trl(completions, **more): ...
class Judge(Component):
    @endpoint
    def score(self, batch: Batch) -> Batch: ...
class Prompts(source.Prompts):
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
    (folder / "rows.jsonl").write_text('{"prompt": "a", "bonus": 1}\n')
    recipe = RECIPE.format(**{**PLAIN, **given}, args=args, inputs=inputs)
    found = facts.reported(folder, recipe, mine=MINE)
    assert not [one for one in found if one.severity == "error" and one.code != "MC461"], found
    return [one for one in found if one.code == "MC461"]


KL = "loss_options: {kl: 0.1}"
SAMPLED = "loss: distill, loss_options: {divergence: sampled}"
OWN = {"judge": "mine.Bonus", "judge_args": "{}"}
PAIRS = "chosen_logprobs`, `rejected_logprobs`, `ref_chosen_logprobs` and `ref_rejected_logprobs"


@pytest.mark.parametrize(
    ("args", "inputs", "given"),
    [
        (f"loss: grpo, {KL}", "[scored, ref]", {}),
        (f"loss: grpo, {KL}, lora: {{r: 4}}", "scored", {}),
        ("loss: ppo", "[scored, values]", {}),
        ("loss: ppo, advantage: whitened", "scored", {}),
        (SAMPLED, "[rollouts, lesson]", {}),
        ("loss: cross_entropy", "rollouts", {}),
        ("loss: mine.whole", "{batch: rollouts}", {}),
        *(
            (f"loss: distill, loss_options: {{divergence: {kind}}}", "[scored, lesson]", {"teacher": "top_logprobs: 4"})
            for kind in ("forward_kl", "jsd")
        ),
        # Columns that the source keeps, that a class declares, or that are unknown
        ("loss: mine.bonus", "[scored]", {"source_args": "keep: [bonus]"}),
        ("loss: mine.bonus", "[scored]", OWN),
        ("loss: mine.bonus", "[scored]", {"judge": "mine.Judge", "judge_args": "{}"}),
        ("loss: mine.bonus", "[scored]", {"judge": "mine.Renaming"}),
        ("loss: mine.bonus", "[scored]", {"actor": "mine.Actor"}),
        ("loss: mine.bonus", "[scored]", {"source": "mine.Prompts"}),
        ("loss: mine.bonus", "[scored]", {"source_args": 'keep: ["${oc.env:KEPT,a}"]'}),
        # Rewards
        ("loss: grpo", "[scored]", {"judge_args": "{function: mine.solved}", "source_args": "keep: [bonus]"}),
        ("loss: grpo", "[scored]", {"judge_args": "{function: mine.solved, columns: {bonus: prompt}}"}),
        ("loss: grpo", "[scored]", {"judge_args": '{function: mine.solved, columns: "${oc.env:COLUMNS}"}'}),
    ],
)  # fmt: skip
def test_given_columns_are_accepted(tmp_path: Path, args: str, inputs: str, given: dict[str, str]) -> None:
    assert reported(tmp_path, args, inputs, **given) == []


@pytest.mark.parametrize(
    ("args", "inputs", "given", "missing", "function", "help"),
    [
        ("loss: grpo", "rollouts", {}, "rewards", "advantage `grpo`", "take `scored` too"),
        ("loss: ppo", "scored", {}, "values", "advantage `gae`", "take `values` too"),
        ("loss: value, head: score", "[scored]", {}, "values", "advantage `gae`", "take `values` too"),
        (f"loss: grpo, {KL}", "[scored]", {}, "ref_logprobs", "loss `grpo`", "take `ref` too"),
        ("loss: ppo, advantage_options: {kl: 1}", "[scored, values]", {}, "ref_logprobs", "advantage `gae`", "take `ref` too"),
        (SAMPLED, "scored", {}, "teacher_logprobs", "loss `distill`", "take `lesson` too"),
        ("loss: distill", "[scored, lesson]", {}, "teacher_top_logprobs", "loss `distill`", "`teacher_top_logprobs` comes from a stage that calls `teacher_logprobs` of a teacher with `top_logprobs`"),
        ("loss: mine.bonus", "[scored]", {}, "bonus", "loss `mine.bonus`", ""),
        ("loss: mine.bonus", "[scored]", {"actor": "mine.Plain"}, "bonus", "loss `mine.bonus`", ""),
        ("loss: dpo", "[scored]", {}, PAIRS, "loss `dpo`", "`chosen_logprobs` comes from a source of pairs, `meshctl.data.Pairs`; take `ref` too"),
        ("head: classify", "[scored]", {}, "logprobs", "loss `cross_entropy`", "a model with `head: lm` computes `logprobs`: change its `head`, or its loss"),
        ("loss: value", "[scored, values]", {}, "predicted_values", "loss `value`", "a model with `head: score` computes `predicted_values`: change its `head`, or its loss"),
        ("loss: grpo", "[scored]", OWN, "rewards", "advantage `grpo`", "`rewards` comes from a stage that calls a reward component"),
    ],
)  # fmt: skip
def test_a_missing_column_is_reported(
    tmp_path: Path, args: str, inputs: str, given: dict[str, str], missing: str, function: str, help: str
) -> None:
    (one,) = reported(tmp_path, args, inputs, **given)
    assert one.message == f"`metrics` does not receive `{missing}`, which {function} of `actor` needs"
    assert (facts.lines(one)[:2], one.severity, one.help) == ([21, 12], "error", help)


@pytest.mark.parametrize(
    ("args", "inputs", "warned"),
    [
        (f"loss: grpo, {KL}, lora: {{from: here}}", "[scored]", "ref_logprobs"),
        (f"loss: grpo, {KL}, lora: {{from: here}}", "[scored, ref]", ""),
        (f"loss: grpo, {KL}, lora: {{r: 4}}", "[scored]", ""),
        ("loss: grpo, lora: {from: here}", "[scored]", ""),
    ],
)
def test_the_reference_of_a_continued_adapter_is_the_base(
    tmp_path: Path, args: str, inputs: str, warned: str
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "adapter_config.json").write_text("{}")
    found = reported(tmp_path, args, inputs)
    assert [one.severity for one in found] == ["warning"] * bool(warned)
    assert all(f"`{warned}` of `actor` are those of the base model" in one.message for one in found)


def test_a_loss_and_its_advantage_are_reported_together(tmp_path: Path) -> None:
    found = reported(tmp_path, "loss: ppo, loss_options: {kl: 1}", "[scored]")
    assert [one.message.split("`")[3] for one in found] == ["ref_logprobs", "values"]


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
        ("Text", "bradley_terry, head: score", "chosen_scores", "a source of pairs, `meshctl.data.Pairs`"),
        ("Pairs", "cross_entropy", "logprobs", "a source of single texts, such as `meshctl.data.Chat`"),
    ],
)
def test_pairs_in_place_of_single_texts(
    tmp_path: Path, source: str, loss: str, lacking: str, help: str
) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "a", "prompt": "a", "chosen": "b", "rejected": "c"}\n')
    found = facts.reported(tmp_path, SIMPLE.format(source=source, loss=loss))
    assert [one.code for one in found if one.severity == "error"] == ["MC461"] * bool(lacking)
    if lacking:
        assert f"`metrics` does not receive `{lacking}`" in found[0].message
        assert found[0].help == f"`{lacking}` comes from {help}"


@pytest.mark.parametrize(
    ("args", "missing", "help"),
    [
        ("{function: mine.solved, columns: {bonus: answer}}", "answer", "keep: [answer]"),
        ("{function: mine.solved}", "bonus", "a source keeps columns of its rows: keep: [bonus]"),
        ("{functions: {length: 1, mine.solved: 2}}", "bonus", "keep: [bonus]"),
        ("{function: mine.of_trl}", "completions", "the answer is `response`"),
    ],
)
def test_a_reward_whose_parameter_no_column_has(tmp_path: Path, args: str, missing: str, help: str) -> None:
    (one,) = reported(tmp_path, "loss: grpo", judge_args=args)
    assert one.message.startswith(f"`scored` does not receive `{missing}`, which `mine.")
    assert help in (one.help or "") and facts.lines(one)[0] == 9
