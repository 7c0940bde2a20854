"""Exports in several files: what plain transformers loads, what a rank holds, and files that remain."""

from __future__ import annotations

import json
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from meshctl.hf import Model, ModelError
from meshctl.hf.weights import merged_weights
from tests.hf import parity
from tests.hf.memory import AllocatedPeak
from tests.hf.parity import LORA, MODELS, whole_tensors
from tests.runtime import worlds

SHARED = Path()
"""The folder of a world, set before its processes are forked."""
FILE_BYTES = 8000


def model(name: str, sizes: dict[str, int], lora: bool = False) -> Model:
    made = parity.made(name, sizes, lora=LORA if lora else None)
    for key, tensor in made.module.named_parameters():
        if ".lora_B." in key:
            torch.nn.init.constant_(tensor, 0.01)
    return made


def check_loaded(folder: Path, made: Model) -> None:
    """Compares what plain transformers loads with the weights of a model. All ranks call it together."""
    expected = {name: tensor.clone() for name, tensor in whole_tensors(merged_weights(made.module))}
    found = dict(AutoModelForCausalLM.from_pretrained(folder).named_parameters())
    assert found.keys() >= expected.keys()  # those of the stages of this rank
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        torch.testing.assert_close(found[name].detach(), tensor, rtol=0, atol=0)


def names_on_disk(folder: Path) -> set[str]:
    return {name for path in folder.glob("*.safetensors") for name in load_file(path)}


@pytest.mark.parametrize("name", ["llama", "llama_tied", "qwen3_moe"])
def test_files_have_a_limited_size_and_the_names_of_transformers(name: str, tmp_path: Path) -> None:
    made = model(name, {}, lora=name == "llama")
    made.export(tmp_path / "several", FILE_BYTES)
    made.export(tmp_path / "one")
    assert sorted(path.name for path in (tmp_path / "one").glob("*safetensors*")) == ["model.safetensors"]
    index = json.loads((tmp_path / "several" / "model.safetensors.index.json").read_text())
    files = sorted((tmp_path / "several").glob("*.safetensors"))
    assert set(index["weight_map"].values()) == {path.name for path in files} and len(files) > 2
    for path in files:
        tensors = load_file(path)
        assert {key for key, file in index["weight_map"].items() if file == path.name} == tensors.keys()
        assert sum(one.nbytes for one in tensors.values()) <= FILE_BYTES or len(tensors) <= 8
    assert names_on_disk(tmp_path / "several") == names_on_disk(tmp_path / "one")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "one")
    plain.save_pretrained(tmp_path / "plain")
    assert names_on_disk(tmp_path / "one") == names_on_disk(tmp_path / "plain")
    for folder in ("one", "several"):
        check_loaded(tmp_path / folder, made)


def test_the_files_of_an_earlier_export_are_removed(tmp_path: Path) -> None:
    made = model("llama", {})
    made.export(tmp_path, FILE_BYTES)
    (tmp_path / "notes.txt").write_text("mine")
    made.export(tmp_path)
    assert {path.name for path in tmp_path.glob("model*")} == {"model.safetensors"}
    assert (tmp_path / "notes.txt").exists()
    check_loaded(tmp_path, made)


def test_the_config_names_the_class_and_the_dtype(tmp_path: Path) -> None:
    model("qwen3", {}).export(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["Qwen3ForCausalLM"] and config["dtype"] == "float32"
    assert "distributed_config" not in config and (tmp_path / "generation_config.json").exists()


def test_a_folder_that_cannot_be_written_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match=r"the export to `.*file/export` failed: .*Not a directory"):
        model("llama", {}).export(tmp_path / "file" / "export")


def ranks_write_different_files(rank: int) -> None:
    layouts = {"llama_tied": {"fsdp": 2}, "qwen3_moe": {"tp": 2}, "llama": {"dp": 2}, "qwen3": {"pp": 2}}
    for name, sizes in layouts.items():
        made = model(name, sizes, lora=name == "llama_tied")
        folder = SHARED / name
        with mock.patch("meshctl.hf.weights.save_file", wraps=save_file) as written:
            made.export(folder, FILE_BYTES)
        own = [Path(call.args[1]).name.removesuffix(".part") for call in written.call_args_list]
        assert own == sorted(path.name for path in folder.glob("*.safetensors"))[rank::2], own
        check_loaded(folder, made)
        dist.barrier()


def no_rank_holds_more_than_a_file_and_a_tensor(rank: int) -> None:
    wide = {**MODELS["llama"], "vocab_size": 8, "hidden_size": 512, "intermediate_size": 2048}
    made = parity.made({**wide, "num_hidden_layers": 12, "head_dim": 128}, {"fsdp": 2})
    total = sum(tensor.nbytes for _, tensor in made.weights())
    largest, file = 512 * 2048 * 4, 16 << 20
    with AllocatedPeak() as peak:
        made.export(SHARED / "wide", file)
    assert total > 6 * file
    # torch gathers a tensor in buffers of a few times its size
    assert peak.bytes < file + 4 * largest < total / 4, (peak.bytes, total)


CHECKS: tuple[worlds.Check, ...] = (
    ranks_write_different_files,
    no_rank_holds_more_than_a_file_and_a_tensor,
)


@pytest.mark.slow
@pytest.mark.parametrize("name", [check.__name__ for check in CHECKS])
def test_in_two_processes(name: str, results: dict[str, str]) -> None:
    assert results[name] == worlds.PASSED
