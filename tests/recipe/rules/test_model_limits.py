"""The rules about adapters on tp, tied embeddings and names, for an invented transformers next to the recipe."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from meshctl.diagnostics import Diagnostic
from meshctl.recipe.load import load

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
SCHEDULES = """
    class SchedulerType:
        COSINE = "cosine"
        LINEAR = "linear"
"""
PLANS = {
    "phi3": {"self_attn.qkv_proj": "colwise_gather_output", "mlp.down_proj": "rowwise"},
    "llama": {"self_attn.q_proj": "colwise", "self_attn.o_proj": "rowwise", "mlp": "sequence_parallel"},
    "gemma": {"self_attn.q_proj": "colwise"},
}
ON_TP, ON_FSDP = "fsdp_size: 4, tp_size: 2", "fsdp_size: 8"


def reported(
    folder: Path, args: str, parallel: str = ON_FSDP, target: str = "Trainer", ranks: int = 8
) -> list[Diagnostic]:
    (folder / "mine.py").write_text(dedent(CLASSES))
    (folder / "mylosses.py").write_text(dedent(LOSSES))
    for kind, styles in PLANS.items():
        file = folder / "transformers" / "models" / kind / f"configuration_{kind}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        plan = {f"layers.*.{name}": style for name, style in styles.items()}
        file.write_text(
            f"class Config(PreTrainedConfig):\n    model_type = {kind!r}\n    base_model_tp_plan = {plan!r}\n"
        )
    (folder / "transformers" / "__init__.py").touch()
    (folder / "transformers" / "trainer_utils.py").write_text(dedent(SCHEDULES))
    (folder / "recipe.yaml").write_text(
        f"groups: {{train: {{ranks: {ranks}, device_type: cpu}}}}\n"
        "components:\n"
        f"  trainer: {{_target_: mine.{target}, group: train, parallel: {{{parallel}}}, args: {{{args}}}}}\n"
        "pipeline: {metrics: {call: trainer.learn, samples: 64}}\n"
    )
    return list(load("recipe.yaml", [], folder, environ={}).report.diagnostics)


@pytest.mark.parametrize(
    "lora", ["r: 8", "target: all-linear", "target: [qkv_proj]", "target: [o_proj, qkv_proj]"]
)
def test_adapters_of_fused_layers_on_tp_are_an_error_with_layouts_without_tp(
    tmp_path: Path, lora: str
) -> None:
    (one,) = reported(tmp_path, f"model: {{model_type: phi3}}, lora: {{{lora}}}", ON_TP)
    assert (one.code, one.severity) == ("MC451", "error")
    assert one.message == "`lora` of `trainer` cannot adapt `qkv_proj` on tp 2"
    reason, _, layouts = one.help.partition("; ")
    needed = "adapters need `colwise` or `rowwise`"
    assert reason == f"the plan splits these layers as `colwise_gather_output`, and {needed}"
    assert layouts.startswith("nearest that fit: ") and " tp " not in layouts
    assert [span.label for span in one.seconds] == ["`tp_size` is 2", "`model_type` is phi3"]


@pytest.mark.parametrize(
    ("args", "parallel", "target"),
    [
        ("model: {model_type: phi3}, lora: {r: 8}", ON_FSDP, "Trainer"),
        ("model: {model_type: phi3}, lora: {r: 8}", ON_TP, "Free"),
        ("model: {model_type: phi3}", ON_TP, "Trainer"),
        ("model: {model_type: phi3}, lora: {}", ON_TP, "Trainer"),
        ("model: {model_type: phi3}, lora: {target: [down_proj]}", ON_TP, "Trainer"),
        ("model: {model_type: phi3}, lora: {target: '.*qkv_proj'}", ON_TP, "Trainer"),
        ("model: {model_type: llama}, lora: {r: 8}", ON_TP, "Trainer"),
    ],
)
def test_other_adapters_are_not_reported(tmp_path: Path, args: str, parallel: str, target: str) -> None:
    assert reported(tmp_path, args, parallel, target) == []


@pytest.mark.parametrize("model", ["model_type: gemma", "model_type: llama, tie_word_embeddings: true"])
@pytest.mark.parametrize(("rows", "parallel"), [(1004, ON_TP), (1001, ON_TP), (1004, ON_FSDP)])
def test_tied_embeddings_without_equal_shards_are_an_error(
    tmp_path: Path, model: str, rows: int, parallel: str
) -> None:
    (one,) = reported(tmp_path, f"model: {{{model}, vocab_size: {rows}}}", parallel)
    assert (one.code, one.severity) == ("MC452", "error")
    assert one.message == (
        f"the tied embedding of `trainer` has {rows} rows, which 8 ranks cannot share equally"
    )
    assert one.help.startswith("nearest that fit: ")
    assert one.help.endswith("; of a new model, a vocabulary of 1008 fits")
    assert [span.label for span in one.seconds] == [f"`vocab_size` is {rows}"]


@pytest.mark.parametrize(
    ("args", "parallel", "target"),
    [
        ("model: {model_type: gemma, vocab_size: 1008}", ON_TP, "Trainer"),
        ("model: {model_type: gemma, vocab_size: 1004}", "dp_size: 8", "Trainer"),
        ("model: {model_type: gemma, vocab_size: 1004}", ON_FSDP, "Free"),
        ("model: {model_type: gemma, vocab_size: 1004}, head: score", ON_FSDP, "Trainer"),
        ("model: {model_type: gemma, vocab_size: 1004, tie_word_embeddings: false}", ON_FSDP, "Trainer"),
        ("model: {model_type: llama, vocab_size: 1004}", ON_FSDP, "Trainer"),
        ("model: {model_type: mud, vocab_size: 1004, tie_word_embeddings: true}", ON_FSDP, "Trainer"),
    ],
)
def test_other_embeddings_are_not_reported(tmp_path: Path, args: str, parallel: str, target: str) -> None:
    assert reported(tmp_path, args, parallel, target) == []


@pytest.mark.parametrize(
    ("args", "message", "help"),
    [
        ("loss: dop", "`loss` is `dop`, which does not exist", "did you mean `dpo`?"),
        (
            "loss: mylosses.onw",
            "`loss` is `mylosses.onw`, and module `mylosses` has no `onw`",
            "did you mean `own`?",
        ),
        (
            "loss: mylosse.own",
            "`loss` is `mylosse.own`, and module `mylosse` does not exist",
            "did you mean `mylosses`?",
        ),
        (
            "schedule: {name: cosin}",
            "`schedule.name` is `cosin`, which does not exist",
            "did you mean `cosine`?",
        ),
    ],
)
def test_a_misspelt_name_is_an_error(tmp_path: Path, args: str, message: str, help: str) -> None:
    (one,) = reported(tmp_path, f"model: {{}}, {args}")
    assert (one.code, one.severity, one.message, one.help) == ("MC453", "error", message, help)


@pytest.mark.parametrize(
    ("args", "target"),
    [
        ("loss: dpo", "Trainer"),
        ("loss: mylosses.own", "Trainer"),
        ("loss: mylosses.second", "Trainer"),
        ("loss: mylosses.imported", "Trainer"),
        ("loss: trl.losses.own", "Trainer"),
        ("loss: dop", "Own"),
        ("schedule: {warmup: 2}", "Trainer"),
    ],
)
def test_other_names_are_not_reported(tmp_path: Path, args: str, target: str) -> None:
    assert reported(tmp_path, f"model: {{}}, {args}", target=target) == []


@pytest.mark.parametrize(("target", "is_wrong"), [("[q_proj, down_proj]", True), ("[q_proj]", False)])
def test_adapters_of_experts_on_ep_are_an_error(tmp_path: Path, target: str, is_wrong: bool) -> None:
    args = f"model: {{model_type: qwen3_moe}}, lora: {{target: {target}}}"
    found = [one for one in reported(tmp_path, args, "fsdp_size: 8, ep_size: 2") if one.severity == "error"]
    assert [one.code for one in found] == ["MC451"] * is_wrong
    if found:
        message = "`lora` of `trainer` cannot adapt the experts, which ep divides over 2 ranks"
        assert (found[0].message, found[0].help.split(",")[0]) == (
            message,
            "leave `down_proj` out of the targets",
        )


@pytest.mark.parametrize(
    ("args", "code"),
    [
        ("loss: dop", "MC453"),
        ("optimizer: Adamw", "MC453"),
        ("optimizer: torch.optim.Adamw", "MC453"),
        ("schedule: {name: cosin}", "MC453"),
        ("model: {model_type: llama}, lora: {rank: 8}", "MC453"),
        ("model: {model_type: llama}, lora: {target: [q_proj, v_prj, lm_head]}", "MC453"),
        ("lora: {r: 8}", "MC451"),
        ("model: {model_type: qwen3_moe}, lora: {target: [q_proj, down_proj]}", "MC451"),
    ],
)
def test_the_arguments_of_hf_models_are_checked(tmp_path: Path, args: str, code: str) -> None:
    pytest.importorskip("transformers")
    right = "model: {model_type: llama}, loss: dpo, optimizer: torch.optim.SGD, schedule: {name: cosine}, lora: {target: [q_proj]}"
    for given, expected in ((args, [code]), (right, [])):
        model = "" if "model:" in given else "model: {model_type: phi3}, "
        (tmp_path / "recipe.yaml").write_text(
            "groups: {train: {ranks: 2, device_type: cpu}}\n"
            "components:\n"
            "  model: {_target_: meshctl.hf.Model, group: train, parallel: {tp_size: 2},\n"
            f"    args: {{{model}{given}}}}}\n"
            "pipeline: {metrics: {call: model.update, samples: 64}}\n"
        )
        found = load("recipe.yaml", [], tmp_path, environ={}).report.diagnostics
        assert [one.code for one in found if one.code in ("MC451", "MC453")] == expected
