"""A model of the hub is downloaded once, before any worker starts; a cached one needs no network."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoModelForCausalLM

from meshctl.hf import ModelError
from meshctl.hf.building import Build, build
from meshctl.package import SHIPPED_TOKENIZERS
from tests.engines.node.hub_server import HubServer, serving

pytestmark = pytest.mark.slow

RECIPE = """
name: hub
groups: {train: {ranks: 2, device_type: cpu}}
components:
  chats: {_target_: meshctl.data.Chat, group: train, args: {path: chats.jsonl, tokenizer: some/tiny}}
  actor: {_target_: meshctl.hf.Model, group: train, parallel: {fsdp_size: 2}, args: {model: some/tiny}}
pipeline:
  batch: {call: chats.next, samples: 2}
  metrics: {call: actor.update, in: batch}
run: {steps: 1}
"""
CHAT = {"messages": [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "ba"}]}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a small model and its tokenizer."""
    folder = tmp_path_factory.mktemp("tiny")
    sizes = {"vocab_size": 260, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    config = AutoConfig.for_model("llama", num_attention_heads=2, num_key_value_heads=2, **sizes)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    paths = [*folder.iterdir(), *SHIPPED_TOKENIZERS["byte"].iterdir()]
    return {path.name: path.read_bytes() for path in paths}


def start(folder: Path, hub: HubServer, **environ: str) -> subprocess.Popen[str]:
    (folder / "recipe.yaml").write_text(RECIPE)
    (folder / "chats.jsonl").write_text((json.dumps(CHAT) + "\n") * 2)
    return subprocess.Popen(
        [sys.executable, "-m", "meshctl", "launch", "recipe.yaml"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "HF_HOME": str(folder / "home"), "HF_ENDPOINT": hub.url, **environ},
    )


def test_a_model_is_downloaded_once_and_then_needs_no_network(
    tmp_path: Path, model: dict[str, bytes]
) -> None:
    with serving({"some/tiny": model}) as hub:
        refused = start(tmp_path, hub, HF_HUB_OFFLINE="1")
        _, errors = refused.communicate(timeout=60)
        assert refused.returncode == 4 and "HF_HUB_OFFLINE" in errors and not (tmp_path / "runs").exists()
        first = start(tmp_path, hub)
        output, errors = first.communicate(timeout=120)
        assert first.returncode == 0, errors
        assert "downloading some/tiny: begins" in output
        assert hub.downloads("model.safetensors") == hub.downloads("tokenizer.json") == 1
        requests = len(hub.requests)
        second = start(tmp_path, hub)
        output, errors = second.communicate(timeout=120)
        assert second.returncode == 0 and "downloading" not in output, errors
        assert len(hub.requests) == requests


def test_a_failed_download_starts_no_worker(tmp_path: Path) -> None:
    with serving({}) as hub:
        launch = start(tmp_path, hub)
        _, errors = launch.communicate(timeout=60)
    assert launch.returncode == 4
    [error] = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert "`some/tiny` of `actor` is not in the cache" in error and "Traceback" not in errors
    assert not list(tmp_path.glob("runs/hub/*/events/train-*"))


def test_a_signal_ends_a_download(tmp_path: Path, model: dict[str, bytes]) -> None:
    with serving({"some/tiny": model}) as hub:
        hub.may_send.clear()
        launch = start(tmp_path, hub)
        while not hub.downloads("model.safetensors"):
            assert launch.poll() is None
            time.sleep(0.01)
        launch.send_signal(signal.SIGINT)
        launch.communicate(timeout=30)
    assert launch.returncode == 130


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
