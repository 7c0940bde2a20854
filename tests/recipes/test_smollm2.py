"""SmolLM2-135M learns to reverse words on two ranks, and its export answers in plain transformers. `make smollm2`
makes the model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from meshctl.data.rows import Permutation
from tests.paths import RECIPES

MODEL = RECIPES / "smollm2"
CHATS = RECIPES / "reversed" / "chats.jsonl"
HELD_OUT, ASKED = 40, 8

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not (MODEL / "config.json").exists(), reason="make smollm2"),
]


def held_out() -> list[list[dict[str, str]]]:
    rows = [json.loads(line)["messages"] for line in CHATS.read_text().splitlines()]
    return [rows[number] for number in sorted(Permutation(len(rows), "holdout")[:HELD_OUT])]


def loss_of(folder: Path) -> float:
    """Returns the mean loss of the words of the first held-out answers, computed by plain transformers."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(MODEL)
    total, count = 0.0, 0
    for chat in held_out()[:ASKED]:
        prompt = tokenizer.apply_chat_template(chat[:1], tokenize=False, add_generation_prompt=True)
        whole = tokenizer.apply_chat_template(chat, tokenize=False)
        start = len(tokenizer(prompt, add_special_tokens=False)["input_ids"])
        ids = torch.tensor([tokenizer(whole, add_special_tokens=False)["input_ids"]])
        with torch.no_grad():
            logs = model(input_ids=ids).logits[0, start - 1 : -1].log_softmax(-1)
        total -= float(logs.gather(-1, ids[0, start:, None]).sum())
        count += len(ids[0]) - start
    return total / count


def trained(folder: Path, recipe: str, *overrides: str) -> Path:
    """Trains the model and returns the run directory."""
    command = [sys.executable, "-m", "meshctl", "launch", str(RECIPES / recipe), "model=smollm2", *overrides]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    [run] = (folder / "runs").glob("*/*")
    return run


def test_ten_steps_of_an_adapter(tmp_path: Path) -> None:
    run = trained(tmp_path, "sft_lora.yaml")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert rows[9]["eval.exam.loss"] < rows[4]["eval.exam.loss"]
    exported = run / "exports" / "step-10"
    assert loss_of(exported) < loss_of(MODEL) / 2
    model, tokenizer = AutoModelForCausalLM.from_pretrained(exported), AutoTokenizer.from_pretrained(MODEL)
    [asked, expected] = held_out()[0]
    prompt = tokenizer.apply_chat_template(
        [asked], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    answer = model.generate(**prompt, max_new_tokens=24, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    words = tokenizer.decode(answer, skip_special_tokens=True).split()
    assert set(words) & set(expected["content"].split())


def test_five_steps_of_all_weights(tmp_path: Path) -> None:
    more = ("components.trainer.args.lr=5e-5", "run.steps=5", "run.checkpoint=null")
    run = trained(tmp_path, "sft.yaml", *more)
    assert loss_of(run / "exports" / "step-5") < loss_of(MODEL) / 2
