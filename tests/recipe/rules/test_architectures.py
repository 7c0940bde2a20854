"""The rules about architectures and layouts, for an invented transformers next to the recipe."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshctl.diagnostics import Diagnostic
from tests.recipe.rules import facts

CLASSES = """
    from meshctl import Component, endpoint
    class Own(Component):
        MODEL = "args.model"
        def __init__(self, model: dict, split: str | list[int] = "count") -> None: ...
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
    class Staged(Own):
        LAYOUTS = {"pp_plan": "transformers", "split": "args.split"}
"""
STAGES = (
    'base_model_pp_plan = {"embed_tokens": (["a"], ["b"]), "layers": (["b"], ["b"]), "norm": (["b"], ["b"])}'
)
PLANS = {
    "river": f'base_model_tp_plan = {{"q_proj": "colwise"}}\n{STAGES}',
    "gravel": "",
    "delta": 'base_model_ep_plan = {"experts": "ep_dispatch_experts"}\nbase_model_pp_plan = {"embed_in": (["a"], ["b"])}',
}
MODELS = {"river": (True, False), "gravel": (True, True), "stone": (False, False)}
"""Architecture -> (whether its attention can be replaced, whether it has a state)."""
ON_TP, ON_CP, ON_ULYSSES = (
    "fsdp_size: 4, tp_size: 2",
    "fsdp_size: 4, cp_size: 2",
    "fsdp_size: 8, ulysses_size: 2",
)
ON_EP, ON_TP_EP = "fsdp_size: 8, ep_size: 4", "fsdp_size: 2, tp_size: 4, ep_size: {}"
SEQUENCES = f"{ON_TP}, sequence_parallel: true"
KV_HEADS = "{model_type: river, num_attention_heads: 8, num_key_value_heads: 2}"
NOT_FOUND = "its config class was not found in transformers"


def reported(folder: Path, model: str, target: str, parallel: str, plan: str = "") -> list[Diagnostic]:
    facts.transformers(folder, **PLANS, stone="", **({"lake": plan} if plan else {}))
    for kind, (is_replaceable, is_stateful) in MODELS.items():
        body = f"    _supports_attention_backend = {is_replaceable}\n    _is_stateful = {is_stateful}\n"
        file = folder / "transformers" / "models" / kind / f"modeling_{kind}.py"
        file.write_text(f"class {kind.title()}PreTrainedModel(PreTrainedModel):\n{body}")
    recipe = (
        "groups: {train: {ranks: 8, device_type: cpu}}\n"
        "components:\n"
        f"  trainer: {{_target_: mine.{target}, group: train, parallel: {{{parallel}}}, args: {{model: {model}}}}}\n"
        "pipeline: {metrics: {call: trainer.step, samples: 64}}\nrun: {steps: 1}\n"
    )
    return facts.reported(folder, recipe, mine=CLASSES)


@pytest.mark.parametrize(
    ("model", "target", "parallel", "code", "message"),
    [
        ("{model_type: gravel}", "Planned", ON_TP, "MC439", "`tp_size` is 2, but transformers has no plan that splits `gravel` over tp ranks"),
        ("{model_type: gravel}", "Subclass", ON_TP, "MC439", "`tp_size` is 2"),
        ("{model_type: absent}", "Planned", ON_TP, "MC440", NOT_FOUND),
        ("{model_type: river}", "Planned", ON_TP, "", ""),
        ("{model_type: gravel}", "Planned", "fsdp_size: 8", "", ""),
        ("{model_type: gravel}", "Own", ON_TP, "", ""),
        ("{num_attention_heads: 8}", "Planned", ON_TP, "", ""),
        ("{model_type: gravel, text_config: {model_type: river}}", "Planned", ON_TP, "", ""),
        ("{model_type: gravel, text_config: {n_head: 8}}", "Planned", ON_TP, "", ""),
        ("{model_type: river}", "Divided", ON_CP, "", ""),
        ("{model_type: gravel}", "Divided", ON_CP, "MC418", "cp cannot divide the tokens of `gravel`, which do not meet in attention alone"),
        ("{model_type: gravel}", "Divided", ON_ULYSSES, "MC418", "ulysses cannot divide the tokens of `gravel`"),
        ("{model_type: gravel}", "Own", ON_ULYSSES, "", ""),
        ("{model_type: stone}", "Divided", ON_CP, "MC418", ""),
        ("{model_type: delta}", "Divided", ON_CP, "MC440", "its model was not found in transformers"),
        ("{model_type: delta}", "Experts", ON_EP, "", ""),
        ("{model_type: delta}", "Experts", ON_TP_EP.format(4), "", ""),
        ("{model_type: delta}", "Experts", ON_TP_EP.format(2), "MC419", "`ep_size` 2 of `trainer` must be a multiple of `tp_size`, which is 4"),
        ("{model_type: gravel}", "Experts", ON_EP, "MC419", "`ep_size` is 4, but transformers has no plan that divides experts of `gravel`"),
        ("{model_type: absent}", "Experts", ON_EP, "MC440", f"whether ep can divide experts of `absent` in `trainer` is unknown: {NOT_FOUND}"),
        ("{model_type: gravel}", "Staged", "pp_size: 2", "MC469", "`gravel`"),
        ("{model_type: delta}", "Staged", "pp_size: 2", "MC469", "`delta`"),
        ("{model_type: absent}", "Staged", "pp_size: 2", "MC440", NOT_FOUND),
        ("{model_type: gravel}", "Staged", "fsdp_size: 8", "", ""),
        (KV_HEADS, "Planned", "fsdp_size: 2, tp_size: 4", "MC431", "`tp_size` 4 does not divide the kv heads (2) of `trainer`"),
        ("{model_type: river, vocab_size: 259}", "Own", ON_TP, "MC433", ""),
        ("{model_type: river, vocab_size: 259}", "Planned", ON_TP, "", ""),
    ],
)  # fmt: skip
def test_each_architecture(
    tmp_path: Path, model: str, target: str, parallel: str, code: str, message: str
) -> None:
    found = reported(tmp_path, model, target, parallel)
    assert [one.code for one in found] == [code] * bool(code), found
    assert all(message in one.message for one in found)
    severities = {"MC440": "note", "MC433": found[0].severity if found else ""}
    assert all(one.severity == severities.get(code, "error") for one in found)


def test_helps_name_what_fits(tmp_path: Path) -> None:
    """A layout that any rule proposes has no tp if the architecture has no plan."""
    (one,) = reported(tmp_path, "{model_type: gravel}", "Planned", ON_TP)
    assert one.help.startswith("nearest that fit: ") and " tp " not in one.help
    assert [span.label for span in one.seconds] == ["`model_type` is gravel"]
    two = reported(tmp_path, "{model_type: gravel, n_head: 9}", "Planned", ON_TP)
    assert [one.code for one in two] == ["MC431", "MC439"] and all(" tp " not in one.help for one in two)
    (one,) = reported(tmp_path, "{model_type: gravel}", "Divided", ON_CP)
    assert one.help == "use cp 1"
    (one,) = reported(tmp_path, KV_HEADS, "Planned", "fsdp_size: 2, tp_size: 4")
    assert one.help == "nearest that fit: dp 2 x fsdp 2 x tp 2; dp 4 x fsdp 2"
    (one,) = reported(tmp_path, KV_HEADS, "Own", "fsdp_size: 2, tp_size: 4")
    assert (one.code, one.severity) == ("MC431", "warning")  # its kv heads can be replicated
    (one,) = reported(tmp_path, "{model_type: gravel}", "Staged", "pp_size: 2")
    assert one.help == "nearest that fit: dp 8"


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
    monkeypatch.setitem(MODELS, "lake", (True, False))
    found = reported(
        tmp_path, "{model_type: lake}", "DividedByPlan", SEQUENCES, f"base_model_tp_plan = {plan}"
    )
    assert [one.code for one in found] == ([] if is_divided else ["MC418"])


@pytest.mark.parametrize(
    ("layers", "split", "parallel", "code", "text"),
    [
        (10, "count", "pp_size: 4", "MC437", "`args.split: cost` also counts the head, which the last stage has"),
        (10, "cost", "pp_size: 4", "", ""),
        (10, "[3, 2, 3, 2]", "pp_size: 4", "", ""),
        (3, "count", "pp_size: 4", "MC434", "pp 2 x dp 4"),
        (10, "even", "pp_size: 2, vpp_size: 2", "MC468", "`split` of `trainer` is none of count and cost, and no list of numbers"),
        (10, "[5, 5]", "pp_size: 2, vpp_size: 2", "MC468", "has 2 numbers for 4 pipeline stages"),
        (10, "[3, 3, 3, 3]", "pp_size: 2, vpp_size: 2", "MC468", "has 12 layers, and the model has 10"),
        (10, "[10, 0, 0, 0]", "pp_size: 2, vpp_size: 2", "MC468", "contains a value other than a positive integer"),
    ],
)  # fmt: skip
def test_the_layers_of_pipeline_stages(
    tmp_path: Path, layers: int, split: str, parallel: str, code: str, text: str
) -> None:
    model = f"{{model_type: river}}, split: {split}}}, model: {{num_layers: {layers}"
    found = reported(tmp_path, model, "Staged", parallel)
    if (code, split) == ("MC437", "count"):  # it is a warning where nothing states how layers are divided
        found = reported(tmp_path, model.replace(", split: count", ""), "Staged", parallel)
    assert [one.code for one in found] == [code] * bool(code)
    for one in found:
        assert text in f"{one.message}\n{one.help}"
        if code == "MC468":
            assert (one.help, one.seconds[0].label) == ("nearest that fits: [3, 3, 2, 2]", "pp 2 x vpp 2 = 4")
