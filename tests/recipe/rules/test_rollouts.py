"""The rules about samplers, the models that learn from their answers, syncs between them, and rewards."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshctl.diagnostics import Diagnostic
from meshctl.package import install_command
from meshctl.recipe.rules import components
from tests.recipe.rules import facts

CODES = ("MC454", "MC455", "MC456")
MODEL = "{model_type: llama, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 4, vocab_size: 260, hidden_size: 64}"
RECIPE = """
groups:
  rollout: {{ranks: 2, device_type: cpu}}
  train: {{ranks: 2, device_type: cpu}}
vars: {{model: {model}}}
components:
  prompts: {{_target_: meshctl.data.Prompts, group: rollout, args: {{path: prompts.jsonl, tokenizer: byte}}}}
  sampler: {{_target_: meshctl.{sampler}.Sampler, group: rollout, args: {{model: "${{vars.model}}", tokenizer: byte, max_new_tokens: 4, {sampling}}}}}
  judge: {{_target_: mine.Judge, group: rollout}}
  critic: {{_target_: meshctl.hf.Model, group: train, args: {{model: "${{vars.model}}", head: score, loss: value}}}}
  actor: {{_target_: mine.Actor, group: train, args: {{model: {own}, {args}}}}}
pipeline:
  batch: {{call: prompts.next, samples: 64}}
  rollouts: {{call: sampler.sample, in: batch}}
  values: {{call: critic.values, in: rollouts}}
  scored: {{call: judge.score, in: [rollouts, values]}}
  metrics: {{call: actor.update, in: scored}}
  publish: {{sync: actor, to: sampler}}
"""
MINE = """
from meshctl import Batch, Component, endpoint
from meshctl.hf import Model
EXTRA = "of-a-newer-version"
def reward(response): ...
def alone(rewards): ...
def compared(rewards, group_index, *, scale=1.0): ...
class Judge(Component):
    @endpoint
    def score(self, batch: Batch) -> Batch: ...
class Actor(Model): ...
"""
ALONE = "with one answer its advantage is always 0: write `group_size: 8`"
TEMPERATURE = "write `temperature: ${components.sampler.args.temperature}` for `actor`"


def reported(
    folder: Path, sampling: str, args: str, own: str = '"${vars.model}"', sampler: str = "hf"
) -> list[Diagnostic]:
    (folder / "prompts.jsonl").write_text('{"prompt": "a"}\n')
    recipe = RECIPE.format(sampling=sampling, args=args, own=own, sampler=sampler, model=MODEL)
    found = facts.reported(folder, recipe, mine=MINE)
    assert not [one for one in found if one.severity == "error" and one.code not in CODES], found
    return [one for one in found if one.code in CODES]


@pytest.mark.parametrize(
    ("own", "what", "value"),
    [
        (MODEL.replace("llama", "qwen3"), "model_type (qwen3 and llama)", "`actor`: qwen3"),
        (MODEL.replace("260", "512"), "vocab_size (512 and 260)", "`actor`: 512"),
        (MODEL.replace("ers: 2", "ers: 8").replace("64", "32"), "hidden_size (32 and 64) and num_layers (8 and 2)", "`actor`: 32"),
        ("{model_type: llama}", "", ""),
        ("{max_position_embeddings: 7}", "", ""),
        ("not/here", "", ""),
    ],
)  # fmt: skip
def test_a_sync_needs_equal_models(tmp_path: Path, own: str, what: str, value: str) -> None:
    found = reported(tmp_path, "group_size: 4", "loss: grpo", own)
    assert [(one.code, one.severity) for one in found] == [("MC454", "error")] * bool(what)
    for one in found:
        assert one.message == f"`actor` and `sampler` have different models: {what}"
        assert one.seconds[0].label == value and facts.lines(one)[0] == 18


@pytest.mark.parametrize(
    ("sampling", "args", "what"),
    [
        ("lora: {r: 4}", "lora: {r: 4, alpha: 16}", ""),
        ("lora: {r: 4}", "lora: {r: 8, target: [q_proj]}", "lora.r (8 and 4) and lora.target (['q_proj'] and all-linear)"),
        ("top_k: 0", "lora: {r: 4}", "lora (given and none)"),
        ("lora: null", "lora: {r: 4}", "lora (given and none)"),
        ("lora: {r: 4}", "top_logprobs: 4", "lora (none and given)"),
        ("lora: {from: here}", "lora: {r: 4}", ""),
        ("lora: {from: here, r: 8}", "lora: {r: 4}", "lora.r (4 and 8)"),
    ],
)  # fmt: skip
def test_a_sync_of_an_adapter_needs_equal_adapters(
    tmp_path: Path, sampling: str, args: str, what: str
) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a"}\n')
    recipe = RECIPE.replace(
        "{{sync: actor, to: sampler}}", "{{sync: actor.adapter, to: sampler.load_adapter}}"
    )
    own = '"${vars.model}"'
    recipe = recipe.format(sampling=sampling, args=f"loss: rloo, {args}", own=own, sampler="hf", model=MODEL)
    found = [one for one in facts.reported(tmp_path, recipe, mine=MINE) if one.code == "MC454"]
    assert [one.message for one in found] == [f"`actor` and `sampler` have different models: {what}"] * bool(
        what
    )


@pytest.mark.parametrize(
    ("sampling", "args", "advantage"),
    [
        ("group_size: 1", "loss: grpo", "grpo"),
        ("top_k: 0", "loss: dr_grpo", "group_mean"),
        ("group_size: 1", "loss: ppo, advantage: rloo", "rloo"),
        ("top_k: 0", "loss: grpo, advantage: mine.compared", "mine.compared"),
        ("group_size: 2", "loss: grpo", ""),
        ("group_size: 1", "loss: ppo", ""),
        ("group_size: 1", "loss: cross_entropy", ""),
        ("group_size: 1", "loss: grpo, advantage: whitened", ""),
        ("group_size: 1", "loss: grpo, advantage: mine.alone", ""),
        ("group_size: 1", "loss: mine.alone", ""),
        ('group_size: "${oc.env:SIZE,1}"', "loss: grpo", ""),
    ],
)
def test_an_advantage_of_groups_needs_several_answers(
    tmp_path: Path, sampling: str, args: str, advantage: str
) -> None:
    found = reported(tmp_path, sampling, args)
    assert [(one.code, one.severity, one.help) for one in found] == [("MC455", "error", ALONE)] * bool(
        advantage
    )
    for one in found:
        compares = f"advantage `{advantage}` of `actor` compares the answers to one prompt"
        assert one.message == f"{compares}, but `group_size` of `sampler` is 1" and facts.lines(one)[:2] == [
            8,
            11,
        ]


@pytest.mark.parametrize(
    ("sampling", "args", "sampler", "values"),
    [
        ("temperature: 0.7", "loss: ppo", "hf", (1.0, 0.7)),
        ("temperature: 0.7", "loss: ppo, temperature: 0.8", "vllm", (0.8, 0.7)),
        ("top_k: 0", "loss: ppo, temperature: 0.8", "hf", (0.8, 1.0)),
        ("temperature: 1", "loss: ppo", "hf", ()),
        ("temperature: 0.7", 'loss: ppo, temperature: "${components.sampler.args.temperature}"', "vllm", ()),
    ],
)
def test_temperatures_are_equal(
    tmp_path: Path, sampling: str, args: str, sampler: str, values: tuple[float, ...]
) -> None:
    found = reported(tmp_path, f"{sampling}, config: {{}}", args, sampler=sampler)
    assert [(one.code, one.severity, one.help) for one in found] == [
        ("MC456", "warning", TEMPERATURE)
    ] * bool(values)
    for one in found:
        own, sampled = values
        assert one.message == f"`temperature` of `actor` is {own}, but `sampler` samples at {sampled}"
        assert facts.lines(one)[0] == 11


JUDGE = """
groups: {{judge: {{ranks: 2, device_type: cpu}}}}
components:
  judge: {{_target_: meshctl.rewards.Function, group: judge, args: {{{args}}}}}
pipeline: {{}}
"""


def judged(folder: Path, args: str) -> list[tuple[str, str, str]]:
    found = facts.reported(folder, JUDGE.format(args=args), ["MC442", "MC453"], mine=MINE)
    return [(one.code, one.message, one.help) for one in found]


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        ("function: mth", "MC453", "`function` is `mth`, which does not exist"),
        ("functions: {format: 1, mth: {weight: 2}}", "MC453", "`functions` is `mth`, which does not exist"),
        ("functions: {format: 1, mine.reward: 0.5}", "MC442", "`judge` needs the extra `of-a-newer-version`, which this version of meshctl does not have"),
        ("function: format", "", ""),
    ],
)  # fmt: skip
def test_functions_of_rewards(tmp_path: Path, args: str, code: str, message: str) -> None:
    help = "did you mean `math`?" if code == "MC453" else ""
    assert judged(tmp_path, args) == [(code, message, help)] * bool(code)


def test_a_ready_function_needs_the_extra_of_rewards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(components, "missing_libraries", lambda extra: ("math-verify",))
    [(code, _, help)] = judged(tmp_path, "function: math")
    assert (code, help) == ("MC442", install_command("rewards"))
