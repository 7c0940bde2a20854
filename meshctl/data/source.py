"""Sources whose rows can be read by number: `Chat`, `Text`, `Pairs`, and their base class.

    sample number -> epoch and position -> (order of the epoch) -> index -> a row, a part of it, or a pack

Each arrow is a function of the arguments and of the data alone, so a sample is the same on every rank and
mesh. Where the number of samples depends on the lengths of all rows (`pack`, and each `over_length` but
`error`), `setup` computes these lengths. Each rank computes the lengths of its share of the rows. Rows in
which nothing is left to learn are left out.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import torch

from meshctl.argument_limits import check_arguments
from meshctl.data.checks import PROMPTS, SOURCE
from meshctl.data.encoders import (
    LABEL,
    ChatEncoder,
    Encoder,
    Example,
    LabelledEncoder,
    PairsEncoder,
    PromptsEncoder,
    TextEncoder,
)
from meshctl.data.errors import DataError, RowError, errors_at
from meshctl.data.examples import (
    LEFT_OUT,
    NOTHING,
    PACKED,
    Kept,
    cut,
    is_learned,
    joined,
    length_of,
    limit_of,
    packed,
    ragged,
)
from meshctl.data.mixtures import Mixture, part_names, parts_of
from meshctl.data.prefetch import Prefetch, results
from meshctl.data.rows import Concatenated, Expanded, Permutation, Rows, open_rows, split_off
from meshctl.data.tokenizer import Tokenizer
from meshctl.runtime.batch.batch import Batch, Column
from meshctl.runtime.component import Component, endpoint
from meshctl.text.english import counted
from meshctl.topology.mesh import even_split

log = logging.getLogger(__name__)
ROWS_AT_ONCE = 256
"""The number of rows whose lengths one call of a worker process computes."""
BAD = -1
"""The length of a row that cannot be used."""
MAX_NAMED = 10
"""The number of skipped rows that a message names."""


class Part(NamedTuple):
    """A row, or a range of its tokens."""

    row: int
    tokens: range | None
    """The range of tokens; None for all tokens within `max_length`."""


class Source(Component):
    """Reads examples from rows by their numbers. A subclass sets `ENCODER`."""

    ENCODER: ClassVar[type[Encoder]]
    FURTHER: ClassVar[tuple[str, ...]] = ()
    """Keys of the rows that become columns beside those of `keep`."""
    EXTRA: ClassVar[str | tuple[str, ...]] = "hf"

    def __init__(
        self,
        path: str | Sequence[str] | Mapping[str, float],
        tokenizer: str,
        *,
        split: str = "train",
        fields: Mapping[str, str] | None = None,
        keep: Sequence[str] = (),
        learn: str = "",
        max_length: int | None = None,
        over_length: str = "error",
        pack: bool = False,
        bad_rows: Literal["error", "skip"] = "error",
        bad_rows_limit: int = 100,
        shuffle: bool = True,
        seed: int = 0,
        holdout: float = 0,
        held_out: bool = False,
        tokens: Sequence[str] = (),
        chat_template: str = "",
        template_args: Mapping[str, Any] | None = None,
        workers: int = 0,
    ) -> None:
        """Opens the data. Raises `DataError` for unreadable data and for invalid arguments.

        path: a file, a pattern, a folder, or a name of the hub (`rows.open_rows`); a list of them; or a
            mixture, a mapping from them to their shares of the samples.
        tokenizer: `byte`, a folder, or a name of the hub.
        split: the split of a saved dataset or of a dataset of the hub.
        fields: key that the source reads -> key of the rows, for keys that differ.
        keep: keys of the rows that become further columns.
        learn: the tokens with a label: `assistant`, `turns` (each message of the assistant as a sample of its
            own, after the chat as it was before), `last` (the assistant's last message) or `all`.
        max_length, over_length: the most tokens of a row, and what happens to longer ones: `error`,
            `truncate`, `drop`, or for plain text `split`.
        pack: whether to put several texts in one row of at most `max_length` tokens.
        bad_rows, bad_rows_limit: what happens to rows that cannot be used: `error` or `skip`, and the most
            rows that `skip` leaves out.
        shuffle, seed: whether each epoch has a random order, and the seed of these orders.
        holdout, held_out: the number or fraction of rows that are held out, and whether to read them.
        tokens: tokens that are added to the tokenizer, as the argument `tokens` of the model.
        chat_template, template_args: a file with a chat template, and variables of the template.
        workers: number of processes that prepare samples ahead; with 0, `next` prepares them.
        """
        check_arguments(SOURCE, locals(), DataError)
        self._seed, self._shuffle, self._workers, self._pack = seed, shuffle, workers, pack
        self._limit = limit_of(self.ENCODER, max_length, over_length, pack)
        loaded = Tokenizer(tokenizer, chat_template, template_args, tokens)
        self._encode = self._encoder(loaded, learn, fields or {})
        paths, shares = parts_of(path)
        opened = [Concatenated([self._open(one, split) for one in part]) for part in paths]
        parts: list[Rows] = [split_off(rows, holdout, held_out=held_out) for rows in opened]
        if expand := self._encode.parts:
            parts = [Expanded(rows, expand) for rows in parts]
        self._rows, self._mixture, self._names = Concatenated(parts), Mixture(shares), part_names(paths)
        self._sizes = [len(rows) for rows in parts]
        """The number of rows of each part of the mixture, and in a run that of its samples of one epoch."""
        if keep and over_length == "split":
            raise DataError("`keep` needs one sample for each row: leave out `over_length: split`")
        named = {name: (fields or {}).get(name, name) for name in (*self.FURTHER, *keep)}
        self._kept = self._kept_of(named, len(self._rows) if bad_rows == "skip" else 1)
        self._parts: Sequence[Part] | None = None
        """The parts of rows: the samples, or with `pack` the contents of packs. None if each row is one
        sample."""
        self._packs: Sequence[Sequence[int]] | None = None
        self._most_skipped = bad_rows_limit if bad_rows == "skip" else None
        counts = pack or bad_rows == "skip" or self._limit.changes_count(self._encode.learn)
        self._is_ready = not counts
        """True if the samples are known, and need no lengths of rows."""
        self._orders: dict[int, tuple[int, Sequence[int]]] = {}
        """Part of the mixture -> its latest epoch, and the order of its samples in it."""
        self._prefetch = Prefetch(self._columns, workers)

    def _open(self, path: str, split: str) -> Rows:
        return open_rows(path, split)

    def _encoder(self, tokenizer: Tokenizer, learn: str, fields: Mapping[str, str]) -> Encoder:
        return self.ENCODER(tokenizer, learn, fields)

    def _kept_of(self, named: Mapping[str, str], most: int) -> list[Kept]:
        """Returns the columns of the kept keys, with the types of the first of `most` rows that has them.
        `named` maps the names of columns to keys."""
        for number in range(most):
            try:
                return [Kept.of(name, key, self._rows[number]) for name, key in named.items()]
            except DataError:
                if number == most - 1:
                    raise
        return []

    def setup(self) -> None:
        """Computes the lengths of all rows if the number of samples depends on them. All ranks call this
        together; outside of a run, the first use does. Raises `DataError` if no row is left, and `RowError`
        for an unusable row."""
        if self._is_ready:
            return
        found = self._lengths()
        self._check_bad([row for row, length in enumerate(found) if length == BAD])
        lengths = list(enumerate(found))
        if (lost := [row for row, length in lengths if not length]) and self.rank == 0:
            log.warning(LEFT_OUT, len(lost), self._limit.shown, self._rows.place(lost[0]))
        packs: list[list[int]] = []
        self._parts, stop = [], 0
        for number, size in enumerate(self._sizes):
            start, stop, first = stop, stop + size, len(self._parts)
            own = [
                Part(row, tokens)
                for row, length in lengths[start:stop]
                if length > 0
                for tokens in self._pieces(row, length)
            ]
            if not own:
                ways = f"`over_length: {self._limit.over_length}` leaves no row of at most {self._limit.size}"
                raise DataError(f"{ways} tokens of `{self._rows.place(start)}` and what follows")
            self._parts.extend(own)
            self._sizes[number] = len(own)
            if self._pack and self._limit.size is not None:
                rows = packed([len(part.tokens or ()) for part in own], self._limit.size)
                packs.extend([first + index for index in row] for row in rows)
                self._sizes[number] = len(rows)
        self._packs, self._is_ready = packs if self._pack else None, True

    def close(self) -> None:
        self._prefetch.close()

    def __len__(self) -> int:
        """The number of samples of one epoch: those of all rows."""
        self.setup()
        return sum(self._sizes)

    @endpoint
    def next(self, samples: range) -> Batch | None:
        """Returns the samples of these numbers. The numbers continue across epochs."""
        self.setup()
        columns = self._prefetch(samples)
        if len(self._names) > 1 and samples:
            counts = Counter(self._mixture[number][0] for number in samples)
            shares = {f"share/{name}": counts[part] / len(samples) for part, name in enumerate(self._names)}
            self.log(shares, len(samples))
        return Batch(columns, ids=torch.tensor(samples, dtype=torch.int64))

    # The columns of a sample

    def _columns(self, samples: range) -> dict[str, Column]:
        indices = [self._index(number) for number in samples]
        names = (*self.ENCODER.COLUMNS, *(PACKED if self._pack else ()))
        columns = ragged([self._sample(index) for index in indices], names)
        rows = [self._parts[index].row if self._parts else index for index in indices]
        for kept in self._kept:
            columns[kept.name] = kept.column([self._kept_value(kept, row) for row in rows])
        return columns | self._further_columns(rows if self._packs is None else [])

    def _further_columns(self, rows: Sequence[int]) -> dict[str, Column]:
        return {}

    def _index(self, number: int) -> int:
        """Returns the index of a sample in the unshuffled epoch. `number` counts samples across epochs."""
        part, own = self._mixture[number]
        size, first = self._sizes[part], sum(self._sizes[:part])
        epoch, position = divmod(own, size)
        if not self._shuffle:
            return first + position
        if part not in self._orders or self._orders[part][0] != epoch:
            self._orders[part] = (epoch, Permutation(size, self._seed, epoch))
        return first + self._orders[part][1][position]

    def _sample(self, index: int) -> Example:
        if self._packs is not None and self._parts is not None:
            return joined([self._part(self._parts[part]) for part in self._packs[index]])
        return self._part(self._parts[index] if self._parts else Part(index, None))

    def _part(self, part: Part) -> Example:
        example = self._example(part.row)
        if part.tokens is not None:
            return cut(example, part.tokens)
        if not is_learned(example):
            help = "write `bad_rows: skip` to leave such rows out"
            raise RowError(self._rows.place(part.row), f"{NOTHING}; {help}")
        return cut(example, self._pieces(part.row, length_of(example))[0])

    def _example(self, row: int) -> Example:
        content = self._rows[row]
        with errors_at(self._rows.place(row)):
            return self._encode(content)

    def _kept_value(self, kept: Kept, row: int) -> Any:
        with errors_at(self._rows.place(row)):
            return kept.value(self._rows[row])

    def _pieces(self, row: int, length: int) -> list[range]:
        with errors_at(self._rows.place(row)):
            return self._limit.pieces(length)

    # The lengths of all rows

    def _lengths(self) -> list[int]:
        """Returns the number of tokens of each row; 0 if it has no label, and `BAD` if it cannot be used and
        is skipped. Each rank encodes its share of the rows, and an all-reduce combines the results."""
        count, peers = len(self._rows), self.collective("world")
        share = even_split(count, peers.size, peers.rank)
        lengths = torch.zeros(count, dtype=torch.int64, device=self.device)
        chunks = [share[start : start + ROWS_AT_ONCE] for start in range(0, len(share), ROWS_AT_ONCE)]

        def find(numbers: range) -> torch.Tensor:
            return torch.tensor([self._length(row) for row in numbers])

        for numbers, found in zip(chunks, results(find, chunks, self._workers), strict=True):
            lengths[numbers.start : numbers.stop] = found
        return peers.all_reduce(lengths).tolist()

    def _length(self, row: int) -> int:
        if self._most_skipped is not None and self._problem(row):
            return BAD
        example = self._example(row)
        return length_of(example) * self._limit.keeps_labels(example)

    def problems(self) -> Iterator[str]:
        """Yields for each row why it cannot be used, with its place, or an empty text."""
        yield from map(self._problem, range(len(self._rows)))

    def _problem(self, row: int) -> str:
        """Returns why a row cannot be used, with its place; empty if it can be used."""
        try:
            self._pieces(row, length_of(example := self._example(row)))
            for kept in self._kept:
                self._kept_value(kept, row)
        except RowError as error:
            return str(error)
        return "" if is_learned(example) else f"{self._rows.place(row)}: {NOTHING}"

    def _check_bad(self, bad: Sequence[int]) -> None:
        """Logs the first rows that are skipped. Raises `DataError` if they are more than the limit."""
        if not bad or self._most_skipped is None:
            return
        first = "; ".join(self._problem(row) for row in bad[:MAX_NAMED])
        count = f"{counted(len(bad), 'row')} of {len(self._rows)} cannot be used"
        if len(bad) > self._most_skipped:
            raise DataError(f"{count}, and `bad_rows_limit` is {self._most_skipped}: {first}")
        if self.rank == 0:
            log.warning("%s and are skipped: %s", count, first)


class ChatRows:
    """The declarations of sources of chats."""

    ENCODER: ClassVar[type[Encoder]] = ChatEncoder
    RETURNS: ClassVar = {
        "next": ("input_ids", "labels", "args.keep", {"args.pack": ("position_ids", "segment_ids")})
    }


class Chat(ChatRows, Source):
    """Reads rows with the key `messages`, a list of objects with `role` and `content`, and the optional key
    `tools`."""


class TextRows:
    """The declarations of sources of texts."""

    ENCODER: ClassVar[type[Encoder]] = TextEncoder
    RETURNS: ClassVar = {
        "next": ("input_ids", "labels", "args.keep", {"args.pack": ("position_ids", "segment_ids")})
    }


class Text(TextRows, Source):
    """Reads rows with the key `text`, and appends the tokenizer's end token to each text."""


class Labelled(Source):
    """Reads rows with the key `text` and the key `label`, a number from 0 or a name."""

    ENCODER = LabelledEncoder
    FURTHER = (LABEL,)
    RETURNS: ClassVar = {"next": ("input_ids", "label", "args.keep")}


class PairsRows:
    """The declarations of sources of pairs."""

    ENCODER: ClassVar[type[Encoder]] = PairsEncoder
    RETURNS: ClassVar = {
        "next": ("chosen_input_ids", "chosen_labels", "rejected_input_ids", "rejected_labels", "args.keep")
    }


class Pairs(PairsRows, Source):
    """Reads rows with the keys `prompt`, `chosen` and `rejected`. The values are texts or lists of
    messages."""


OWN = ("prompt_ids", "prompt")


class Prompts(Source):
    """Reads rows with the key `prompt`, a text or a list of messages, and the optional key `tools`.

    A list of messages is rendered by the chat template, with the beginning of the assistant's answer. A text
    is used as it is. The columns are `prompt_ids` with the tokens, and `prompt` with the rendered text.
    """

    ENCODER = PromptsEncoder
    RETURNS: ClassVar[Mapping[str, tuple[str, ...]]] = {"next": ("prompt_ids", "prompt", "args.keep")}

    def __init__(
        self,
        path: str | Sequence[str] | Mapping[str, float],
        tokenizer: str,
        *,
        split: str = "train",
        fields: Mapping[str, str] | None = None,
        keep: Sequence[str] = (),
        chat: bool = False,
        system: str = "",
        max_prompt_tokens: int | None = None,
        over_length: Literal["error", "drop"] = "error",
        bad_rows: Literal["error", "skip"] = "error",
        bad_rows_limit: int = 100,
        shuffle: bool = True,
        seed: int = 0,
        holdout: float = 0,
        held_out: bool = False,
        tokens: Sequence[str] = (),
        chat_template: str = "",
        template_args: Mapping[str, Any] | None = None,
        workers: int = 0,
    ) -> None:
        """Opens the data. Raises `DataError` for unreadable data and for invalid arguments.

        The arguments are those of `Source`, without those of labels and packs, and these:

        chat: whether a prompt that is a text is rendered as the message of a user.
        system: a message with the role `system` for each chat that has none.
        max_prompt_tokens, over_length: the most tokens of a prompt, and what happens to longer ones: `error`
            or `drop`.
        """
        check_arguments(PROMPTS, locals(), DataError)
        if taken := [name for name in keep if name in OWN]:
            raise DataError(f"`keep` names `{taken[0]}`, which is a column already")
        self._as_chat, self._system = chat, system
        super().__init__(
            path,
            tokenizer,
            split=split,
            fields=fields,
            keep=keep,
            max_length=max_prompt_tokens,
            over_length=over_length,
            bad_rows=bad_rows,
            bad_rows_limit=bad_rows_limit,
            shuffle=shuffle,
            seed=seed,
            holdout=holdout,
            held_out=held_out,
            tokens=tokens,
            chat_template=chat_template,
            template_args=template_args,
            workers=workers,
        )

    def _encoder(self, tokenizer: Tokenizer, learn: str, fields: Mapping[str, str]) -> Encoder:
        self._prompts = PromptsEncoder(tokenizer, fields, self._as_chat, self._system)
        return self._prompts

    def _further_columns(self, rows: Sequence[int]) -> dict[str, Column]:
        return {"prompt": [self._prompts.text(self._rows[row]) for row in rows]}
