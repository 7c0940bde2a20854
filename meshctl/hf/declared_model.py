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
