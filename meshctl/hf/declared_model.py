"""The facts about `hf.Model` that `validate` reads as text: `meshctl/recipe/code/declarations.py` describes
each of them."""

from __future__ import annotations

from typing import ClassVar

from meshctl.hf.stored_model import StoredModel


class DeclaredModel(StoredModel):
    """The declarations of `Model`."""

    EXTRA = "hf"
    MODEL: ClassVar = ("args.model", "args.config")
    LAYOUTS: ClassVar = {
        "dims": ("pp", "dp", "fsdp", "cp", "tp", "ulysses", "ep", "vpp"),
        "excludes": (("pp", "cp"), ("pp", "ulysses"), ("pp", "ep")),
        "tp_plan": "transformers",
        "lora_styles": "meshctl.hf.peft_api.STYLES",
        "tied_shards": "equal",
        "attention": "transformers",
        "experts": "transformers",
        "ulysses": "heads",
        "pp_plan": "transformers",
        "split": "args.split",
        "cache": "args.share_prompts",
        "without": {
            "args.attention": ("cp", "ulysses"),
            "args.config.output_router_logits": ("pp",),
            "args.compile": ("pp", "cp", "ulysses"),
            "args.share_prompts": ("pp", "cp", "ulysses", "sequence_parallel"),
        },
    }
    CHOICES: ClassVar = {
        "args.lora": "meshctl.hf.peft_api.KEYS",
        "args.head": "meshctl.hf.transformers_api.HEADS",
        "args.dtype": "meshctl.hf.dtypes.DTYPES",
        "args.parity": "meshctl.hf.parity.MODES",
        "args.pipeline": "meshctl.hf.pipeline.schedules.SCHEDULES",
        "args.loss": "meshctl.losses.loss.LOSSES",
        "args.advantage": "meshctl.losses.advantages.ADVANTAGES",
        "args.optimizer": "torch.optim",
        "args.schedule.name": "transformers.trainer_utils.SchedulerType",
    }
    MEMORY: ClassVar = {
        "dtype": "args.dtype",
        "compute_dtype": "args.compute_dtype",
        "optimizer": "args.optimizer",
        "optimizer_options": "args.optimizer_options",
        "lora": "args.lora",
        "head": "args.head",
        "trained_by": ("update",),
    }
    RANGES: ClassVar = {
        "args.lora.r": ">= 1",
        "args.lora.dropout": ">= 0, < 1",
        "args.temperature": "> 0",
        "args.top_logprobs": ">= 1",
        "args.lr": "> 0, <= 1e6",
        "args.optimizer_options.betas": ">= 0, < 1",
        "args.optimizer_options.eps": ">= 0",
        "args.optimizer_options.momentum": ">= 0",
        "args.optimizer_options.weight_decay": ">= 0",
        "args.schedule.warmup": ">= 0, whole",
        "args.schedule.steps": ">= 1, whole",
        "args.clip": ">= 0",
        "args.micro_batch": ">= 1",
        "args.micro_batch_tokens": ">= 1",
        "args.logits_chunk_tokens": ">= 1",
        "args.loss_options.clip": ">= 0",
        "args.loss_options.clip_high": ">= 0",
        "args.loss_options.importance_cap": "> 0",
        "args.loss_options.max_tokens": "> 0",
    }
    CALLS: ClassVar = {"args.schedule.warmup": ("update",), "args.schedule.steps": ("update", "all")}
    EXCLUDES: ClassVar = {
        "args.micro_batch": ("args.micro_batch_tokens",),
        "args.share_prompts": ("args.logits_chunk_tokens", "args.activation_checkpointing", "args.compile"),
    }
