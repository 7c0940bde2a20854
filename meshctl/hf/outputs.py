"""The outputs of a model for the texts of a batch, as inputs of a loss and as the columns that endpoints
return, and the inputs that follow from whole groups of samples. The names are those of `meshctl.losses`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from meshctl.hf.options import ModelError
from meshctl.hf.texts import Texts, aligned, as_column, is_aligned, texts_of
from meshctl.labels import IGNORED
from meshctl.losses import Loss
from meshctl.losses.advantages import Advantage, group_sizes, group_sums
from meshctl.losses.loss import token_logprobs
from meshctl.runtime.batch.batch import Batch, Column, Ragged
from meshctl.runtime.batch.ids import shown_ids
from meshctl.runtime.collectives.collective import Collective
from meshctl.sampling.answers import EPISODE

REF = "ref_"
SIDES = ("chosen_", "rejected_")
INPUTS = {
    "logprobs": (0, "logprobs"),
    "mask": (0, "mask"),
    "entropy": (0, "entropy"),
    "nothing": (0, "nothing"),
    "sample_index": (0, "sample_index"),
    "sequence_logprobs": (0, "sequence_logprobs"),
    "sequence_tokens": (0, "sequence_tokens"),
    "predicted_values": (0, "predicted_values"),
    "scores": (0, "scores"),
    "class_logprobs": (0, "class_logprobs"),
    "chosen_logprobs": (0, "sequence_logprobs"),
    "chosen_tokens": (0, "sequence_tokens"),
    "chosen_scores": (0, "scores"),
    "rejected_logprobs": (1, "sequence_logprobs"),
    "rejected_tokens": (1, "sequence_tokens"),
    "rejected_scores": (1, "scores"),
}
"""Input of a loss -> the index of the side in `SIDES` (0 without sides), and the output of that side."""
HEAD_OF = {
    "logprobs": "lm",
    "entropy": "lm",
    "sequence_logprobs": "lm",
    "top_logprobs": "lm",
    "chosen_logprobs": "lm",
    "rejected_logprobs": "lm",
    "predicted_values": "score",
    "scores": "score",
    "chosen_scores": "score",
    "rejected_scores": "score",
    "class_logprobs": "classify",
}
"""Input of a loss -> the head of the models that compute it, if only one head does."""
LABEL = "label"
"""The column with the label of each text, a number or a name."""
PACKED = "a loss of whole texts needs one text in each row; these are packed"


class Outputs:
    """The outputs of a model for texts. Each output is computed when it is first used."""

    def __init__(self, raw: Tensor, texts: Texts, temperature: float = 1.0, head: str = "lm") -> None:
        """`raw` is `[rows, longest, vocabulary]` logits, which `temperature` divides, with the head `score`
        `[rows, longest]` scores, and with `classify` `[rows, longest, labels]` logits."""
        self._raw, self.texts, self._temperature = raw[: texts.samples], texts, temperature
        self._head = head

    def rows(self, kept: slice) -> Outputs:
        """Returns the outputs for the rows in the slice `kept`."""
        return type(self)(self._raw[kept], self.texts.rows(kept), self._temperature, self._head)

    def _check_head(self, head: str, what: str) -> None:
        if self._head != head:
            raise ModelError(f"{what} need a model with `head: {head}`; this one has `head: {self._head}`")

    @property
    def nothing(self) -> Tensor:
        """0-dim: the value 0 as a part of the autograd graph. A loss that does not depend on the model adds
        it, so that the backward pass can run. Its gradient has the size of all logits."""
        return self._raw[:0].sum()

    def of_raw(self, of_targets: Tensor, fill: int) -> Tensor:
        """Returns, for each position of the raw output, the value of its target; `fill` for the last position
        of a text, which predicts none. `of_targets` is `[samples, longest - 1, ...]`."""
        # A value for the last position is cheaper than a copy of the raw output of all others.
        return nn.functional.pad(of_targets, (*[0] * 2 * (of_targets.ndim - 2), 0, 1), value=fill)

    def of_targets(self, of_raw: Tensor) -> Tensor:
        """Returns `[samples, longest - 1, ...]`: the value for each target. `of_raw` has a value for each
        position of the raw output."""
        return of_raw[:, :-1]

    @cached_property
    def token_logprobs(self) -> Tensor:
        """`[samples, longest - 1]`: the log-probability of each target; 0 where the label is -100. Raises
        `ModelError` for a model with another head than `lm`."""
        self._check_head("lm", "log-probabilities")
        labels = self.of_raw(self.texts.targets, IGNORED)
        return self.of_targets(token_logprobs(self._raw, labels, self._temperature))

    @property
    def logprobs(self) -> Tensor:
        """`[tokens]`: the log-probability of each target. Targets in the padding are included, and `mask` is
        0 there."""
        return self.token_logprobs.flatten()

    @property
    def mask(self) -> Tensor:
        """`[tokens]`: 1 where a token has a label, and 0 where its label is -100."""
        dtype = torch.float64 if self._raw.dtype == torch.float64 else torch.float32
        return (self.texts.targets != IGNORED).to(dtype).flatten()

    @property
    def sample_index(self) -> Tensor:
        """int64 `[tokens]`: the row of each target. Raises `ModelError` for packed texts."""
        if self.texts.position_ids is not None:
            raise ModelError(PACKED)
        rows = torch.arange(self.texts.samples, device=self._raw.device)
        return rows.repeat_interleave(self.texts.targets.shape[1])

    @property
    def entropy(self) -> Tensor:
        """`[tokens]`: the entropy of each prediction, in nats."""
        logs = self._log_softmax()
        return self.of_targets(-(logs.exp() * logs).sum(-1)).flatten()

    def _log_softmax(self) -> Tensor:
        """Returns the log-probabilities of all tokens, for each position of the raw output. Raises
        `ModelError` for a model with another head than `lm`."""
        self._check_head("lm", "log-probabilities")
        logits = self._raw if self._raw.dtype == torch.float64 else self._raw.float()
        logits = logits if self._temperature == 1 else logits / self._temperature
        return logits.log_softmax(-1)

    def top_logprobs(self, ids: Tensor) -> Tensor:
        """Returns `[tokens, k]`: the log-probabilities of the tokens `ids` in the place of each target. `ids`
        are integers, `[samples, longest - 1, k]`."""
        found = self._log_softmax().gather(-1, self.of_raw(ids.long(), 0))
        return self.of_targets(found).flatten(0, 1)

    def likeliest(self, number: int) -> tuple[Tensor, Tensor]:
        """Returns two tensors, `[samples, longest - 1, number]`: the likeliest tokens in the place of each
        target, and their log-probabilities."""
        found = self._log_softmax().topk(number)
        return self.of_targets(found.indices), self.of_targets(found.values)

    @property
    def sequence_logprobs(self) -> Tensor:
        """`[samples]`: the sum of the log-probabilities of the labels of each text. Raises `ModelError` for
        packed texts."""
        if self.texts.position_ids is not None:
            raise ModelError(PACKED)
        return self.token_logprobs.sum(1)

    @property
    def sequence_tokens(self) -> Tensor:
        """`[samples]`: the number of labels of each text."""
        return (self.texts.targets != IGNORED).sum(1).to(self._raw.dtype)

    @property
    def values(self) -> Tensor:
        """`[samples, longest]`: the score of each position. Raises `ModelError` for a model with another head
        than `score`."""
        self._check_head("score", "values and scores")
        return self._positions

    @property
    def _positions(self) -> Tensor:
        """The raw output of all positions, `[samples, longest, ...]`."""
        return self._raw

    def _at_end(self, of_positions: Tensor) -> Tensor:
        """Returns `[samples, ...]`: the values at the last token of each text. Raises `ModelError` for packed
        texts."""
        if self.texts.position_ids is not None:
            raise ModelError(PACKED)
        last = (self.texts.lengths - 1).clamp(min=0).to(of_positions.device)
        return of_positions[torch.arange(len(last), device=last.device), last]

    @property
    def predicted_values(self) -> Tensor:
        """`[tokens]`: the score of the position before each target, which is the value of the text up to
        there."""
        values = self.values[:, :-1]
        return (values if values.dtype == torch.float64 else values.float()).flatten()

    @property
    def scores(self) -> Tensor:
        """`[samples]`: the score of the last token of each text. Raises `ModelError` for a model with another
        head than `score`."""
        return self._at_end(self.values)

    @property
    def class_logprobs(self) -> Tensor:
        """`[samples, labels]`: the log-probabilities of the labels of each text, at its last token. Raises
        `ModelError` for a model with another head than `classify`."""
        self._check_head("classify", "classes")
        logits = self._at_end(self._positions)
        return (logits if logits.dtype == torch.float64 else logits.float()).log_softmax(-1)


def prefixes_of(names: Iterable[str]) -> tuple[str, ...]:
    """Returns the prefixes of the columns with the texts for a loss. `names` are the inputs of the loss.

    The result is `SIDES` if an input belongs to a side of pairs, and one empty prefix otherwise.
    """
    return SIDES if any(name.removeprefix(REF).startswith(SIDES) for name in names) else ("",)


def output_of(name: str) -> tuple[bool, int, str] | None:
    """Returns the model's output for the input `name` of a loss; None if no model computes this input.

    The result has three elements: whether the reference model computes the output, and those of `INPUTS`. For
    example, `ref_rejected_logprobs` returns (True, 1, "sequence_logprobs").
    """
    plain = name.removeprefix(REF)
    return (plain != name, *INPUTS[plain]) if plain in INPUTS else None


OfTexts = Callable[[Outputs, str], Iterator[tuple[str, Column]]]
"""A function of a model's outputs and the prefix of the texts' columns. It yields the name and the values of
each column."""


def logprob_columns(outputs: Outputs, prefix: str) -> Iterator[tuple[str, Column]]:
    if prefix:
        yield "logprobs", outputs.sequence_logprobs.cpu()
        return
    yield "logprobs", as_column(outputs.token_logprobs, outputs.texts)


def reference_columns(outputs: Outputs, prefix: str) -> Iterator[tuple[str, Column]]:
    yield from logprob_columns(outputs, prefix)
    if not prefix and outputs.texts.position_ids is None:
        yield "sequence_logprobs", outputs.sequence_logprobs.cpu()


def teacher_columns(outputs: Outputs, prefix: str, top: int | None) -> Iterator[tuple[str, Column]]:
    """Yields the columns of `logprobs`, and those of the `top` likeliest tokens at each label."""
    yield from logprob_columns(outputs, prefix)
    if top is None or prefix:
        return
    ids, values_of_ids = outputs.likeliest(top)
    yield "top_ids", as_column(ids.to(torch.int32), outputs.texts)
    yield "top_logprobs", as_column(values_of_ids, outputs.texts)


def value_columns(outputs: Outputs, prefix: str) -> Iterator[tuple[str, Column]]:
    yield "values", outputs.texts.ragged(outputs.values)


def with_label_numbers(batch: Batch, names: Mapping[str, int], count: int) -> Batch:
    """Returns the batch with the number of each label in place of its name. `names` maps the names of labels
    to their numbers, which are below `count`. Raises `ModelError` for another label."""
    if LABEL not in batch:
        return batch
    column = batch[LABEL]
    given = column.tolist() if isinstance(column, Tensor) else [*column]
    numbers = [names.get(one, -1) if isinstance(one, str) else one for one in given]
    wrong = [row for row, one in enumerate(numbers) if one not in range(count)]
    if wrong:
        raise ModelError(
            f"`{LABEL}` of samples {shown_ids(batch.ids[wrong].tolist())} is none of the {count} labels, the "
            f"first is {given[wrong[0]]!r:.40}: a label is a whole number below {count}, or a name of "
            "`config: {id2label: {0: NAME, ...}}`"
        )
    return batch.with_columns(**{LABEL: torch.tensor(numbers, dtype=torch.int64)})


def score_columns(outputs: Outputs, prefix: str) -> Iterator[tuple[str, Column]]:
    yield "scores", outputs.scores.cpu()


def renamed(prefix: str, batch: Batch) -> Batch:
    """Returns a batch whose columns have `prefix` before their names."""
    named = {f"{prefix}{name}": batch[name] for name in batch.names}
    return Batch(named, ids=batch.known_ids, group_depth=batch.group_depth)


AT_IDS = {"top_logprobs": "teacher_top_ids"}
"""Input -> the column with the tokens whose log-probabilities it has."""


def inputs_of(
    names: Iterable[str], batch: Batch, own: list[Outputs], reference: Callable[[], list[Outputs]] | None
) -> dict[str, Any]:
    """Returns the inputs `names` of a loss, and the input `nothing`. A name that neither the batch nor the
    model has is left out.

    `own` are the outputs of the model for each side of the texts. `reference` computes those of the reference
    model, and is called at most once; None if the model has none.
    """
    texts = own[0].texts
    found: dict[str, Any] = {"nothing": own[0].nothing}
    of_reference: list[Outputs] = []
    for name in names:
        wanted = output_of(name)
        if name in AT_IDS and AT_IDS[name] in batch:
            found[name] = own[0].top_logprobs(aligned(batch, AT_IDS[name], texts))
        elif name in batch and (wanted is None or wanted[0]):  # a column has no gradient, an output has one
            found[name] = _column(batch, name, texts)
        elif wanted is not None and not wanted[0]:
            found[name] = getattr(own[wanted[1]], wanted[2])
        elif wanted is not None and reference is not None:
            of_reference = of_reference or reference()
            found[name] = getattr(of_reference[wanted[1]], wanted[2])
    return found


def _column(batch: Batch, name: str, texts: Texts) -> Any:
    """Returns a column: `[tokens]` if it has a value for each token; any other tensor on the device of the
    texts; other columns as they are."""
    if is_aligned(batch, name, texts):
        return aligned(batch, name, texts).flatten(0, 1)
    column = batch[name]
    return column.to(texts.input_ids.device) if isinstance(column, Tensor) else column


OF_GROUPS = ("group_tokens", "group_samples", "episode_tokens", "episode_rows")
ESTIMATES = ("advantages", "returns")
OWN_INPUTS = ("group_index", "mask", "over_ranks", "group_tokens", "group_samples", "episode_tokens",
              "episode_rows")  # fmt: skip
"""The inputs of losses and advantages that are computed here and are no columns."""


def with_estimates(batch: Batch, loss: Loss, advantage: Advantage | None, data: Collective) -> Batch:
    """Returns the batch with the columns that `loss` takes from whole groups and that it does not have yet:
    `advantages` and `returns`, by the function `advantage`, and the sizes of groups and of episodes.

    All ranks of `data`, which are the data ranks, call this together. Raises `ModelError` for rewards that
    are not finite and for groups of one answer, and `LossError` if a column is missing.
    """
    missing = {name for name in loss.inputs if name not in batch}
    if not missing & {*OF_GROUPS, *ESTIMATES}:
        return batch
    texts = texts_of(batch, "", torch.device("cpu"))
    found: dict[str, Column] = {}
    labels = (texts.targets != IGNORED).sum(1).to(torch.float32)
    if missing & {*OF_GROUPS} and (index := group_index(batch)) is not None:
        found["group_tokens"], found["group_samples"] = group_sums(labels, index), group_sizes(labels, index)
    if (episodes := episode_index(batch)) is not None:
        rows = group_sizes(labels, episodes)
        found["episode_tokens"], found["episode_rows"] = group_sums(labels, episodes), rows
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


def episode_index(batch: Batch) -> Tensor | None:
    """Returns int64 `[samples]`: the number of the episode of each row, in the order of first rows; None if
    each row is a sample of its own."""
    if EPISODE not in batch:
        return None
    numbers: dict[tuple[int, ...], int] = {}
    found = [numbers.setdefault(tuple(id[:-1]), len(numbers)) for id in batch.ids.tolist()]
    return torch.tensor(found, dtype=torch.int64)


def _estimates(batch: Batch, texts: Texts, advantage: Advantage, data: Collective) -> dict[str, Column]:
    inputs: dict[str, Any] = {"over_ranks": lambda one: data.all_reduce(one.to(data.device)).cpu()}
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
    episodes = episode_index(batch)
    if episodes is not None and "rewards" in inputs and {*advantage.inputs} <= OF_ANSWERS:
        return {ESTIMATES[0]: _of_episodes(inputs, episodes, advantage)}
    estimates = advantage(inputs)
    named = zip(ESTIMATES, estimates, strict=True)
    return {name: _estimate(values, texts, advantage) for name, values in named if values is not None}


OF_ANSWERS = {"rewards", "group_index", "over_ranks"}
"""The inputs of an advantage of whole answers."""


def _of_episodes(inputs: Mapping[str, Any], episodes: Tensor, advantage: Advantage) -> Tensor:
    """Returns the advantage of each row. The rows of an episode have the reward of its first one, and count
    once."""
    rows = {number: row for row, number in reversed([*enumerate(episodes.tolist())])}
    first = [rows[number] for number in range(len(rows))]
    own = {name: inputs[name][first] for name in ("rewards", "group_index") if name in inputs}
    found = advantage({**inputs, **own}).advantages
    if found.shape != (len(first),):
        raise ModelError(f"advantage `{advantage.name}` must return one number for each episode")
    return found[episodes]


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
        none = ": the agent gave none, and no stage after it" if EPISODE in batch else ""
        raise ModelError(
            f"the rewards of samples {shown_ids(batch.ids[~is_finite].tolist())} are not finite{none}"
        )
    return rewards


def _check_groups(batch: Batch, index: Tensor, advantage: Advantage) -> None:
    """Raises `ModelError` if all groups were sampled with one answer, whose advantage would always be 0."""
    members = batch.ids[:, batch.group_depth :]
    if len(batch) > 1 and int(index.max()) + 1 == len(batch) and not bool(members.any()):
        raise ModelError(
            f"advantage `{advantage.name}` compares the answers to a prompt, and each prompt of the batch "
            "has one answer; set `group_size` of the sampler to 2 or more"
        )


def _estimate(values: Tensor, texts: Texts, advantage: Advantage) -> Column:
    samples, tokens = texts.targets.shape
    if values.shape == (samples,):
        return values
    if values.shape == (samples, tokens):
        return as_column(values, texts)
    raise ModelError(
        f"advantage `{advantage.name}` returned the shape {list(values.shape)}; it must return [{samples}] "
        f"(samples) or [{samples}, {tokens}] (samples, tokens)"
    )
