"""The rule about plans for tp, for an invented transformers next to the recipe."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from meshctl.diagnostics import Diagnostic
from meshctl.recipe.load import load

CLASSES = """
    from meshctl import Component, endpoint
    class Own(Component):
        MODEL = "args.model"
        def __init__(self, model: dict) -> None: ...
        @endpoint(collect="mean")
        def step(self, samples: range) -> dict[str, float]: ...
    class Planned(Own):
        LAYOUTS = {"tp_plan": "transformers"}
    class Subclass(Planned): ...
    class Divided(Own):
        LAYOUTS = {"attention": "transformers"}
    class DividedByPlan(Own):
        LAYOUTS = {"attention": "transformers", "tp_plan": "transformers"}
    class Experts(Own):
        LAYOUTS = {"experts": "transformers"}
"""
LIBRARY = """
    class {name}Config(PreTrainedConfig):
        model_type = "{kind}"
        {plan}
"""
MODELING = """
    class {name}PreTrainedModel(PreTrainedModel):
        _supports_attention_backend = {is_replaceable}
        _is_stateful = {is_stateful}
"""
PLANS = {
    "river": 'base_model_tp_plan = {"q_proj": "colwise"}',
    "gravel": "",
    "delta": 'base_model_ep_plan = {"experts": "ep_dispatch_experts"}',
}


def reported(
    folder: Path, model: str, target: str = "Planned", parallel: str = "fsdp_size: 4, tp_size: 2"
) -> list[Diagnostic]:
    (folder / "mine.py").write_text(dedent(CLASSES))
    (folder / "transformers").mkdir(exist_ok=True)
    (folder / "transformers" / "__init__.py").touch()
    for kind, plan in PLANS.items():
        file = folder / "transformers" / "models" / kind / f"configuration_{kind}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(LIBRARY).format(name=kind.title(), kind=kind, plan=plan))
    (folder / "recipe.yaml").write_text(
        "groups: {train: {ranks: 8, device_type: cpu}}\n"
        "components:\n"
        f"  trainer: {{_target_: mine.{target}, group: train, parallel: {{{parallel}}}, args: {{model: {model}}}}}\n"
        "pipeline: {metrics: {call: trainer.step, samples: 64}}\n"
    )
    return list(load("recipe.yaml", [], folder, environ={}).report.diagnostics)


@pytest.mark.parametrize("target", ["Planned", "Subclass"])
def test_an_architecture_without_a_plan_is_an_error_with_layouts_without_tp(
    tmp_path: Path, target: str
) -> None:
    (one,) = reported(tmp_path, "{model_type: gravel}", target)
    assert (one.code, one.severity) == ("MC439", "error")
    assert one.message == "`tp_size` is 2, but transformers has no plan that splits `gravel` over tp ranks"
    assert one.help.startswith("nearest that fit: ") and " tp " not in one.help
    assert [span.label for span in one.seconds] == ["`model_type` is gravel"]


@pytest.mark.parametrize(
    ("model", "target", "parallel"),
    [
        ("{model_type: river}", "Planned", "fsdp_size: 4, tp_size: 2"),
        ("{model_type: gravel}", "Planned", "fsdp_size: 8"),
        ("{model_type: gravel}", "Own", "fsdp_size: 4, tp_size: 2"),
        ("{num_attention_heads: 8}", "Planned", "fsdp_size: 4, tp_size: 2"),
        ("{model_type: gravel, text_config: {model_type: river}}", "Planned", "fsdp_size: 4, tp_size: 2"),
        ("{model_type: gravel, text_config: {n_head: 8}}", "Planned", "fsdp_size: 4, tp_size: 2"),
    ],
)
def test_nothing_is_reported(tmp_path: Path, model: str, target: str, parallel: str) -> None:
    assert reported(tmp_path, model, target, parallel) == []


def test_an_unknown_architecture_is_a_note(tmp_path: Path) -> None:
    (one,) = reported(tmp_path, "{model_type: absent}")
    assert (one.code, one.severity) == ("MC440", "note")
    assert one.message.endswith("is unknown: its config class was not found in transformers")


def has_model(folder: Path, kind: str, is_replaceable: bool = True, is_stateful: bool = False) -> None:
    file = folder / "transformers" / "models" / kind / f"modeling_{kind}.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    text = MODELING.format(name=kind.title(), is_replaceable=is_replaceable, is_stateful=is_stateful)
    file.write_text(dedent(text))


@pytest.mark.parametrize("dims", ["fsdp_size: 4, cp_size: 2", "fsdp_size: 8, ulysses_size: 2"])
def test_tokens_of_an_architecture_with_a_state_are_not_divided(tmp_path: Path, dims: str) -> None:
    has_model(tmp_path, "river")
    assert reported(tmp_path, "{model_type: river}", "Divided", dims) == []
    has_model(tmp_path, "gravel", is_stateful=True)
    (one,) = reported(tmp_path, "{model_type: gravel}", "Divided", dims)
    dim = dims.split()[-2].removesuffix("_size:")
    assert (one.code, one.severity, one.help) == ("MC418", "error", f"use {dim} 1")
    assert one.message == f"{dim} cannot divide the tokens of `gravel`, which do not meet in attention alone"
    assert reported(tmp_path, "{model_type: gravel}", "Own", dims) == []


def test_an_attention_that_cannot_be_replaced_is_an_error_and_an_unknown_one_a_note(tmp_path: Path) -> None:
    has_model(tmp_path, "gravel", is_replaceable=False)
    (one,) = reported(tmp_path, "{model_type: gravel}", "Divided", "fsdp_size: 4, cp_size: 2")
    assert one.code == "MC418"
    (one,) = reported(tmp_path, "{model_type: river}", "Divided", "fsdp_size: 4, cp_size: 2")
    assert (one.code, one.severity) == ("MC440", "note")
    assert one.message.endswith("is unknown: its model was not found in transformers")


@pytest.mark.parametrize(
    ("model", "parallel", "code", "message"),
    [
        ("delta", "fsdp_size: 8, ep_size: 4", "", ""),
        ("delta", "fsdp_size: 2, tp_size: 4, ep_size: 4", "", ""),
        (
            "delta",
            "fsdp_size: 2, tp_size: 4, ep_size: 2",
            "MC419",
            "`ep_size` 2 of `trainer` must be a multiple of `tp_size`, which is 4",
        ),
        (
            "gravel",
            "fsdp_size: 8, ep_size: 4",
            "MC419",
            "`ep_size` is 4, but transformers has no plan that divides experts of `gravel`",
        ),
        (
            "absent",
            "fsdp_size: 8, ep_size: 4",
            "MC440",
            "whether ep can divide experts of `absent` in `trainer` is unknown: its config class was not found "
            "in transformers",
        ),
    ],
)
def test_experts_are_divided_by_the_plan_of_the_library(
    tmp_path: Path, model: str, parallel: str, code: str, message: str
) -> None:
    found = reported(tmp_path, f"{{model_type: {model}}}", "Experts", parallel)
    assert [(one.code, one.message) for one in found] == ([(code, message)] if code else [])


def test_layouts_that_other_rules_propose_have_no_tp_either(tmp_path: Path) -> None:
    found = reported(tmp_path, "{model_type: gravel, n_head: 9}")
    assert [one.code for one in found] == ["MC431", "MC439"]
    assert all(" tp " not in one.help for one in found)


def test_a_plan_does_not_replicate_kv_heads(tmp_path: Path) -> None:
    heads = "{model_type: river, num_attention_heads: 8, num_key_value_heads: 2}"
    (own,) = reported(tmp_path, heads, "Own", "fsdp_size: 2, tp_size: 4")
    assert (own.code, own.severity) == ("MC431", "warning")
    (planned,) = reported(tmp_path, heads, "Planned", "fsdp_size: 2, tp_size: 4")
    assert (planned.code, planned.severity) == ("MC431", "error")
    assert planned.message == "`tp_size` 4 does not divide the kv heads (2) of `trainer`"
    assert planned.help == "nearest that fit: dp 2 x fsdp 2 x tp 2; dp 4 x fsdp 2"


def test_a_plan_splits_a_vocabulary_into_shards_of_two_sizes(tmp_path: Path) -> None:
    odd = "{model_type: river, vocab_size: 259}"
    assert [one.code for one in reported(tmp_path, odd, "Own")] == ["MC433"]
    assert reported(tmp_path, odd) == []


@pytest.mark.parametrize(
    ("plan", "is_divided"),
    [
        ('{"layers.*.self_attn.q_proj": "colwise", "layers.*.self_attn": "local_params"}', True),
        ('{"layers.*.self_attn.q_proj": "colwise", "layers.*.experts": "moe_tp_experts"}', False),
        ('{"layers.*.mlps.*.up_proj": "colwise"}', False),
    ],
)
def test_sequence_parallelism_needs_a_plan_for_parts_of_layers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: str, is_divided: bool
) -> None:
    has_model(tmp_path, "river")
    monkeypatch.setitem(PLANS, "river", f"base_model_tp_plan = {plan}")
    dims = "fsdp_size: 4, tp_size: 2, sequence_parallel: true"
    found = reported(tmp_path, "{model_type: river}", "DividedByPlan", dims)
    assert [one.code for one in found] == ([] if is_divided else ["MC418"])
