"""Models and datasets of the hub are downloaded once, before any worker starts; cached ones need no network."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from safetensors.torch import load, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from meshctl.hf import ModelError
from meshctl.hf.building import Build, build
from meshctl.hf.peft_api import Lora
from meshctl.package import SHIPPED_TOKENIZERS
from tests.command_server import Started, call
from tests.engines.node.hub_server import HubServer, serving

pytestmark = pytest.mark.slow

RECIPE = """
name: hub
groups: {train: {ranks: 1, device_type: cpu}}
components:
  chats: {_target_: meshctl.data.Chat, group: train, args: {path: some/chats, tokenizer: some/tiny}}
  actor: {_target_: meshctl.hf.Model, group: train, args: {model: some/tiny}}
pipeline:
  batch: {call: chats.next, samples: 2}
  metrics: {call: actor.update, in: batch}
run: {steps: 1}
"""
CHAT = {"messages": [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "ba"}]}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return small_model(tmp_path_factory.mktemp("tiny"))


def small_model(folder: Path) -> dict[str, bytes]:
    """Returns the files of a small model and its tokenizer."""
    sizes = {"vocab_size": 260, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    config = AutoConfig.for_model("llama", num_attention_heads=2, num_key_value_heads=2, **sizes)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    paths = [*folder.iterdir(), *SHIPPED_TOKENIZERS["byte"].iterdir()]
    return {path.name: path.read_bytes() for path in paths}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    (tmp_path / "chats.jsonl").write_text((json.dumps(CHAT) + "\n") * 2)
    return tmp_path


def environ(folder: Path, hub: HubServer) -> dict[str, str]:
    return {"HF_HOME": str(folder / "home"), "HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0"}


def test_a_download_happens_once_and_then_needs_no_network(
    folder: Path, model: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    chats = (folder / "chats.jsonl").read_bytes()
    with serving({"some/tiny": model, "datasets/some/chats": {"train.jsonl": chats}}) as hub:
        done = call(folder, "launch", "recipe.yaml", env=environ(folder, hub))
        assert done.returncode == 0, done.stderr
        assert "downloading some/tiny: begins" in done.stdout
        assert "downloading some/chats: begins" in done.stdout
        assert hub.downloads("model.safetensors") == hub.downloads("tokenizer.json") == 1
        assert hub.downloads("train.jsonl") == 1
        for name, value in environ(folder, hub).items():
            monkeypatch.setenv(name, value)
        requests = len(hub.requests)
        build(Build("some/tiny"))
        assert len(hub.requests) == requests


def test_a_signal_ends_a_download(folder: Path, model: dict[str, bytes]) -> None:
    with serving({"some/tiny": model, "datasets/some/chats": {}}) as hub:
        hub.may_send.clear()
        running = Started(folder, "launch", "recipe.yaml", **environ(folder, hub))
        running.until("downloading some/tiny: begins")
        os.kill(running.pid, signal.SIGINT)
        code, output = running.end()
    assert code == 130, output


def test_a_model_that_cannot_be_loaded_is_one_line(tmp_path: Path, model: dict[str, bytes]) -> None:
    for file, body in model.items():
        (tmp_path / file).write_bytes(body)
    other_shapes = Build(str(tmp_path), config={"hidden_size": 64})
    with pytest.raises(ModelError, match=r"cannot be loaded: its weights have other shapes than its config$"):
        build(other_shapes)
    (tmp_path / "model.safetensors").write_bytes(model["model.safetensors"][:-1000])
    with pytest.raises(ModelError, match="cannot be loaded: Error while deserializing header") as cut:
        build(Build(str(tmp_path)))
    assert "\n" not in str(cut.value)


def test_a_weight_that_the_files_lack_is_named(tmp_path: Path, model: dict[str, bytes]) -> None:
    for file, body in model.items():
        (tmp_path / file).write_bytes(body)
    stored = load(model["model.safetensors"])
    lacking = {
        name: tensor for name, tensor in stored.items() if "q_proj" not in name and "lm_head" not in name
    }
    save_file(lacking, tmp_path / "model.safetensors", metadata={"format": "pt"})
    message = "its files lack `lm_head.weight` and 1 further weight of the model$"
    with pytest.raises(ModelError, match=message):
        build(Build(str(tmp_path)))
    with pytest.raises(ModelError, match=r"its files lack `model\.layers\.0\.self_attn\.q_proj\.weight`$"):
        build(Build(str(tmp_path), "score", lora=Lora(r=2)))
