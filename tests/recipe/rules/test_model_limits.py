"""The rules about adapters on tp, tied embeddings and names, for an invented transformers next to the recipe."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshctl.diagnostics import Diagnostic
from tests.recipe.rules import facts

CLASSES = """
    import mylosses
    from meshctl import endpoint
    from meshctl.hf import Model
    STYLES = ("colwise", "rowwise")
    class Free(Model):
        LAYOUTS = {"tp_plan": "transformers"}
        @endpoint(collect="mean")
        def learn(self, samples: range) -> dict[str, float]: ...
    class Trainer(Free):
        LAYOUTS = {"tp_plan": "transformers", "lora_styles": "mine.STYLES", "tied_shards": "equal"}
    class Own(Free):
        def __init__(self, loss: str, **more) -> None: ...
"""
LOSSES = """
    from elsewhere import imported
    def own(logits): ...
    if own:
        first, second = own, own
"""
SCHEDULES = 'class SchedulerType:\n    COSINE = "cosine"\n    LINEAR = "linear"\n'
PLANS = {
    "phi3": {"self_attn.qkv_proj": "colwise_gather_output", "mlp.down_proj": "rowwise"},
    "llama": {"self_attn.q_proj": "colwise", "self_attn.o_proj": "rowwise", "mlp": "sequence_parallel"},
    "gemma": {"self_attn.q_proj": "colwise"},
}
ON_TP, ON_FSDP, ON_EP = "fsdp_size: 4, tp_size: 2", "fsdp_size: 8", "fsdp_size: 8, ep_size: 2"
GEMMA, TIED = "model_type: gemma, vocab_size: 1004", "tie_word_embeddings: true"
EXPERTS = "model: {model_type: qwen3_moe}, lora: {target: "


def reported(folder: Path, args: str, parallel: str = ON_FSDP, target: str = "Trainer") -> list[Diagnostic]:
    plans = {
        kind: f"base_model_tp_plan = { {f'layers.*.{name}': style for name, style in styles.items()}!r}"
        for kind, styles in PLANS.items()
    }
    facts.transformers(folder, **plans)
    (folder / "transformers" / "trainer_utils.py").write_text(SCHEDULES)
    recipe = (
        "groups: {train: {ranks: 8, device_type: cpu}}\n"
        "components:\n"
        f"  trainer: {{_target_: mine.{target}, group: train, parallel: {{{parallel}}}, args: {{{args}}}}}\n"
        "pipeline: {metrics: {call: trainer.learn, samples: 64}}\n"
    )
    return facts.reported(folder, recipe, mine=CLASSES, mylosses=LOSSES)


@pytest.mark.parametrize(
    ("lora", "parallel", "target", "is_wrong"),
    [
        ("r: 8", ON_TP, "Trainer", True),
        ("target: all-linear", ON_TP, "Trainer", True),
        ("target: [o_proj, qkv_proj]", ON_TP, "Trainer", True),
        ("r: 8", ON_FSDP, "Trainer", False),
        ("r: 8", ON_TP, "Free", False),
        ("", ON_TP, "Trainer", False),
        ("target: [down_proj]", ON_TP, "Trainer", False),
        ("target: '.*qkv_proj'", ON_TP, "Trainer", False),
    ],
)
def test_adapters_of_fused_layers_on_tp(
    tmp_path: Path, lora: str, parallel: str, target: str, is_wrong: bool
) -> None:
    found = reported(tmp_path, f"model: {{model_type: phi3}}, lora: {{{lora}}}", parallel, target)
    assert [(one.code, one.severity) for one in found] == [("MC451", "error")] * is_wrong
    for one in found:
        assert one.message == "`lora` of `trainer` cannot adapt `qkv_proj` on tp 2"
        reason, _, layouts = one.help.partition("; ")
        assert reason.startswith("the plan splits these layers as `colwise_gather_output`, and adapters need")
        assert layouts.startswith("nearest that fit: ") and " tp " not in layouts
        assert [span.label for span in one.seconds] == ["`tp_size` is 2", "`model_type` is phi3"]


@pytest.mark.parametrize(
    ("model", "parallel", "target", "rows"),
    [
        (GEMMA, ON_TP, "Trainer", 1004),
        (GEMMA.replace("4", "1"), ON_TP, "Trainer", 1001),
        (f"model_type: llama, vocab_size: 1004, {TIED}", ON_FSDP, "Trainer", 1004),
        (GEMMA.replace("1004", "1008"), ON_TP, "Trainer", 0),
        (GEMMA, "dp_size: 8", "Trainer", 0),
        (GEMMA, ON_FSDP, "Free", 0),
        (f"{GEMMA}}}, head: {{", ON_FSDP, "Trainer", 0),
        (f"{GEMMA}, tie_word_embeddings: false", ON_FSDP, "Trainer", 0),
        ("model_type: llama, vocab_size: 1004", ON_FSDP, "Trainer", 0),
        (f"model_type: mud, vocab_size: 1004, {TIED}", ON_FSDP, "Trainer", 0),
    ],
)
def test_tied_embeddings_have_equal_shards(
    tmp_path: Path, model: str, parallel: str, target: str, rows: int
) -> None:
    args = f"model: {{{model}}}".replace("head: {}", "head: score")
    found = reported(tmp_path, args, parallel, target)
    assert [(one.code, one.severity) for one in found] == [("MC452", "error")] * bool(rows)
    for one in found:
        assert (
            one.message
            == f"the tied embedding of `trainer` has {rows} rows, which 8 ranks cannot share equally"
        )
        assert one.help.startswith("nearest that fit: ")
        assert one.help.endswith("; of a new model, a vocabulary of 1008 fits")
        assert [span.label for span in one.seconds] == [f"`vocab_size` is {rows}"]


@pytest.mark.parametrize(
    ("args", "target", "message", "help"),
    [
        ("loss: dop", "Trainer", "`loss` is `dop`, which does not exist", "`dpo`"),
        ("loss: mylosses.onw", "Trainer", "`loss` is `mylosses.onw`, and module `mylosses` has no `onw`", "`own`"),
        ("loss: mylosse.own", "Trainer", "`loss` is `mylosse.own`, and module `mylosse` does not exist", "`mylosses`"),
        ("schedule: {name: linear, warmups: 2}", "Trainer", "`schedule` is `warmups`, which does not exist", "`warmup`"),
        ("schedule: {name: cosin}", "Trainer", "`schedule.name` is `cosin`, which does not exist", "`cosine`"),
        ("loss: dpo", "Trainer", "", ""),
        ("loss: mylosses.second", "Trainer", "", ""),
        ("loss: mylosses.imported", "Trainer", "", ""),
        ("loss: trl.losses.own", "Trainer", "", ""),
        ("loss: dop", "Own", "", ""),
        ("schedule: {warmup: 2}", "Trainer", "", ""),
    ],
)  # fmt: skip
def test_names(tmp_path: Path, args: str, target: str, message: str, help: str) -> None:
    found = reported(tmp_path, f"model: {{}}, {args}", target=target)
    expected = [("MC453", "error", message, f"did you mean {help}?")] * bool(message)
    assert [(one.code, one.severity, one.message, one.help) for one in found] == expected


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("model: {}, lora: {from: adapter}", ""),
        ("model: {}, lora: {from: adapter, r: 8, alpha: 16}", ""),
        (
            "model: {}, lora: {from: adapter, r: 4}",
            "`lora.r` of `trainer` is 4, and that of the adapter is 8",
        ),
        (
            "model: {}, lora: {from: none}",
            "`none` does not name an adapter: the folder has no adapter_config.json",
        ),
        ("model: adapter", "`adapter` has an adapter, not a model"),
    ],
)
def test_an_adapter_that_is_continued(tmp_path: Path, args: str, message: str) -> None:
    (tmp_path / "adapter").mkdir()
    values = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "base_model_name_or_path": "some/base"}
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(values))
    found = [one for one in reported(tmp_path, args) if one.code == "MC475"]
    assert [one.message for one in found] == [message] * bool(message)
    if "model: adapter" in args:
        assert found[0].help == "write `model: some/base` and `lora: {from: adapter}`"


def test_adapters_of_experts_on_ep(tmp_path: Path) -> None:
    found = [
        one for one in reported(tmp_path, EXPERTS + "[q_proj, down_proj]}", ON_EP) if one.severity == "error"
    ]
    message = "`lora` of `trainer` cannot adapt the experts, which ep divides over 2 ranks"
    assert [(one.code, one.message) for one in found] == [("MC451", message)]
    assert found[0].help.startswith("leave `down_proj` out of the targets,")
    right = reported(tmp_path, EXPERTS + "[q_proj]}", ON_EP)
    assert not [one for one in right if one.severity == "error"]
