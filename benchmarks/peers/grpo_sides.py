"""The process of `benchmarks/grpo_end_to_end.py`: both sides, which alternate step by step."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from benchmarks.peers.grpo_setup import (
    CLIP,
    GROUP,
    LR,
    MODEL,
    PROMPTS,
    ROWS,
    SHAPE,
    TOKENS,
    WARMUP,
    arguments,
    letters,
)
from meshctl.data import Prompts
from meshctl.hf import Model, Sampler
from meshctl.package import SHIPPED_TOKENIZERS
from meshctl.rewards import Function


def rewards_of_trl(completions: list[str], **_: Any) -> list[float]:
    return [letters(one) for one in completions]


class Rounds:
    """The measurements of both sides."""

    def __init__(self) -> None:
        self.found: dict[str, list[dict[str, float]]] = {"meshctl": [], "TRL": []}

    def add(self, name: str, begin: tuple[float, float], reward: float) -> None:
        cpu, seconds = (end - one for end, one in zip(now(), begin, strict=True))
        self.found[name].append({"cpu": cpu, "time": seconds, "reward": reward})


def now() -> tuple[float, float]:
    return time.process_time(), time.perf_counter()


def main() -> None:
    wanted = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    folder, steps = Path(wanted["folder"]), wanted["rounds"] + WARMUP
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen3", **SHAPE))
    model.save_pretrained(folder / MODEL)
    rows = [{"prompt": f"Write the word number {number}: "} for number in range(PROMPTS * steps)]
    (folder / ROWS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    rounds = Rounds()
    trainer = trl_side(folder, model, rows, steps)
    trainer.add_callback(Alternation(trainer, meshctl_side(folder), rounds))
    trainer.train()
    counted = {name: found[WARMUP:] for name, found in rounds.found.items()}
    (folder / "rounds.json").write_text(json.dumps(counted))


def meshctl_side(folder: Path) -> Callable[[int], float]:
    """Returns a function that runs a step of the components of a recipe, and returns the mean reward."""
    given = arguments(folder)
    prompts, sampler = Prompts(**given["prompts"]), Sampler(**given["sampler"])
    judge, actor = Function(**given["judge"]), Model(**given["actor"])
    for one in (sampler, judge, actor):
        one.setup()

    def step(number: int) -> float:
        batch = prompts.next(range(number * PROMPTS, (number + 1) * PROMPTS))
        assert batch is not None
        scored = judge.score(sampler.sample(batch))
        actor.update(scored)
        sampler.load_weights(actor.weights())
        return float(scored["rewards"].mean())

    return step


def trl_side(folder: Path, model: Any, rows: list[dict[str, str]], steps: int) -> GRPOTrainer:
    config = GRPOConfig(
        output_dir=str(folder / "trl"),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        max_steps=steps,
        per_device_train_batch_size=PROMPTS * GROUP,
        num_generations=GROUP,
        max_completion_length=TOKENS,
        loss_type="grpo",
        learning_rate=LR,
        lr_scheduler_type="constant",
        max_grad_norm=CLIP,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        shuffle_dataset=False,
        dataloader_pin_memory=False,
    )
    return GRPOTrainer(
        model=model,
        reward_funcs=rewards_of_trl,
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(SHIPPED_TOKENIZERS["byte"]),
    )


class Alternation(TrainerCallback):  # type: ignore[misc]
    """Measures a step of TRL from the end of the last one, and then runs a step of meshctl."""

    def __init__(self, trainer: GRPOTrainer, step: Callable[[int], float], rounds: Rounds) -> None:
        self._trainer, self._step, self._rounds = trainer, step, rounds
        self._begin = now()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._rounds.add("TRL", self._begin, self._trainer._metrics["train"]["reward"][-1])
        begin = now()
        self._rounds.add("meshctl", begin, self._step(state.global_step - 1))
        self._begin = now()


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
