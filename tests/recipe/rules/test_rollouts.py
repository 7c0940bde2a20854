"""The rules about samplers, the models that learn from their answers, and syncs between them."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshctl.diagnostics import Diagnostic
from meshctl.package import install_command
from meshctl.recipe.load import load
from meshctl.recipe.rules import components

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
  actor: {{_target_: {actor}, group: train, args: {{model: {own}, {args}}}}}
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
def alone(rewards): ...
def compared(rewards, group_index, *, scale=1.0): ...
class Judge(Component):
    @endpoint
    def score(self, batch: Batch) -> Batch: ...
class Actor(Model): ...
"""


def reported(
    folder: Path,
    sampling: str = "group_size: 4",
    args: str = "loss: grpo",
    own: str = '"${vars.model}"',
    actor: str = "meshctl.hf.Model",
    sampler: str = "hf",
) -> list[Diagnostic]:
    (folder / "mine.py").write_text(MINE)
    (folder / "prompts.jsonl").write_text('{"prompt": "a"}\n')
    given = {
        "sampling": sampling,
        "args": args,
        "own": own,
        "actor": actor,
        "sampler": sampler,
        "model": MODEL,
    }
    (folder / "recipe.yaml").write_text(RECIPE.format(**given))
    found = load("recipe.yaml", [], folder, environ={}).report.diagnostics
    assert not [one for one in found if one.severity == "error" and one.code not in CODES], found
    return [one for one in found if one.code in CODES]


@pytest.mark.parametrize("sampler", ["hf", "vllm"])
def test_what_fits_is_not_reported(tmp_path: Path, sampler: str) -> None:
    sampling = "group_size: 4, temperature: 0.7, config: {}"
    args = 'loss: grpo, temperature: "${components.sampler.args.temperature}"'
    assert reported(tmp_path, sampling, args, sampler=sampler) == []


# Models of a sync


@pytest.mark.parametrize(
    ("own", "what", "values"),
    [
        (MODEL.replace("llama", "qwen3"), "model_type (qwen3 and llama)", "`actor`: qwen3"),
        (MODEL.replace("260", "512"), "vocab_size (512 and 260)", "`actor`: 512"),
        (
            MODEL.replace("ers: 2", "ers: 8").replace("64", "32"),
            "hidden_size (32 and 64) and num_layers (8 and 2)",
            "`actor`: 32",
        ),
    ],
)
def test_a_sync_needs_equal_models(tmp_path: Path, own: str, what: str, values: str) -> None:
    (one,) = reported(tmp_path, own=own)
    assert (one.code, one.severity) == ("MC454", "error")
    assert one.message == f"`actor` and `sampler` have different models: {what}"
    assert one.primary and one.primary.line == 18 and one.seconds[0].label == values


@pytest.mark.parametrize("own", ["{model_type: llama}", "{max_position_embeddings: 7}", "not/here"])
def test_unknown_sizes_and_positions_are_not_compared(tmp_path: Path, own: str) -> None:
    assert reported(tmp_path, own=own) == []


# Groups


@pytest.mark.parametrize("sampling", ["group_size: 1", "top_k: 0"])
@pytest.mark.parametrize(
    ("args", "advantage"),
    [
        ("loss: grpo", "grpo"),
        ("loss: dr_grpo", "group_mean"),
        ("loss: ppo, advantage: rloo", "rloo"),
        ("loss: grpo, advantage: mine.compared", "mine.compared"),
    ],
)
def test_an_advantage_of_groups_needs_several_answers(
    tmp_path: Path, sampling: str, args: str, advantage: str
) -> None:
    (one,) = reported(tmp_path, sampling, args, actor="mine.Actor")
    assert (one.code, one.severity) == ("MC455", "error")
    compares = f"advantage `{advantage}` of `actor` compares the answers to one prompt"
    assert one.message == f"{compares}, but `group_size` of `sampler` is 1"
    assert one.primary and one.primary.line == 8 and one.seconds[0].line == 11
    assert one.help == "with one answer its advantage is always 0: write `group_size: 8`, or use `whitened`"


@pytest.mark.parametrize(
    ("sampling", "args"),
    [
        ("group_size: 2", "loss: grpo"),
        ("group_size: 1", "loss: ppo"),
        ("group_size: 1", "loss: cross_entropy"),
        ("group_size: 1", "loss: grpo, advantage: whitened"),
        ("group_size: 1", "loss: grpo, advantage: mine.alone"),
        ("group_size: 1", "loss: mine.alone"),
        ('group_size: "${oc.env:SIZE,1}"', "loss: grpo"),
    ],
)
def test_other_advantages_and_sizes_are_accepted(tmp_path: Path, sampling: str, args: str) -> None:
    assert reported(tmp_path, sampling, args) == []


# Temperatures


@pytest.mark.parametrize(
    ("sampling", "args", "own", "sampled"),
    [
        ("temperature: 0.7", "loss: ppo", 1.0, 0.7),
        ("temperature: 0.7", "loss: ppo, temperature: 0.8", 0.8, 0.7),
        ("top_k: 0", "loss: ppo, temperature: 0.8", 0.8, 1.0),
    ],
)
def test_temperatures_differ(tmp_path: Path, sampling: str, args: str, own: float, sampled: float) -> None:
    (one,) = reported(tmp_path, sampling, args)
    assert (one.code, one.severity) == ("MC456", "warning")
    assert one.message == f"`temperature` of `actor` is {own}, but `sampler` samples at {sampled}"
    assert one.help == "write `temperature: ${components.sampler.args.temperature}` for `actor`"
    assert one.primary and one.primary.line == 11


def test_equal_temperatures_are_equal_as_numbers(tmp_path: Path) -> None:
    assert reported(tmp_path, "temperature: 1", "loss: ppo") == []


# Functions that arguments name


JUDGE = """
groups: {{judge: {{ranks: 2, device_type: cpu}}}}
components:
  judge: {{_target_: meshctl.rewards.Function, group: judge, args: {{{args}}}}}
pipeline: {{}}
"""


def judged(folder: Path, args: str) -> list[Diagnostic]:
    (folder / "mine.py").write_text('EXTRA = "of-a-newer-version"\ndef reward(response): ...\n')
    (folder / "recipe.yaml").write_text(JUDGE.format(args=args))
    found = load("recipe.yaml", [], folder, environ={}).report.diagnostics
    return [one for one in found if one.code in ("MC442", "MC453")]


@pytest.mark.parametrize("args", ["function: mth", "functions: {format: 1, mth: {weight: 2}}"])
def test_a_misspelt_function_is_named_at_its_place(tmp_path: Path, args: str) -> None:
    (one,) = judged(tmp_path, args)
    argument = args.partition(":")[0]
    assert (one.code, one.message) == ("MC453", f"`{argument}` is `mth`, which does not exist")
    assert one.help == "did you mean `math`?" and one.primary and one.primary.width == 3


def test_the_module_of_a_function_declares_its_extra(tmp_path: Path) -> None:
    (one,) = judged(tmp_path, "functions: {format: 1, mine.reward: 0.5}")
    needs = "`judge` needs the extra `of-a-newer-version`, which this version of meshctl does not have"
    assert (one.code, one.message) == ("MC442", needs)
    assert judged(tmp_path, "function: format") == []


def test_a_ready_function_needs_the_extra_of_rewards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(components, "missing_libraries", lambda extra, path: ("math-verify",))
    (one,) = judged(tmp_path, "function: math")
    assert (one.code, one.severity, one.help) == ("MC442", "note", install_command("rewards"))


@pytest.mark.parametrize("recipe", ["grpo.yaml", "ppo.yaml", "distill_on_policy.yaml", "reward_model.yaml"])
def test_a_component_that_does_not_exist_is_the_only_error(recipe: str) -> None:
    folder = Path(__file__).parents[3] / "recipes"
    stages = load(recipe, [], folder, environ={}, detect=lambda: "cpu").recipe.pipeline
    calls = {name: stage.method for name, stage in stages.items() if stage.kind == "call" and not stage.block}
    for name, method in calls.items():
        override = f"pipeline.{name}.call=no_component.{method}"
        report = load(recipe, [override], folder, environ={}, detect=lambda: "cpu").report
        assert [one.code for one in report.errors] == ["MC512"], override
