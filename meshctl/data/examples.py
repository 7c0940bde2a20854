"""From the examples of rows to the columns of a batch: limits of their lengths, packs of several examples in
one row, and the kept keys of rows. And the prompts that a model can continue.

Packs are filled by best-fit decreasing: each text, the longest first, goes into the row with the least space
that holds it (Ding et al., 2024, arXiv:2404.10830). A text is never cut. The first row of the data determines
the dtype of a kept column. The samples of a rank do not affect this dtype, because all ranks must send the
same one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from meshctl.data.encoders import MAX_SHOWN, Encoder, Example
from meshctl.data.errors import DataError
from meshctl.data.rows import Row
from meshctl.dataclass import dataclass
from meshctl.labels import IGNORED
from meshctl.runtime.batch.batch import Batch, Column, Ragged
from meshctl.runtime.batch.ids import shown_ids
from meshctl.runtime.component import ComponentError

OVER_LENGTH = ("error", "truncate", "drop", "split")
"""The values of `over_length` for a row that is longer than `max_length`. `error` raises an error with the
row's place, `truncate` keeps its first tokens, `drop` leaves the row out, and `split` makes several samples
of it."""
LEFT_OUT = "%d rows are left out, since they have nothing to learn%s, such as %s"
"""The warning about rows without labels."""
NOTHING = "the row has nothing to learn"
PACKED = ("position_ids", "segment_ids")
"""The additional columns of packed rows."""
COLUMN = "prompt_ids"
"""The column with the tokens of prompts."""
DTYPES: dict[type, torch.dtype] = {bool: torch.bool, int: torch.int64, float: torch.float32}
ACCEPTED: dict[type, tuple[type, ...]] = {bool: (bool,), int: (int,), float: (int, float)}
"""Type of a column -> types of the values that it accepts."""


@dataclass(frozen=True)
class Limit:
    """The maximum number of tokens of an example, and the treatment of longer examples."""

    size: int | None
    over_length: str
    argument: str = "max_length"
    """The argument with the maximum, for messages."""
    can_truncate: bool = True

    def changes_count(self, learn: str) -> bool:
        """Returns whether the number of examples depends on the lengths of the rows. `truncate` can leave a
        row without a label, unless all tokens are learned (`learn`)."""
        ways = ("drop", "split") if learn == "all" else ("drop", "split", "truncate")
        return self.size is not None and self.over_length in ways

    def keeps_labels(self, example: Example) -> bool:
        """Returns whether each column of labels has a label, also after `truncate`."""
        size = self.size if self.over_length == "truncate" else None
        columns = [column[:size] for name, column in example.items() if name.endswith("labels")]
        return all(any(label != IGNORED for label in column) for column in columns)

    @property
    def shown(self) -> str:
        """The tokens that `LEFT_OUT` is about."""
        return f" in their first {self.size} tokens" if self.size else ""

    def pieces(self, length: int) -> list[range]:
        """Returns the used tokens of an example with `length` tokens: one range for each part, and none for a
        dropped example. Raises `DataError` if the example is too long and `over_length` is `error`."""
        if self.size is None or length <= self.size:
            return [range(length)]
        if self.over_length == "error":
            ways = "`over_length: truncate` or `drop`" if self.can_truncate else "`over_length: drop`"
            raise DataError(
                f"the row has {length} tokens, `{self.argument}` is {self.size}: write {ways}, or a greater "
                "length"
            )
        if self.over_length == "drop":
            return []
        count = length if self.over_length == "split" else self.size
        return [range(start, min(start + self.size, length)) for start in range(0, count, self.size)]


def is_learned(example: Example) -> bool:
    """Returns whether each column of labels has a label."""
    return Limit(None, "error").keeps_labels(example)


def length_of(example: Example) -> int:
    """Returns the number of tokens of an example's longest column."""
    return max(map(len, example.values()))


def cut(example: Example, tokens: range) -> Example:
    """Returns the part of an example with the given range of tokens. The first label of a part is -100, as in
    a whole row."""
    if tokens == range(length_of(example)):
        return example
    part = {name: column[tokens.start : tokens.stop] for name, column in example.items()}
    for name, column in part.items():
        if name.endswith("labels") and column:
            part[name] = [IGNORED, *column[1:]]
    return part


def limit_of(encoder: type[Encoder], max_length: int | None, over_length: str, pack: bool) -> Limit:
    """Returns the limit for these arguments of a source. Raises `DataError` for invalid values and for values
    that the encoder does not support."""
    can = {"split": encoder.CAN_SPLIT, "truncate": encoder.CAN_TRUNCATE}
    known = [one for one in OVER_LENGTH if can.get(one, True)]
    if over_length not in known:
        raise DataError(f"`over_length: {over_length}` is not one of {', '.join(known)}")
    if pack and not encoder.CAN_PACK:
        raise DataError("this source does not pack its samples: leave out `pack`")
    return Limit(max_length, over_length, encoder.MAX_LENGTH, encoder.CAN_TRUNCATE)


def packed(lengths: Sequence[int], size: int) -> list[list[int]]:
    """Assigns texts to rows of at most `size` tokens. `lengths` has the number of tokens of each text, at
    most `size`. Returns for each row the indices of its texts in `lengths`, in ascending order."""
    rows: list[list[int]] = []
    rows_of_space: list[list[int]] = [[] for _ in range(size + 1)]
    spaces = 0  # bit n is set where a row has the space n
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        length = lengths[index]
        fitting = spaces >> length
        if fitting:
            space = length + (fitting & -fitting).bit_length() - 1
            row = rows_of_space[space].pop()
            if not rows_of_space[space]:
                spaces &= ~(1 << space)
        else:
            space, row = size, len(rows)
            rows.append([])
        rows[row].append(index)
        rows_of_space[space - length].append(row)
        spaces |= 1 << (space - length)
    return [sorted(row) for row in rows]


def joined(examples: Sequence[Example]) -> Example:
    """Returns the examples as one row, one after another.

    `position_ids` has the position of each token in its example, and `segment_ids` has the number of the
    example in the row. Attention in the row is causal inside each segment.
    """
    columns = {name: [token for one in examples for token in one[name]] for name in examples[0]}
    lengths = [len(one["input_ids"]) for one in examples]
    columns["position_ids"] = [position for length in lengths for position in range(length)]
    columns["segment_ids"] = [number for number, length in enumerate(lengths) for _ in range(length)]
    return columns


def ragged(examples: Sequence[Example], names: Sequence[str]) -> dict[str, Column]:
    """Returns the ragged int64 columns `names` of the examples, with one row for each example."""
    rows = {name: [torch.tensor(one[name], dtype=torch.int64) for one in examples] for name in names}
    return {name: Ragged.of(column, torch.int64) for name, column in rows.items()}


@dataclass(frozen=True)
class PromptLimits:
    """The prompts that a model can continue."""

    vocabulary: int
    positions: int | None
    """The positions of the model for a prompt and its answer; None if there is no limit."""
    max_new_tokens: int
    error: type[ComponentError]
    """The class of the errors about prompts."""

    def prompts_of(self, batch: Batch) -> list[Tensor]:
        """Returns the tokens of each prompt, int64 `[tokens]` in CPU memory. Raises `error` without prompts,
        and for prompts that do not fit, with the ids of their samples."""
        column = batch[COLUMN] if COLUMN in batch else None  # noqa: SIM401 - a batch has no `get`
        if not isinstance(column, Ragged):
            raise self.error(f"a sampler needs prompts, a row of tokens for each sample in `{COLUMN}`")
        prompts = [row.cpu() for row in column.rows()]
        left = math.inf if self.positions is None else self.positions - self.max_new_tokens
        problem = (
            f"and answers of {self.max_new_tokens} tokens exceed the model's {self.positions} positions; "
            f"set `max_prompt_tokens: {left}` and `over_length: drop` at the source of the prompts"
        )
        self._check(batch, prompts, lambda prompt: len(prompt) > left, problem)
        self._check(batch, prompts, lambda prompt: not len(prompt), "have no token")
        size, problem = self.vocabulary, f"have tokens outside the model's vocabulary of {self.vocabulary}"
        self._check(batch, prompts, lambda one: int(one.min()) < 0 or int(one.max()) >= size, problem)
        return prompts

    def _check(
        self, batch: Batch, prompts: list[Tensor], is_wrong: Callable[[Tensor], bool], problem: str
    ) -> None:
        if rows := [row for row, prompt in enumerate(prompts) if is_wrong(prompt)]:
            longest = max(len(prompts[row]) for row in rows)
            shown = shown_ids(batch.ids[rows].tolist())
            raise self.error(f"`{COLUMN}`: samples {shown} (up to {longest} tokens) {problem}")


@dataclass(frozen=True)
class Kept:
    """The key `key` of the rows, which becomes the column `name` of the batch."""

    name: str
    key: str
    kind: type
    """The type of the numbers, `bool`, `int` or `float`; `object` for all other values."""
    is_list: bool
    """True if each value is a list of numbers of the type `kind`."""

    @classmethod
    def of(cls, name: str, key: str, row: Row) -> Kept:
        """Returns the column of the key `key`, with the type of the value in the first row `row`. Raises
        `DataError` if the row does not have this key."""
        value = _value(row, key)
        is_list = isinstance(value, list) and bool(value)
        kinds = {type(one) for one in value} if is_list else {type(value)}
        if kinds == {int, float}:
            kinds = {float}
        kind = kinds.pop() if len(kinds) == 1 else object
        return cls(name, key, kind, is_list) if kind in DTYPES else cls(name, key, object, False)

    def value(self, row: Row) -> Any:
        """Returns the value of the key in a row. Raises `DataError` if the value does not have the type of
        this column."""
        value = _value(row, self.key)
        if self.kind is object:
            return value
        is_list = isinstance(value, list)
        accepted = ACCEPTED[self.kind]
        if is_list != self.is_list or any(
            type(one) not in accepted for one in (value if is_list else [value])
        ):
            expected = f"list of {self.kind.__name__}" if self.is_list else self.kind.__name__
            raise DataError(f"`{self.key}` is {value!r:.40}, the first row has a value of type {expected}")
        return value

    def column(self, values: Sequence[Any]) -> Column:
        if self.kind is object:
            return list(values)
        dtype = DTYPES[self.kind]
        if not self.is_list:
            return torch.tensor(values, dtype=dtype)
        return Ragged.of([torch.tensor(value, dtype=dtype) for value in values], dtype)


def _value(row: Row, key: str) -> Any:
    if key not in row:
        raise DataError(f"the row has no `{key}`; its keys are {', '.join(list(row)[:MAX_SHOWN]) or 'none'}")
    return row[key]
