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


# Losses of sampled answers

ANSWERS, CAP = 6, 2.0


def answers() -> dict[str, Tensor]:
    """Returns padded tensors of answers, `[samples, tokens]`, and their advantages, `[samples]`."""
    draw = torch.Generator().manual_seed(4)
    lengths = torch.randint(1, TOKENS + 1, (ANSWERS,), generator=draw)
    found: dict[str, Tensor] = {"mask": (torch.arange(TOKENS) < lengths[:, None]).long()}
    own = -3 * torch.rand(ANSWERS, TOKENS, generator=draw, dtype=torch.float64)
    for name in ("logprobs", "old_logprobs", "sampled_logprobs", "ref_logprobs"):
        found[name] = own + torch.rand(ANSWERS, TOKENS, generator=draw, dtype=torch.float64) - 0.5
    found["advantages"] = torch.randn(ANSWERS, generator=draw, dtype=torch.float64)
    return found


def flat(found: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns the inputs of a loss."""
    inputs = {name: one.flatten() for name, one in found.items() if name not in ("mask", "advantages")}
    inputs["mask"] = found["mask"].double().flatten()
    inputs["advantages"] = found["advantages"].repeat_interleave(TOKENS)
    inputs["sample_index"] = torch.arange(ANSWERS).repeat_interleave(TOKENS)
    return inputs | {"sequence_tokens": found["mask"].sum(1)}


def loss_of_trl(found: dict[str, Tensor], loss_type: str, level: str, epsilon: tuple[float, float]) -> Tensor:
    from trl import GRPOTrainer

    def logprobs(*_: Any, **__: Any) -> tuple[Tensor, Tensor, None]:
        return found["logprobs"], torch.zeros_like(found["logprobs"]), None

    trainer: Any = SimpleNamespace(
        **{
            "loss_type": loss_type,
            "importance_sampling_level": level,
            "beta": 0.3,
            "aux_loss_enabled": False,
        },
        **{"epsilon_low": epsilon[0], "epsilon_high": epsilon[1], "off_policy_mask_threshold": None},
        **{"top_entropy_quantile": 1.0, "use_vllm": True, "vllm_importance_sampling_correction": True},
        **{"max_completion_length": TOKENS, "current_gradient_accumulation_steps": 1},
        **{"_entropy_bonus_enabled": False, "_metrics": {"train": defaultdict(list)}},
        model=SimpleNamespace(training=True),
        args=SimpleNamespace(delta=None, use_bias_correction_kl=False, steps_per_generation=1),
        accelerator=MagicMock(num_processes=1, gather=lambda one: one, reduce=lambda one, reduction: one),
        _get_per_token_logps_and_entropies=logprobs,
    )
    correction = (found["old_logprobs"] - found["sampled_logprobs"]).exp().clamp(max=CAP)
    nothing = torch.zeros(ANSWERS, 0, dtype=torch.int64)
    inputs = {"prompt_ids": nothing, "prompt_mask": nothing, "completion_ids": found["mask"]}
    inputs |= {"completion_mask": found["mask"], "advantages": found["advantages"]}
    inputs |= {"old_per_token_logps": found["old_logprobs"], "ref_per_token_logps": found["ref_logprobs"]}
    inputs |= {"importance_sampling_ratio": correction, "num_items_in_batch": found["mask"].sum()}
    found_loss = GRPOTrainer._compute_loss(trainer, None, inputs)
    assert isinstance(found_loss, Tensor)
    return found_loss


@pytest.mark.parametrize(
    ("name", "loss_type", "level", "epsilon", "options"),
    [
        ("grpo", "grpo", "token", (0.2, 0.2), {}),
        ("dr_grpo", "dr_grpo", "token", (0.2, 0.2), {"max_tokens": TOKENS}),
        ("dapo", "dapo", "token", (0.2, 0.28), {}),
        ("gspo", "grpo", "sequence", (3e-4, 4e-4), {}),
        ("cispo", "cispo", "token", (0.2, 1.2), {"max_ratio": 1.2}),
    ],
)
def test_losses_of_answers_and_their_gradients(
    name: str, loss_type: str, level: str, epsilon: tuple[float, float], options: dict[str, Any]
) -> None:
    found = answers()
    found["logprobs"].requires_grad_()
    theirs = loss_of_trl(found, loss_type, level, epsilon)
    result = find(name, kl=0.3, importance_cap=CAP, **options)(flat(found))
    ours = result.total / result.count
    torch.testing.assert_close(ours, theirs)
    gradients = [torch.autograd.grad(one, found["logprobs"], retain_graph=True)[0] for one in (ours, theirs)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(
    ("divergence", "beta", "of_trl"), [("forward_kl", 0.5, 0.0), ("reverse_kl", 0.5, 1.0), ("jsd", 0.3, 0.3)]
)
def test_distillation(divergence: str, beta: float, of_trl: float) -> None:
    from trl.experimental.gkd import GKDTrainer

    draw = torch.Generator().manual_seed(5)
    student, teacher = torch.randn(2, 3, 4, 11, generator=draw, dtype=torch.float64)
    theirs = GKDTrainer.generalized_jsd_loss(student, teacher, beta=of_trl)
    inputs = {"mask": torch.ones(12).double(), "sample_index": torch.arange(3).repeat_interleave(4)}
    inputs |= {"sequence_tokens": torch.full((3,), 4), "top_logprobs": student.log_softmax(-1).flatten(0, 1)}
    inputs["teacher_top_logprobs"] = teacher.log_softmax(-1).flatten(0, 1)
    result = find("distill", divergence=divergence, beta=beta, tail=False)(inputs)
    torch.testing.assert_close(result.total / 3, theirs)  # theirs is divided by the number of answers
