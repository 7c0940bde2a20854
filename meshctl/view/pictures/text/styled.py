"""Lines of styled text, measured in the columns of a terminal, for the text picture and its zooms.

    Line("  ", styled("A", "c0"), " prompts")        a line of plain and of styled parts
    columns([row, ...], [Column(), ...], width)   aligned rows of lines, with wide texts cut: with…name

Styles are words that become escape codes at the very end. rich is not used because it takes 0.05 s to import.
As in the reports, control characters become `?`, and wide letters count as two columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple
from unicodedata import category

from meshctl.dataclass import dataclass
from meshctl.view.reports.text import cells, shown

PALETTE = (32, 166, 28, 163, 30, 160, 99, 100)
"""Blue, amber, green, pink, teal, red, violet, olive of the 256 colors, with a contrast of at least 3.6 to
white and to black."""
CODES = {
    "bold": "1",
    "faint": "2",
    "warning": "33;1",
    "added": "32",
    "removed": "31",
    "changed": "33",
    **{f"c{number}": f"38;5;{color}" for number, color in enumerate(PALETTE)},
    **{f"C{number}": f"1;38;5;{color}" for number, color in enumerate(PALETTE)},
}
"""Style -> the numbers of its escape code. `c0` to `c7` are the colors of the palette, `C0` to `C7` the same
in bold."""
ELLIPSIS = "…"


class Segment(NamedTuple):
    text: str
    style: str = ""
    """A key of `CODES`; empty for plain text."""


def styled(text: str, style: str = "") -> Segment:
    return Segment(visible(text), style)


def visible(text: str) -> str:
    """Returns the text with a space or `?` for each character that moves the cursor or begins a line."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _visible(each) for each in text)


def _visible(character: str) -> str:
    return " " * cells(character) if category(character) == "Zs" else shown(character).replace(character, "?")


class Line(tuple[Segment, ...]):
    """One line of text, made of strings, segments and other lines."""

    def __new__(cls, *parts: str | Segment | Line) -> Line:
        made: list[Segment] = []
        for part in parts:
            if isinstance(part, Line):
                made += part
            else:
                made.append(part if isinstance(part, Segment) else styled(part))
        return super().__new__(cls, (part for part in made if part.text))

    @property
    def text(self) -> str:
        return "".join(part.text for part in self)

    @property
    def width(self) -> int:
        return sum(width_of(part.text) for part in self)

    def with_style(self, style: str) -> Line:
        """Returns the line with a style for all segments without one."""
        return Line(*(part if part.style else Segment(part.text, style) for part in self))

    def padded(self, width: int, right: bool = False) -> Line:
        space = " " * max(0, width - self.width)
        return Line(space, self) if right else Line(self, space)

    def trimmed(self) -> Line:
        """Returns the line without spaces at its end."""
        parts = list(self)
        while parts and not parts[-1].text.rstrip(" "):
            parts.pop()
        return Line(*parts[:-1], Segment(parts[-1].text.rstrip(" "), parts[-1].style)) if parts else Line()

    def clip(self, width: int) -> Line:
        """Returns the line cut at `width`, with an ellipsis if something is missing."""
        if self.width <= width:
            return self
        made, left = list[Segment](), width - 1
        for part in self:
            fits = _first(part.text, left)
            made.append(Segment(fits, part.style))
            left -= width_of(fits)
            if fits != part.text:
                break
        return Line(*made, ELLIPSIS[: max(0, width)])

    def fit(self, width: int) -> Line:
        """Returns the line in at most `width` columns. The middle of its longest part is removed and, if that
        is not enough, the end of the line."""
        excess = self.width - width
        if excess <= 0:
            return self
        longest = max(range(len(self)), key=lambda index: width_of(self[index].text))
        text, style = self[longest]
        shorter = Segment(cut(text, max(3, width_of(text) - excess)), style)
        return Line(*self[:longest], shorter, *self[longest + 1 :]).clip(width)

    def by_words(self, width: int) -> Line:
        """Returns as many words of the line as fit into `width` columns."""
        if self.width <= width:
            return self
        words = [word for word in self.words() if word.text != ELLIPSIS]
        for count in range(len(words) - 1, 0, -1):
            short = joined([*words[:count], Line(ELLIPSIS)], " ")
            if short.width <= width:
                return short
        return self.fit(width)

    def words(self) -> list[Line]:
        return [Line(styled(word, part.style)) for part in self for word in part.text.split()]


def joined(parts: Iterable[Line], between: str = ", ") -> Line:
    made = Line()
    for part in parts:
        made = Line(made, between, part) if made else part
    return made


def wrapped(words: Sequence[Line], width: int, between: str = "  ") -> list[Line]:
    """Returns the words in lines of at most `width` columns."""
    made: list[Line] = []
    for word in words:
        word = word.fit(width)
        if made and made[-1].width + len(between) + word.width <= width:
            made[-1] = Line(made[-1], between, word)
        else:
            made.append(word)
    return made


def words_of(text: str, style: str = "") -> list[Line]:
    return Line(styled(text, style)).words()


# Plain text


def width_of(text: str) -> int:
    text = visible(text)
    return len(text) if text.isascii() else cells(text)


def cut(text: str, width: int) -> str:
    """Returns the text in at most `width` columns. Its middle is removed, because names differ at both
    ends."""
    text = visible(text)
    if width_of(text) <= width:
        return text
    if width < 2:
        return ELLIPSIS[:width]
    ends = (text[place:] for place in range(len(text)))
    tail = next((end for end in ends if width_of(end) <= (width - 1) // 2 and width_of(end[0])), "")
    return _first(text, width - 1 - width_of(tail)) + ELLIPSIS + tail


def _first(text: str, width: int) -> str:
    """Returns the longest beginning that fits into `width` columns, with combining characters after it."""
    taken = 0
    for place, letter in enumerate(text):
        taken += width_of(letter)
        if taken > width:
            return text[:place]
    return text


# Columns


@dataclass(frozen=True)
class Column:
    least: int = 0
    """Its minimum width; 0 if it may not be cut."""
    right: bool = False
    """True if it is right-aligned."""
    spare: int = 0
    """The order in which columns are left out if the rows are too wide: the highest number first. A column
    with 0 is never left out."""
    gap: int = 2
    """The number of spaces before it."""
    shorten: Callable[[Line, int], Line] = Line.fit
    """(cell, width) -> the shortened cell. Columns of numbers use `Line.by_words`, because a part of a number
    would be another number."""


Row = Sequence[Line]
Widths = dict[int, int]
"""The widths of the columns that are shown, by index."""


def wants(rows: Sequence[Row], shape: Sequence[Column]) -> int:
    """Returns the width of the complete rows."""
    return _total(_complete(rows, shape), shape)


def columns(rows: Sequence[Row], shape: Sequence[Column], width: int) -> list[Line]:
    """Returns the rows as aligned lines. A row may have fewer cells; an empty column has no width."""
    widths = _complete(rows, shape)
    narrowest = {index: min(wide, shape[index].least or wide) for index, wide in widths.items()}
    spare = sorted((index for index in widths if shape[index].spare), key=lambda index: shape[index].spare)
    while spare and _total({index: narrowest[index] for index in widths}, shape) > width:
        del widths[spare.pop()]
    for _ in range(_total(widths, shape) - width):  # the widest of those that may be cut become narrower
        wide = [index for index in widths if widths[index] > narrowest[index]]
        if not wide:
            break
        widths[max(wide, key=widths.__getitem__)] -= 1
    return [_row(row, widths, shape, width) for row in rows]


def _complete(rows: Sequence[Row], shape: Sequence[Column]) -> Widths:
    cells = [[row[index] for row in rows if index < len(row)] for index in range(len(shape))]
    widths = [max((cell.width for cell in of_column), default=0) for of_column in cells]
    return {index: width for index, width in enumerate(widths) if width}


def _total(widths: Widths, shape: Sequence[Column]) -> int:
    gaps = [shape[index].gap for index in widths]
    return sum(widths.values()) + sum(gaps[1:])


def _row(row: Row, widths: Widths, shape: Sequence[Column], width: int) -> Line:
    made = Line()
    for number, (index, wide) in enumerate(widths.items()):
        column, cell = shape[index], row[index] if index < len(row) else Line()
        gap = " " * column.gap if number else ""
        made = Line(made, gap, column.shorten(cell, wide).padded(wide, column.right))
    return made.trimmed().clip(width)


# Output


def printed(lines: Iterable[Line], color: bool = False) -> str:
    """Returns the text, with a newline at its end."""
    drawn = (each.trimmed() for each in lines)
    return "".join(("".join(map(_coded, each)) if color else each.text) + "\n" for each in drawn)


def _coded(part: Segment) -> str:
    is_styled = part.style and part.text.strip(" ")
    return f"\x1b[{CODES[part.style]}m{part.text}\x1b[0m" if is_styled else part.text


SIGNS, PLAIN = "│┆─┘┐┤└┌├┴┬┼╭╮╯╰═·…", "|:-+++++++++++++=.~"


def in_encoding(text: str, encoding: str) -> str:
    """Returns the text for a stream of an encoding, with ASCII characters if the encoding has no box
    drawing."""
    try:
        SIGNS.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return text.translate(str.maketrans(SIGNS, PLAIN))
    return text
