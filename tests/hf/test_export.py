"""Exports in several files: what plain transformers loads, what a rank holds, and files that remain."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from unittest import mock

import peft
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from meshctl.hf import Model, ModelError
from meshctl.hf.weights import merged_weights
from meshctl.package import SHIPPED_TOKENIZERS
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


def test_an_export_has_the_files_beside_the_weights(tmp_path: Path) -> None:
    source, folder = tmp_path / "source", tmp_path / "export"
    model("qwen3", {}).export(source)
    shutil.copytree(SHIPPED_TOKENIZERS["byte"], source, dirs_exist_ok=True)
    generation = {"eos_token_id": [257, 258], "temperature": 0.7, "do_sample": True, "max_length": 99}
    (source / "generation_config.json").write_text(json.dumps(generation))
    (source / "LICENSE").write_text("mine")
    Model(str(source)).export(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    chat = [{"role": "user", "content": "Hi"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False).startswith("<|im_start|>user")
    assert json.loads((folder / "generation_config.json").read_text()) == generation
    assert json.loads((folder / "config.json").read_text())["use_cache"] is True
    assert (folder / "LICENSE").read_text() == "mine"
    assert AutoModelForCausalLM.from_pretrained(folder).generation_config.eos_token_id == [257, 258]


def test_a_tokenizer_can_be_named_for_the_export(tmp_path: Path) -> None:
    Model(MODELS["qwen3"], tokenizer="byte").export(tmp_path / "one")
    assert AutoTokenizer.from_pretrained(tmp_path / "one")("ab", add_special_tokens=False)["input_ids"] == [
        97,
        98,
    ]
    with pytest.raises(ModelError, match="the export has no tokenizer: `no/where` is not on this machine"):
        Model(MODELS["qwen3"], tokenizer="no/where").export(tmp_path / "two")


def test_a_folder_that_cannot_be_written_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match=r"the export to `.*file/export` failed: .*Not a directory"):
        model("llama", {}).export(tmp_path / "file" / "export")


def adapter(sizes: dict[str, int], source: Path | None = None, name: str = "llama") -> Model:
    made = parity.made(name, sizes, lora={"from": str(source)} if source else LORA, export={"adapter": True})
    if source is None:
        for key, tensor in made.module.named_parameters():
            if ".lora_B." in key:
                torch.nn.init.normal_(tensor, generator=torch.Generator().manual_seed(len(key)))
    return made


@pytest.mark.parametrize("name", ["llama", "qwen3_moe"])
def test_an_adapter_alone_is_read_by_peft_and_by_a_model(tmp_path: Path, name: str) -> None:
    made = adapter({}, name=name)
    made.export(tmp_path / "adapter")
    made.exports_adapter = False
    made.export(tmp_path / "merged")
    assert {path.name for path in (tmp_path / "adapter").iterdir()} >= {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    ids = torch.arange(8)[None]
    expected = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")(ids).logits
    base = parity.made(name, {})
    base.export(tmp_path / "base")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that peft uses and transformers has renamed
        plain = peft.PeftModel.from_pretrained(
            AutoModelForCausalLM.from_pretrained(tmp_path / "base"), tmp_path / "adapter"
        )
    torch.testing.assert_close(plain(ids).logits, expected, rtol=1e-4, atol=1e-5)
    again = adapter({}, tmp_path / "adapter", name)
    for (key, one), (other, two) in zip(made.adapter(), again.adapter(), strict=True):
        assert key == other and torch.equal(one, two)


@pytest.mark.parametrize(
    ("lora", "change", "message"),
    [
        ({"r": 7}, {}, "`lora.r` is 7, and that of the adapter `.*` is 4"),
        ({"target": ["q_proj"]}, {}, r"`lora.target` is \['q_proj'\], and that of the adapter `.*` is \["),
        ({}, {"use_dora": True}, "the adapter `.*` uses `use_dora`, which is not supported"),
        ({}, {"peft_type": "IA3"}, "the adapter `.*` uses `IA3`"),
        ({}, {"r": None}, "adapter_config.json cannot be read"),
        ({}, {"r": 8}, "has the shape"),
        ({}, {"target_modules": ["q_proj"]}, "is sent to the model, which has no such parameter"),
    ],
)
def test_an_adapter_that_does_not_fit_is_named(
    tmp_path: Path, lora: dict[str, object], change: dict[str, object], message: str
) -> None:
    adapter({}).export(tmp_path)
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ModelError, match=message):
        parity.made("llama", {}, lora={**lora, "from": str(tmp_path)}).setup()
    with pytest.raises(ModelError, match="`no/where` does not name an adapter"):
        Model(MODELS["llama"], lora={"from": "no/where"})


def adapters_are_equal_in_all_layouts(rank: int) -> None:
    path = SHARED / "adapter" / "adapter_model.safetensors"
    adapter({"fsdp": 2}).export(path.parent)
    if rank == 0:
        save_file({name: torch.randn_like(tensor) for name, tensor in load_file(path).items()}, path)
    dist.barrier()
    for sizes in ({"fsdp": 2}, {"tp": 2}, {"pp": 2}, {"dp": 2}):
        folder = SHARED / f"adapter-{'-'.join(sizes)}"
        adapter(sizes, path.parent).export(folder)
        first, second = load_file(path), load_file(folder / path.name)
        assert first.keys() == second.keys()
        assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())
        dist.barrier()


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
    adapters_are_equal_in_all_layouts,
    no_rank_holds_more_than_a_file_and_a_tensor,
)


@pytest.mark.slow
@pytest.mark.parametrize("name", [check.__name__ for check in CHECKS])
def test_in_two_processes(name: str, results: dict[str, str]) -> None:
    assert results[name] == worlds.PASSED
