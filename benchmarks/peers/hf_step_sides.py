"""A rank of `benchmarks/hf_step.py`: the sides, which alternate step by step. torchrun starts it."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.distributed import DistributedConfig

from meshctl.hf import Model
from meshctl.runtime.batch.batch import Batch, Ragged
from meshctl.topology.mesh import DeviceMesh

SHAPE = {
    "vocab_size": 2048,
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "tie_word_embeddings": False,
    "use_cache": False,
}
ROWS, LENGTH, PROMPT = 4, 64, 16
"""The texts of a rank's micro-batch, and the tokens of a text and of its beginning without labels."""
LR, CLIP = 1e-3, 0.5
ADAMW = {"weight_decay": 0.0, "betas": (0.9, 0.999), "eps": 1e-8, "fused": True}
WARMUP = 3
"""The rounds that are not counted."""

Micro = dict[str, Tensor]
"""A micro-batch, as transformers expects it."""
Step = Callable[[list[Micro]], float]
"""One update. It returns the mean loss over the tokens of all ranks."""


def main() -> None:
    wanted = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    folder, layout = Path(wanted["folder"]), wanted["layout"]
    if dist.get_rank() == 0:
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen3", **SHAPE)).save_pretrained(folder)
    dist.barrier()
    sides = {"hf.Model": ours(folder, layout), "by hand": by_hand(folder, layout)}
    data = [
        [micro_batch(number, part, layout) for part in range(wanted["micro_batches"])]
        for number in range(wanted["rounds"] + WARMUP)
    ]
    rounds = with_trainer(folder, sides, data) if layout == "fsdp" else alternated(sides, data)
    if dist.get_rank() == 0:
        (folder / "rounds.json").write_text(json.dumps(rounds))
    dist.destroy_process_group()


def micro_batch(number: int, part: int, layout: str) -> Micro:
    """Returns a micro-batch of this rank. The ranks of a tp group have the same one."""
    rank = dist.get_rank() if layout == "fsdp" else 0
    generator = torch.Generator().manual_seed(1000 * number + 10 * part + rank)
    ids = torch.randint(1, SHAPE["vocab_size"], (ROWS, LENGTH), generator=generator)
    labels = ids.clone()
    labels[:, :PROMPT] = -100
    return {"input_ids": ids, "labels": labels}


def ours(folder: Path, layout: str) -> Step:
    """`hf.Model.update`, with the batch in ragged columns as a pipeline gives it."""
    model = Model(str(folder), lr=LR, optimizer_options=ADAMW, clip=CLIP, micro_batch=ROWS)
    model.use_mesh(DeviceMesh.from_sizes(**{f"{layout}_size": dist.get_world_size()}))
    model.setup()

    def step(batch: list[Micro]) -> float:
        columns = {name: Ragged.of([row for one in batch for row in one[name]]) for name in batch[0]}
        return model.update(Batch(columns))["loss"]

    return step


def sharded(folder: Path, layout: str) -> nn.Module:
    config = DistributedConfig(**{f"{layout}_size": dist.get_world_size()})
    model: nn.Module = AutoModelForCausalLM.from_pretrained(folder, distributed_config=config)
    return model


def by_hand(folder: Path, layout: str) -> Step:
    model = sharded(folder, layout)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(grouped(parameters), lr=LR, **ADAMW)
    ranks = dist.get_world_size() if layout == "fsdp" else 1

    def step(batch: list[Micro]) -> float:
        model.train()
        count = torch.stack([(one["labels"][:, 1:] != -100).sum() for one in batch]).sum().double()
        if ranks > 1:
            dist.all_reduce(count)
        total = torch.zeros((), dtype=torch.float64)
        for one in batch:
            logits = model(input_ids=one["input_ids"]).logits
            labels = nn.functional.pad(one["labels"], (0, 1), value=-100)[:, 1:]
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
            (loss * (ranks / count).float()).backward()
            total += loss.detach()
        clip(parameters)
        optimizer.step()
        optimizer.zero_grad()
        if ranks > 1:
            dist.all_reduce(total)
        return float(total / count)

    return step


def grouped(parameters: list[nn.Parameter]) -> list[dict[str, Any]]:
    """Returns parameter groups. A fused optimizer cannot mix plain tensors and DTensors."""
    sharded = [one for one in parameters if isinstance(one, DTensor)]
    plain = [one for one in parameters if not isinstance(one, DTensor)]
    return [{"params": group} for group in (sharded, plain) if group]


def clip(parameters: list[nn.Parameter]) -> None:
    """Clips the gradients. torch's `clip_grad_norm_` cannot mix plain tensors and DTensors."""
    grads = [one.grad for one in parameters if one.grad is not None]
    norms = [
        torch.nn.utils.get_total_norm(group)
        for group in (
            [one for one in grads if isinstance(one, DTensor)],
            [one for one in grads if not isinstance(one, DTensor)],
        )
        if group
    ]
    whole = [one.full_tensor() if isinstance(one, DTensor) else one for one in norms]
    norm = torch.stack(whole).norm()
    for group in grouped(parameters):
        torch.nn.utils.clip_grads_with_norm_(group["params"], CLIP, norm)


class Rounds:
    """The measurements of a side."""

    def __init__(self, names: list[str]) -> None:
        self.found: dict[str, list[dict[str, float]]] = {name: [] for name in names}

    def add(self, name: str, begin: tuple[float, float], loss: float) -> None:
        """Adds a step that began at `begin`, a result of `now`. The CPU times of all ranks are added."""
        cpu, seconds = (end - one for end, one in zip(now(), begin, strict=True))
        numbers = torch.tensor([cpu, seconds / dist.get_world_size()], dtype=torch.float64)
        dist.all_reduce(numbers)
        cpu, seconds = numbers.tolist()
        self.found[name].append({"cpu": cpu, "time": seconds, "loss": loss})

    def counted(self) -> dict[str, list[dict[str, float]]]:
        return {name: rounds[WARMUP:] for name, rounds in self.found.items()}


def now() -> tuple[float, float]:
    return time.process_time(), time.perf_counter()


def run(sides: dict[str, Step], batch: list[Micro], rounds: Rounds, number: int) -> None:
    """Runs a step of each side. The order changes from round to round."""
    names = list(sides) if number % 2 else list(sides)[::-1]
    for name in names:
        dist.barrier()
        begin = now()
        rounds.add(name, begin, sides[name](batch))


def alternated(sides: dict[str, Step], data: list[list[Micro]]) -> dict[str, list[dict[str, float]]]:
    rounds = Rounds(list(sides))
    for number, batch in enumerate(data):
        run(sides, batch, rounds, number)
    return rounds.counted()


def with_trainer(
    folder: Path, sides: dict[str, Step], data: list[list[Micro]]
) -> dict[str, list[dict[str, float]]]:
    """Runs the loop of `Trainer`, which runs a step of every other side at the end of each of its own."""
    rounds = Rounds([*sides, "Trainer"])
    trainer = MeasuredTrainer(
        model=sharded(folder, "fsdp"),
        args=TrainingArguments(
            output_dir=str(folder / "trainer"),
            use_cpu=True,
            max_steps=len(data),
            per_device_train_batch_size=ROWS,
            gradient_accumulation_steps=len(data[0]),
            learning_rate=LR,
            lr_scheduler_type="constant",
            max_grad_norm=CLIP,
            weight_decay=ADAMW["weight_decay"],
            optim="adamw_torch_fused",
            logging_strategy="no",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            dataloader_pin_memory=False,
        ),
        train_dataset=Rows(data),
    )
    trainer.add_callback(Alternation(trainer, sides, data, rounds))
    trainer.train()
    return rounds.counted()


class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """The texts of all ranks, in the order in which `Trainer` gives them to the ranks."""

    def __init__(self, data: list[list[Micro]]) -> None:
        own = [one for batch in data for one in batch]
        self._rows: list[Micro] = []
        for one in own:
            parts: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(parts, one)
            for part in parts:
                self._rows += [{name: part[name][row] for name in part} for row in range(ROWS)]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Micro:
        return self._rows[index]


class MeasuredTrainer(Trainer):  # type: ignore[misc]
    """`Trainer` with the texts in order. It remembers the losses of the micro-batches of a step."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.losses: list[Tensor] = []

    def _get_train_sampler(self, *_: Any) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset)

    def training_step(self, *arguments: Any, **named: Any) -> Tensor:
        loss: Tensor = super().training_step(*arguments, **named)
        self.losses.append(loss)
        return loss


class Alternation(TrainerCallback):  # type: ignore[misc]
    """Measures a step of `Trainer` from the end of the last one, and then runs the other sides."""

    def __init__(
        self, trainer: MeasuredTrainer, sides: dict[str, Step], data: list[list[Micro]], rounds: Rounds
    ) -> None:
        self._trainer, self._sides, self._data, self._rounds = trainer, sides, data, rounds
        self._begin = now()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        loss = torch.stack(self._trainer.losses).sum().double()
        self._rounds.add("Trainer", self._begin, 0.0)
        dist.all_reduce(loss)
        self._rounds.found["Trainer"][-1]["loss"] = float(loss) / dist.get_world_size()
        self._trainer.losses.clear()
        number = state.global_step - 1
        run(self._sides, self._data[number], self._rounds, number)
        dist.barrier()
        self._begin = now()


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
