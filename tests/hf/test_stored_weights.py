"""`weights()` and `load_weights` have the names, shapes and values of the files that plain transformers writes,
in every layout and as shards."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed.tensor import DTensor

from meshctl.hf import Model, ModelError, building, peft_api, transformers_api
from meshctl.hf.sharding import local_of
from meshctl.runtime.routes.sync_plan import Shard, layout_of
from tests.hf import parity
from tests.runtime import worlds

EXPERTS = ("qwen3_moe", "other experts")
MODELS = {
    **parity.ALL,
    # Linear layers with the names that experts have in files.
    "shared expert": {
        **parity.MODELS["qwen3_moe"],
        "model_type": "qwen2_moe",
        "shared_expert_intermediate_size": 24,
    },
    "a layer without experts": {**parity.MODELS["qwen3_moe"], "mlp_only_layers": [0]},
}
TARGETS: dict[str, str | list[str]] = {
    "all": "all-linear",
    "one layer": r".*layers\.1\.self_attn\.q_proj",
    "experts": ["q_proj", "down_proj", "gate_up_proj"],
}
LAYOUTS = {2: ({"fsdp": 2}, {"tp": 2}), 4: ({"fsdp": 2, "tp": 2}, {"dp": 2, "tp": 2})}
ON_RANKS = ("qwen3_moe", "fused projections")
"""The models of `test_on_several_ranks`: separate experts, and weights that files have in another form."""
FOLDER = Path()
"""The folder of the files of plain transformers, set before the processes are forked."""


def model(name: str, sizes: dict[str, int] | None = None, seed: int = 0) -> Model:
    return parity.made(name, sizes, dtype="float64", config={"initializer_range": 0.02 * (seed + 1)})


def files_of(name: str, folder: Path) -> dict[str, Tensor]:
    """Returns the tensors that plain transformers writes for the model of `model(name)`."""
    if not (folder / name).exists():
        config = transformers_api.read_config(MODELS[name], "lm", {"initializer_range": 0.02})
        plain = building.new_model(config, building.Build("", dtype=torch.float64))
        plain.save_pretrained(folder / name)
    return load_file(folder / name / "model.safetensors")


def check_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("name", parity.ALL)
def test_weights_are_those_of_the_files(name: str, tmp_path: Path) -> None:
    check_same(dict(model(name).weights()), files_of(name, tmp_path))


@pytest.mark.parametrize("name", EXPERTS)
def test_weights_are_loaded_by_the_names_of_the_files(name: str) -> None:
    trained, other = model(name, seed=1), model(name)
    other.load_weights(trained.weights())
    for key, tensor in trained.module.named_parameters():
        assert torch.equal(other.module.get_parameter(key), tensor), key


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("qwen3_moe", "experts"),
        ("other experts", "all"),
        ("shared expert", "all"),
        ("a layer without experts", "one layer"),
    ],
)
def test_files_are_loaded_into_a_model_with_adapters(name: str, target: str, tmp_path: Path) -> None:
    expected = files_of(name, tmp_path)
    made = Model(str(tmp_path / name), dtype="float64", lora={"r": 2, "target": TARGETS[target]})
    check_same(dict(made.weights()), expected)
    trained = [name for name, one in made.module.named_parameters() if one.requires_grad]
    assert trained and all(map(peft_api.is_adapter, trained))


def test_a_fused_weight_of_which_a_part_is_sent_is_an_error() -> None:
    one = model("qwen3_moe")
    part = [(name, tensor) for name, tensor in one.weights() if "experts.2.up_proj" not in name]
    with pytest.raises(ModelError, match=r"`model\.layers\.0\.mlp\.experts\.2\.up_proj\.weight` is not sent"):
        one.load_weights(part)
    with pytest.raises(ModelError, match=r"has the shape \[16, 32\], and \[3\] is sent"):
        one.load_weights([("model.layers.0.mlp.experts.2.up_proj.weight", torch.zeros(3))])


def shards_are_those_of_the_files_and_are_loaded_in_every_form(rank: int) -> None:
    layouts = LAYOUTS[dist.get_world_size()]
    for name in ON_RANKS:
        expected = files_of(name, FOLDER)
        models = [model(name, sizes) for sizes in layouts]
        for one in models:
            check_shards(dict(one.weights()), expected)
        for sizes, one in zip(layouts, models, strict=True) if name in EXPERTS else ():
            shards = [(key, local_of(tensor).clone()) for key, tensor in one.weights()]
            copy = model(name, sizes, seed=1)
            for stream in (shards, expected.items(), *(other.weights() for other in models)):
                with torch.no_grad():
                    for parameter in copy.module.parameters():
                        local_of(parameter).zero_()
                copy.load_weights(stream)
                check_same(dict(parity.whole_tensors(copy.weights())), expected)


def check_shards(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    check_same(dict(parity.whole_tensors(found.items())), expected)
    for key, shard in layout_of(found).items():
        whole = Shard((0,) * expected[key].ndim, tuple(expected[key].shape))
        own = local_of(found[key])
        assert torch.equal(shard.view_of(expected[key], whole), own), key
        if ".experts." in key:
            assert isinstance(found[key], DTensor) and own.numel() < found[key].numel(), key


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.nightly)])
def test_on_several_ranks(size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "FOLDER", tmp_path / "files")
    for name in ON_RANKS:
        files_of(name, FOLDER)
    (tmp_path / "world").mkdir()
    checks = [shards_are_those_of_the_files_and_are_loaded_in_every_form]
    assert {*worlds.run(size, checks, tmp_path / "world").values()} == {worlds.PASSED}
