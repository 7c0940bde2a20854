"""Facts about the classes of this room that `validate` checks. It imports no library."""

from __future__ import annotations

from meshctl.argument_limits import Shipped

MODEL = Shipped(
    ranges={
        "lora.r": ">= 1",
        "lora.dropout": ">= 0, < 1",
        "temperature": "> 0",
        "num_labels": ">= 2",
        "top_logprobs": ">= 1",
        "lr": "> 0, <= 1e6",
        "optimizer_options.betas": ">= 0, < 1",
        "optimizer_options.eps": ">= 0",
        "optimizer_options.momentum": ">= 0",
        "optimizer_options.weight_decay": ">= 0",
        "schedule.warmup": ">= 0",
        "schedule.steps": ">= 1, whole",
        "clip": ">= 0",
        "micro_batch": ">= 1",
        "micro_batch_tokens": ">= 1",
        "logits_chunk_tokens": ">= 1",
        "loss_options.clip": ">= 0",
        "loss_options.clip_high": ">= 0",
        "loss_options.importance_cap": "> 0",
        "loss_options.max_tokens": "> 0",
    },
    excludes={
        "micro_batch": ("micro_batch_tokens",),
        "lora": ("freeze", "train", "tokens"),
        "share_prompts": ("logits_chunk_tokens", "activation_checkpointing", "compile"),
    },
    calls={"schedule.warmup": ("update",), "schedule.steps": ("update",)},
    covers=("schedule.steps",),
    choices={
        "lora": "meshctl.hf.peft_api.KEYS",
        "head": "meshctl.hf.transformers_api.HEADS",
        "dtype": "meshctl.hf.options.DTYPES",
        "parity": "meshctl.hf.parity.MODES",
        "pipeline": "meshctl.hf.pipeline.SCHEDULES",
        "loss": "meshctl.losses.loss.LOSSES",
        "advantage": "meshctl.losses.advantages.ADVANTAGES",
        "optimizer": "torch.optim",
        "schedule": "meshctl.hf.training.SCHEDULE_KEYS",
        "schedule.name": "transformers.trainer_utils.SchedulerType",
    },
    has_tokenizer=True,
    trained_by=("update",),
    learns=True,
)
SAMPLER = Shipped(
    ranges={
        "max_new_tokens": ">= 1",
        "group_size": ">= 1",
        "temperature": ">= 0",
        "top_p": "> 0, <= 1",
        "top_k": ">= 0",
        "stop": ">= 0, nonempty",
        "batch_size": ">= 1",
        "max_batch_tokens": ">= 1",
    },
    has_tokenizer=True,
    has_models_tokenizer=True,
    choices={"dtype": "meshctl.hf.options.DTYPES", "lora": "meshctl.hf.peft_api.KEYS"},
    trained_by=(),
    samples=True,
)
SHIPPED = {"Model": MODEL, "Sampler": SAMPLER}
