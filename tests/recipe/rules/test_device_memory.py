"""The bytes of components as the recipe, classes and files on this machine state them, and MC450."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshctl.recipe.load import Loaded
from meshctl.recipe.rules.memory import memory_of
from meshctl.topology.memory import ComponentMemory, Memory
from tests.recipe.rules import facts

CODE = """
    from meshctl import Component, endpoint
    from meshctl.hf import Model
    class Trainer(Model):
        LAYOUTS = {"tp_plan": "transformers"}
        def __init__(self, model, config=None, *, dtype="float32", optimizer="AdamW", optimizer_options=None,
                     lora=None, head="lm"): ...
        @endpoint(collect="mean")
        def update(self, samples: range) -> dict[str, float]: ...
        @endpoint
        def score(self, samples: range): ...
    class Unknown(Component):
        MODEL = "args.model"
        def __init__(self, model): ...
        @endpoint(collect="mean")
        def update(self, samples: range) -> dict[str, float]: ...
"""
LLAMA = {
    **{"model_type": "llama", "vocab_size": 100, "hidden_size": 16, "intermediate_size": 32},
    **{"num_hidden_layers": 2, "num_attention_heads": 4},
}
WIDE = {**LLAMA, "vocab_size": 3000}
NUMBERS = 2 * 100 * 16 + 2 * (4 * 16 * 16 + 3 * 16 * 32 + 2 * 16) + 16
"""The parameters of `LLAMA`."""
KEYS = ("cluster", "component", "groups", "components", "pipeline")


def loaded(
    folder: Path, args: dict[str, Any], kind: str = "Trainer", method: str = "update", **more: Any
) -> Loaded:
    """Loads a recipe with `actor`; `more` are further keys of its component and of the sections of the recipe."""
    given = {key: more.pop(key, {}) for key in KEYS}
    component = {"_target_": f"mine.{kind}", "group": "train", "args": args, **given["component"]}
    recipe = {
        "cluster": given["cluster"],
        "groups": {"train": {"ranks": 8, "device_type": "cuda"}, **given["groups"]},
        "components": {"actor": component, **given["components"]},
        "pipeline": {"out": {"call": f"actor.{method}", "samples": 8}, **given["pipeline"]},
        "run": {"steps": 1},
    }
    return facts.loaded(folder, json.dumps(recipe), mine=CODE, **more)


def memory(folder: Path, args: dict[str, Any], **more: Any) -> Memory:
    found = loaded(folder, args, **more).facts
    assert found is not None
    return memory_of(found)


def actor(folder: Path, args: dict[str, Any], **more: Any) -> ComponentMemory:
    """Returns the bytes of the component; what its ranks send is left out."""
    return replace(memory(folder, args, **more).components[0], moves=())


def test_arguments_and_their_defaults(tmp_path: Path) -> None:
    each = 4 * NUMBERS
    expected = ComponentMemory("actor", each, each, 2 * each, optimizer_name="AdamW")
    assert actor(tmp_path, {"model": LLAMA}) == expected
    found = actor(tmp_path, {"model": LLAMA, "dtype": "bfloat16", "optimizer": "SGD"})
    assert found == ComponentMemory("actor", 2 * NUMBERS, 2 * NUMBERS, 0, optimizer_name="SGD")
    given = {"model": LLAMA, "optimizer": "SGD", "optimizer_options": {"momentum": 1}}
    assert actor(tmp_path, given).optimizer == each
    tied = actor(tmp_path, {"model": LLAMA, "config": {"tie_word_embeddings": True}})
    assert tied.weights == 4 * (NUMBERS - 1600)
    assert actor(tmp_path, {"model": LLAMA, "head": "score"}).weights == 4 * (NUMBERS - 1600 + 16)
    # A config in the recipe stands in for one that is not here.
    assert actor(tmp_path, {"model": "some/model"}, component={"model": {"config": LLAMA}}).weights == each


def test_what_is_not_trained_has_no_gradients(tmp_path: Path) -> None:
    for component in ({}, {"frozen": True}):
        found = actor(tmp_path, {"model": LLAMA}, method="score", component=component)
        assert found == ComponentMemory("actor", 4 * NUMBERS)


@pytest.mark.parametrize("dim", ["fsdp_size", "tp_size"])
def test_layouts(tmp_path: Path, dim: str) -> None:
    whole = actor(tmp_path, {"model": LLAMA}).weights
    assert (
        whole / 4 <= actor(tmp_path, {"model": LLAMA}, component={"parallel": {dim: 4}}).weights < whole / 3.8
    )


@pytest.mark.parametrize(
    ("args", "more", "reason"),
    [
        ({"model": "some/model"}, {}, "`some/model` is neither a local folder nor in the cache of the hub"),
        ({"model": {"model_type": "mamba"}}, {}, "the architecture `mamba` is not known"),
        ({"model": {"hidden_size": 2}}, {}, "its config has no `model_type`"),
        ({"model": {**LLAMA, "vocab_size": None}}, {}, "its config has no `vocab_size`"),
        ({"model": LLAMA, "dtype": "int8"}, {}, "`int8` is not a dtype of weights"),
        ({"model": LLAMA, "dtype": "${oc.env:DTYPE}"}, {}, "`args.dtype` is known at launch only"),
        ({"model": LLAMA}, {"parallel": {"pp_size": 2}}, "how pp splits its parameters is not known"),
    ],
)
def test_an_unknown_size_has_a_reason(
    tmp_path: Path, args: dict[str, Any], more: dict[str, Any], reason: str
) -> None:
    found = memory(tmp_path, args, component=more, environ={"DTYPE": "float32"})
    assert (found.components, found.devices) == ((ComponentMemory("actor", unknown=reason),), ())


def test_what_is_unknown_in_part_or_without_bytes(tmp_path: Path) -> None:
    found = memory(tmp_path, {"model": LLAMA, "optimizer": "mine.Own"})
    assert found.components[0].optimizer is None and found.components[0].optimizer_name == "Own"
    assert not found.devices[0].is_complete
    assert memory(tmp_path, {"model": LLAMA}, kind="Unknown") == Memory()


def test_an_adapter_that_is_continued_has_its_saved_rank(tmp_path: Path) -> None:
    (tmp_path / "adapter").mkdir()
    values = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(values))
    saved = memory(tmp_path, {"model": LLAMA, "lora": {"from": "adapter"}})
    stated = memory(tmp_path, {"model": LLAMA, "lora": {"r": 4, "target": ["q_proj"]}})
    assert saved == stated and saved != memory(tmp_path, {"model": LLAMA, "lora": {"r": 8}})
    assert memory(tmp_path, {"model": LLAMA, "lora": {"from": "none"}}).components[0].unknown


def test_syncs_have_buckets_on_both_sides(tmp_path: Path) -> None:
    sampler = {"_target_": "mine.Trainer", "group": "roll", "args": {"model": LLAMA, "dtype": "bfloat16"}}
    pipeline = {
        "publish": {"sync": "actor", "to": "sampler", "max_staleness": 1},
        "texts": {"call": "sampler.score", "samples": 8},
    }
    groups = {"roll": {"ranks": 1, "device_type": "cuda"}}
    found = memory(
        tmp_path, {"model": LLAMA}, groups=groups, components={"sampler": sampler}, pipeline=pipeline
    )
    sent, received = found.components
    assert sent.sync == 2 * 4 * NUMBERS and received.sync == 2 * 2 * NUMBERS


def warnings_of(found: Loaded) -> list[tuple[str, str]]:
    return [(one.message, one.help) for one in found.report.diagnostics if one.code == "MC450"]


@pytest.mark.parametrize(
    ("limit", "dim", "is_enough"),
    [("2MB", "dp_size", True), ("1MB", "dp_size", False), ("1MB", "fsdp_size", True)],
)
def test_models_fit_their_device(tmp_path: Path, limit: str, dim: str, is_enough: bool) -> None:
    more = {"cluster": {"device_memory": limit}, "component": {"parallel": {dim: 8}}}
    needs = "`actor` needs 1.62 MB on each device, which has 1 MB"
    expected = [(needs, "divide the model over more ranks (`fsdp_size`), or train an adapter (`lora`)")]
    assert warnings_of(loaded(tmp_path, {"model": WIDE}, **more)) == ([] if is_enough else expected)


def test_components_that_share_a_device_are_added_up(tmp_path: Path) -> None:
    args = {"model": WIDE, "dtype": "bfloat16", "optimizer": "SGD"}
    found = loaded(
        tmp_path,
        {"model": WIDE},
        cluster={"device_memory": "2MB"},
        groups={"twin": {"ranks": 1, "device_type": "cuda", "colocate": "train"}},
        components={"twin_actor": {"_target_": "mine.Trainer", "group": "twin", "args": args}},
        pipeline={"second": {"call": "twin_actor.update", "samples": 8}},
    )
    assert warnings_of(found)[0][0] == "`actor` and `twin_actor` need 2.02 MB on each device, which has 2 MB"
