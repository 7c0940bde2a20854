"""The advantages of sampled answers, and the sizes of their groups.

An update computes them from the whole share of a data rank, before it cuts micro-batches, because groups are
whole in a share.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from meshctl.hf.errors import ModelError
from meshctl.hf.texts import Texts, aligned, as_column, is_aligned, texts_of
from meshctl.labels import IGNORED
from meshctl.losses import Loss
from meshctl.losses.advantages import Advantage, group_sizes, group_sums
from meshctl.runtime.batch.batch import Batch, Column, Ragged
from meshctl.runtime.batch.ids import shown_ids
from meshctl.runtime.collectives.collective import Collective

OF_GROUPS = ("group_tokens", "group_samples")
ESTIMATES = ("advantages", "returns")
OWN_INPUTS = ("group_index", "mask", "over_ranks", "group_tokens", "group_samples")
"""The inputs of losses and advantages that are computed here and are no columns."""


def with_estimates(batch: Batch, loss: Loss, advantage: Advantage | None, data: Collective) -> Batch:
    """Returns the batch with the columns that `loss` takes from whole groups and that it does not have yet:
    `advantages` and `returns`, by the function `advantage`, and `group_tokens` and `group_samples`.

    All ranks of `data`, which are the data ranks, call this together. Raises `ModelError` for rewards that
    are not finite and for groups of one answer, and `LossError` if a column is missing.
    """
    missing = {name for name in loss.inputs if name not in batch}
    if not missing & {*OF_GROUPS, *ESTIMATES}:
        return batch
    texts = texts_of(batch, "", torch.device("cpu"))
    found: dict[str, Column] = {}
    if missing & {*OF_GROUPS} and (index := group_index(batch)) is not None:
        labels = (texts.targets != IGNORED).sum(1).to(torch.float32)
        found["group_tokens"], found["group_samples"] = group_sums(labels, index), group_sizes(labels, index)
    if missing & {*ESTIMATES} and advantage:
        found |= _estimates(batch, texts, advantage, data)
    return batch.with_columns(**found)


def group_index(batch: Batch) -> Tensor | None:
    """Returns int64 `[samples]`: the number of each sample's group in the batch; None without groups."""
    if not len(batch):
        return torch.zeros(0, dtype=torch.int64)
    groups = batch.group_ids
    if groups is None:
        return None
    _, index = torch.unique(groups, dim=0, return_inverse=True)
    assert isinstance(index, Tensor)
    return index


def _estimates(batch: Batch, texts: Texts, advantage: Advantage, data: Collective) -> dict[str, Column]:
    """Returns the columns `advantages` and `returns`, or the first only, by an advantage function."""
    inputs: dict[str, Any] = {"over_ranks": _sum_over(data)}
    index = group_index(batch)
    if index is not None:
        inputs["group_index"] = index
        if "group_index" in advantage.inputs:
            _check_groups(batch, index, advantage)
    if "rewards" in batch:
        inputs["rewards"] = _rewards(batch, texts)
        inputs["mask"] = (texts.targets != IGNORED).to(inputs["rewards"].dtype)
    for name in advantage.inputs:
        if name in batch and name not in inputs:
            inputs[name] = aligned(batch, name, texts) if is_aligned(batch, name, texts) else batch[name]
    estimates = advantage(inputs)
    named = zip(ESTIMATES, estimates, strict=True)
    return {name: _column(values, texts, advantage) for name, values in named if values is not None}


def _sum_over(data: Collective) -> Callable[[Tensor], Tensor]:
    return lambda tensor: data.all_reduce(tensor.to(data.device)).cpu()


def _rewards(batch: Batch, texts: Texts) -> Tensor:
    """Returns the column `rewards`, `[samples]`, or `[samples, longest - 1]` if it is ragged. Raises
    `ModelError` for rewards that are not finite."""
    column = batch["rewards"]
    rewards = aligned(batch, "rewards", texts) if isinstance(column, Ragged) else column
    if not isinstance(rewards, Tensor):
        raise ModelError("column `rewards` must have one number for each sample, or for each of its tokens")
    rewards = rewards.cpu() if rewards.is_floating_point() else rewards.cpu().to(torch.float32)
    is_finite = rewards.reshape(len(batch), -1).isfinite().all(1)
    if not bool(is_finite.all()):
        raise ModelError(f"the rewards of samples {shown_ids(batch.ids[~is_finite].tolist())} are not finite")
    return rewards


def _check_groups(batch: Batch, index: Tensor, advantage: Advantage) -> None:
    """Raises `ModelError` if all groups were sampled with one answer, whose advantage would always be 0."""
    members = batch.ids[:, batch.group_depth :]
    if len(batch) > 1 and int(index.max()) + 1 == len(batch) and not bool(members.any()):
        raise ModelError(
            f"advantage `{advantage.name}` compares the answers to a prompt, and each prompt of the batch "
            "has one answer; set `group_size` of the sampler to 2 or more"
        )


def _column(values: Tensor, texts: Texts, advantage: Advantage) -> Column:
    samples, tokens = texts.targets.shape
    if values.shape == (samples,):
        return values
    if values.shape == (samples, tokens):
        return as_column(values, texts)
    raise ModelError(
        f"advantage `{advantage.name}` returned the shape {list(values.shape)}; it must return [{samples}] "
        f"(samples) or [{samples}, {tokens}] (samples, tokens)"
    )
