"""The bytes of components as the recipe, classes and files on this machine state them, and MC450."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from meshctl.recipe.load import Loaded, load
from meshctl.recipe.rules.memory import memory_of
from meshctl.topology.memory import ComponentMemory, Memory

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
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
NUMBERS = 2 * 100 * 16 + 2 * (4 * 16 * 16 + 3 * 16 * 32 + 2 * 16) + 16
"""The parameters of this model."""


def loaded(
    folder: Path, args: dict[str, Any], kind: str = "Trainer", method: str = "update", **more: Any
) -> Loaded:
    (folder / "mine.py").write_text(dedent(CODE))
    component = {"_target_": f"mine.{kind}", "group": "train", "args": args, **more.pop("component", {})}
    recipe = {
        "cluster": more.pop("cluster", {}),
        "groups": {"train": {"ranks": 8, "device_type": "cuda"}, **more.pop("groups", {})},
        "components": {"actor": component, **more.pop("components", {})},
        "pipeline": {"out": {"call": f"actor.{method}", "samples": 8}, **more.pop("pipeline", {})},
        "run": {"steps": 1},
    }
    (folder / "r.yaml").write_text(json.dumps(recipe))
    return load(folder / "r.yaml", [], folder, **more)


def memory(
    folder: Path, args: dict[str, Any], kind: str = "Trainer", method: str = "update", **more: Any
) -> Memory:
    facts = loaded(folder, args, kind, method, **more).facts
    assert facts is not None
    return memory_of(facts)


def actor(
    folder: Path, args: dict[str, Any], kind: str = "Trainer", method: str = "update", **more: Any
) -> ComponentMemory:
    """Returns the bytes of the component; what its ranks send is left out."""
    return replace(memory(folder, args, kind, method, **more).components[0], moves=())


def test_defaults_are_those_of_the_constructor(tmp_path: Path) -> None:
    found = actor(tmp_path, {"model": LLAMA})
    each = 4 * NUMBERS
    assert found == ComponentMemory("actor", each, each, 2 * each, optimizer_name="AdamW")


def test_arguments(tmp_path: Path) -> None:
    found = actor(tmp_path, {"model": LLAMA, "dtype": "bfloat16", "optimizer": "SGD"})
    assert found == ComponentMemory("actor", 2 * NUMBERS, 2 * NUMBERS, 0, optimizer_name="SGD")
    given = {"model": LLAMA, "optimizer": "SGD", "optimizer_options": {"momentum": 1}}
    assert actor(tmp_path, given).optimizer == 4 * NUMBERS


def test_changes_of_the_config_and_the_head(tmp_path: Path) -> None:
    tied = actor(tmp_path, {"model": LLAMA, "config": {"tie_word_embeddings": True}})
    assert tied.weights == 4 * (NUMBERS - 1600)
    assert actor(tmp_path, {"model": LLAMA, "head": "score"}).weights == 4 * (NUMBERS - 1600 + 16)


def test_what_is_not_trained_has_no_gradients(tmp_path: Path) -> None:
    only = ComponentMemory("actor", 4 * NUMBERS)
    assert actor(tmp_path, {"model": LLAMA}, method="score") == only
    assert actor(tmp_path, {"model": LLAMA}, method="score", component={"frozen": True}) == only


def test_layouts(tmp_path: Path) -> None:
    whole = actor(tmp_path, {"model": LLAMA}).weights
    sharded = actor(tmp_path, {"model": LLAMA}, component={"parallel": {"fsdp_size": 4}})
    assert whole / 4 <= sharded.weights < whole / 3.9
    split = actor(tmp_path, {"model": LLAMA}, component={"parallel": {"tp_size": 4}})
    assert whole / 4 < split.weights < whole / 3.8


@pytest.mark.parametrize(
    ("args", "more", "reason"),
    [
        ({"model": "some/model"}, {}, "`some/model` is neither a local folder nor in the cache of the hub"),
        ({"model": {"model_type": "mamba"}}, {}, "the architecture `mamba` is not known"),
        ({"model": {"hidden_size": 2}}, {}, "its config has no `model_type`"),
        ({"model": {**LLAMA, "vocab_size": None}}, {}, "its config has no `vocab_size`"),
        ({"model": LLAMA, "dtype": "int8"}, {}, "`int8` is not a dtype of weights"),
        ({"model": LLAMA, "dtype": "${oc.env:DTYPE}"}, {}, "`args.dtype` is known at launch only"),
        ({"model": LLAMA}, {"pp_size": 2}, "how pp splits its parameters is not known"),
    ],
)
def test_an_unknown_size_has_a_reason(
    tmp_path: Path, args: dict[str, Any], more: dict[str, Any], reason: str
) -> None:
    component = {"parallel": more} if more else {}
    found = memory(tmp_path, args, component=component, environ={"DTYPE": "float32"})
    assert found.components == (ComponentMemory("actor", unknown=reason),)
    assert found.devices == ()


def test_an_unknown_optimizer_is_named(tmp_path: Path) -> None:
    found = memory(tmp_path, {"model": LLAMA, "optimizer": "mine.Own"})
    assert found.components[0].optimizer is None and found.components[0].optimizer_name == "Own"
    assert not found.devices[0].is_complete


def test_other_classes_have_no_bytes(tmp_path: Path) -> None:
    assert memory(tmp_path, {"model": LLAMA}, "Unknown") == Memory()


def test_files_of_an_unknown_architecture(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "own"}')
    tensors = {
        "wte.weight": [10, 4],
        "h.0.w.weight": [4, 4],
        "h.1.w.weight": [4, 4],
        "lm_head.weight": [10, 4],
    }
    header = json.dumps({name: {"dtype": "F32", "shape": shape} for name, shape in tensors.items()}).encode()
    (tmp_path / "model" / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    numbers = 40 + 32 + 40
    assert actor(tmp_path, {"model": "model"}).weights == 4 * numbers
    assert actor(tmp_path, {"model": "model", "head": "score"}).weights == 4 * (numbers - 40 + 4)
    adapted = actor(tmp_path, {"model": "model", "lora": {"r": 2, "target": ["w"]}})
    assert adapted.gradients == 4 * 2 * (2 * 4 + 4 * 2)
    for unknown in (
        actor(tmp_path, {"model": "model", "lora": {"r": 2}}),
        actor(tmp_path, {"model": "model"}, component={"parallel": {"tp_size": 2}}),
    ):
        assert unknown.unknown


def test_a_config_in_the_recipe_stands_in_for_one_that_is_not_here(tmp_path: Path) -> None:
    found = actor(tmp_path, {"model": "some/model"}, component={"model": {"config": LLAMA}})
    assert found.weights == 4 * NUMBERS


def test_syncs_have_buckets_on_both_sides(tmp_path: Path) -> None:
    sampler = {"_target_": "mine.Trainer", "group": "roll", "args": {"model": LLAMA, "dtype": "bfloat16"}}
    found = memory(
        tmp_path,
        {"model": LLAMA},
        groups={"roll": {"ranks": 1, "device_type": "cuda"}},
        components={"sampler": sampler},
        pipeline={
            "publish": {"sync": "actor", "to": "sampler", "max_staleness": 1},
            "texts": {"call": "sampler.score", "samples": 8},
        },
    )
    sent, loaded = found.components
    assert sent.sync == 2 * 4 * NUMBERS and loaded.sync == 2 * 2 * NUMBERS


def warnings_of(found: Loaded) -> list[tuple[str, str]]:
    return [(one.message, one.help) for one in found.report.diagnostics if one.code == "MC450"]


@pytest.mark.parametrize(
    ("limit", "parallel", "expected"),
    [("2MB", {"dp_size": 8}, []), ("1MB", {"dp_size": 8}, ["fsdp_size: 2"]), ("1MB", {"fsdp_size": 2}, [])],
)
def test_models_fit_their_device(
    tmp_path: Path, limit: str, parallel: dict[str, int], expected: list[str]
) -> None:
    wide = {**LLAMA, "vocab_size": 3000}
    found = loaded(
        tmp_path, {"model": wide}, cluster={"device_memory": limit}, component={"parallel": parallel}
    )
    needs = "`actor` needs 1.62 MB on each device, which has 1 MB"
    help = "what fits: fsdp_size: 2; lora: {r: 16}"
    assert warnings_of(found) == ([(needs, help)] if expected else [])


def test_components_that_share_a_device_are_added_up(tmp_path: Path) -> None:
    wide = {**LLAMA, "vocab_size": 3000}
    args = {"model": wide, "dtype": "bfloat16", "optimizer": "SGD"}
    other = {"_target_": "mine.Trainer", "group": "twin", "args": args}
    found = loaded(
        tmp_path,
        {"model": wide},
        cluster={"device_memory": "2MB"},
        groups={"twin": {"ranks": 1, "device_type": "cuda", "colocate": "train"}},
        components={"twin_actor": other},
        pipeline={"second": {"call": "twin_actor.update", "samples": 8}},
    )
    assert warnings_of(found)[0][0] == "`actor` and `twin_actor` need 2.02 MB on each device, which has 2 MB"
