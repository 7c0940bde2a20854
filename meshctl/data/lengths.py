"""Limits the number of tokens of an example: `max_length` and `over_length`."""

from __future__ import annotations

from meshctl.data.encoders import Encoder, Example
from meshctl.data.errors import DataError
from meshctl.dataclass import dataclass
from meshctl.labels import IGNORED

OVER_LENGTH = ("error", "truncate", "drop", "split")
"""The values of `over_length` for a row that is longer than `max_length`. `error` raises an error with the
row's place, `truncate` keeps its first tokens, `drop` leaves the row out, and `split` makes several samples
of it."""
LEFT_OUT = "%d rows are left out, since they have nothing to learn in their first %s tokens, such as %s"
"""The warning about rows without labels."""


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
        raise DataError("pairs are not packed: leave out `pack`")
    return Limit(max_length, over_length, encoder.MAX_LENGTH, encoder.CAN_TRUNCATE)
