"""Losses against those of TRL 1.16, where it is installed: `pip install --no-deps trl==1.16.0`. Its losses are methods of trainers,
which are called here without a trainer."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor

pytest.importorskip("trl")

from meshctl.losses import find
from meshctl.losses.logprobs import token_logprobs

PAIRS, TOKENS = 6, 9


def made() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Returns the inputs of meshctl's losses, and the per-token tensors of which they are sums."""
    generator = torch.Generator().manual_seed(2)
    mask = torch.rand(2 * PAIRS, TOKENS, generator=generator) < 0.7
    mask[:, -1] = True
    logprobs = -3 * torch.rand(2 * PAIRS, TOKENS, generator=generator) * mask
    reference = -9 * torch.rand(2 * PAIRS, generator=generator)
    inputs = {}
    for side, rows in (("chosen", slice(0, PAIRS)), ("rejected", slice(PAIRS, None))):
        inputs |= {f"{side}_logprobs": logprobs[rows].sum(1), f"{side}_tokens": mask[rows].sum(1)}
        inputs[f"ref_{side}_logprobs"] = reference[rows]
    return inputs, {"mask": mask, "logprobs": logprobs}


@pytest.mark.parametrize(("name", "loss_type"), [("dpo", "sigmoid"), ("ipo", "ipo")])
def test_losses_with_a_reference(name: str, loss_type: str) -> None:
    from trl import DPOTrainer

    inputs, tokens = made()
    outputs: Any = SimpleNamespace(
        log_probs=tokens["logprobs"],
        entropy=tokens["logprobs"],
        mean_logits=tokens["logprobs"],
        is_top1=tokens["mask"],
    )
    trainer = SimpleNamespace(
        **{"beta": 0.3, "loss_types": [loss_type], "loss_weights": [1.0], "f_divergence_type": "reverse_kl"},
        **{"aux_loss_enabled": False, "ld_alpha": None, "precompute_ref_logps": True, "use_weighting": False},
        **{"_metrics": {"train": defaultdict(list)}, "_total_train_tokens": 0, "_tp_size": 1},
        model=SimpleNamespace(training=True),
        accelerator=MagicMock(gather_for_metrics=lambda value: value, gather=lambda value: value),
    )
    mask = torch.cat([torch.zeros(2 * PAIRS, 1, dtype=torch.bool), tokens["mask"]], 1).long()
    given = {"completion_mask": mask, "input_ids": mask, "attention_mask": mask}
    given |= {f"ref_{side}_logps": inputs[f"ref_{side}_logprobs"] for side in ("chosen", "rejected")}
    theirs = DPOTrainer._compute_loss(trainer, lambda **_: outputs, given, False)
    ours = find(name, beta=0.3)(inputs)
    torch.testing.assert_close(ours.total / ours.count, theirs)


def test_simpo() -> None:
    from trl.experimental.cpo import CPOTrainer

    inputs, _ = made()
    chosen, rejected = (
        inputs[f"{side}_logprobs"] / inputs[f"{side}_tokens"] for side in ("chosen", "rejected")
    )
    trainer = SimpleNamespace(alpha=0.0, beta=2.5, simpo_gamma=0.5, label_smoothing=0, loss_type="simpo")
    trainer.accelerator = SimpleNamespace(device="cpu")
    losses, _, _ = CPOTrainer.cpo_loss(trainer, chosen, rejected)
    torch.testing.assert_close(find("simpo", beta=2.5, gamma=0.5)(inputs).total, losses.sum())


def test_the_odds_ratio_of_orpo() -> None:
    from trl.experimental.orpo import ORPOTrainer

    inputs, _ = made()
    chosen, rejected = (
        inputs[f"{side}_logprobs"] / inputs[f"{side}_tokens"] for side in ("chosen", "rejected")
    )
    trainer = SimpleNamespace(beta=0.4, accelerator=SimpleNamespace(device="cpu"))
    ratios, *_ = ORPOTrainer.odds_ratio_loss(trainer, chosen, rejected)
    torch.testing.assert_close(find("orpo", beta=0.4)(inputs).total, (-chosen - ratios).sum())


def test_log_probabilities() -> None:
    from trl.trainer.utils import selective_log_softmax

    logits = torch.randn(3, 4, 50, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(12).view(3, 4)
    torch.testing.assert_close(token_logprobs(logits, labels), selective_log_softmax(logits, labels))
