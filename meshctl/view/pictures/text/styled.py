"""Lines of styled text, measured in the columns of a terminal, for the text picture and its zooms.

    line("  ", ink("A", "c0"), " prompts")        a line is a tuple of inks; text in it is plain
    columns([row, ...], [Column(), ...], width)   aligned rows of lines; wide text is cut in the middle:
                                                  with…name

Styles are words that become escape codes at the very end. rich is not used because it takes 0.05 s to import.
As in the reports, control characters become `?`, and wide letters count as two columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple
from unicodedata import category

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
ELLIPSIS = "…"


class Ink(NamedTuple):
    text: str
    style: str = ""
    """A key of `CODES`; empty for plain text."""


Line = tuple[Ink, ...]


def ink(text: str, style: str = "") -> Ink:
    return Ink(visible(text), style)


def visible(text: str) -> str:
    """Returns the text without characters that move the cursor or begin a line."""
    return (
        text
        if text.isprintable()
        else "".join(each if each.isprintable() else _visible(each) for each in text)
    )


def _visible(character: str) -> str:
    return " " * cells(character) if category(character) == "Zs" else shown(character).replace(character, "?")


def line(*parts: str | Ink | Line) -> Line:
    made: list[Ink] = []
    for part in parts:
        if isinstance(part, str):
            made.append(ink(part))
        elif isinstance(part, Ink):
            made.append(part)
        else:
            made += part
    return tuple(part for part in made if part.text)


def joined(parts: Iterable[Line], between: str = ", ") -> Line:
    made: Line = ()
    for part in parts:
        made = line(made, between, part) if made else part
    return made


def styled(text: Line, style: str) -> Line:
    """Returns the line with a style for all inks without one."""
    return tuple(part if part.style else Ink(part.text, style) for part in text)


# Width


def width_of(text: str | Line) -> int:
    if isinstance(text, str):
        text = visible(text)
        return len(text) if text.isascii() else cells(text)
    return sum(width_of(part.text) for part in text)


def cut(text: str, width: int) -> str:
    """Returns the text in at most `width` columns. Its middle is removed, because names differ at both
    ends."""
    text = visible(text)
    if width_of(text) <= width:
        return text
    if width < 2:
        return ELLIPSIS[:width]
    tail = _last(text, (width - 1) // 2)
    return _first(text, width - 1 - width_of(tail)) + ELLIPSIS + tail


def _first(text: str, width: int) -> str:
    """Returns the longest beginning that fits, with combining letters after it."""
    taken = 0
    for place, letter in enumerate(text):
        taken += width_of(letter)
        if taken > width:
            return text[:place]
    return text


def _last(text: str, width: int) -> str:
    for place in range(len(text)):
        if width_of(text[place:]) <= width and width_of(text[place]):
            return text[place:]
    return ""


def clip(text: Line, width: int) -> Line:
    """Returns the line cut at `width`, with an ellipsis if something is missing."""
    if width_of(text) <= width:
        return text
    made, left = list[Ink](), width - 1
    for part in text:
        fits = _first(part.text, left)
        made.append(Ink(fits, part.style))
        left -= width_of(fits)
        if fits != part.text:
            break
    return line(tuple(made), ELLIPSIS[: max(0, width)])


def fit(text: Line, width: int) -> Line:
    """Returns the line in at most `width` columns: the middle of its longest part is removed, then its
    end."""
    excess = width_of(text) - width
    if excess <= 0:
        return text
    place = max(range(len(text)), key=lambda index: width_of(text[index].text))
    room = max(3, width_of(text[place].text) - excess)
    shorter = Ink(cut(text[place].text, room), text[place].style)
    return clip((*text[:place], shorter, *text[place + 1 :]), width)


def by_words(text: Line, width: int) -> Line:
    """Returns as many words of the line as fit into `width` columns."""
    if width_of(text) <= width:
        return text
    words = [line(ink(word, part.style)) for part in text for word in part.text.split()]
    for count in range(len(words) - 1, 0, -1):
        short = joined(
            [*words[:count], line(ELLIPSIS)] if words[count - 1] != line(ELLIPSIS) else words[:count], " "
        )
        if width_of(short) <= width:
            return short
    return fit(text, width)


def padded(text: Line, width: int, right: bool = False) -> Line:
    space = " " * max(0, width - width_of(text))
    return line(space, text) if right else line(text, space)


def wrapped(words: Sequence[Line], width: int, between: str = "  ") -> list[Line]:
    """Returns the words in lines of at most `width` columns."""
    made: list[Line] = []
    for word in words:
        word = fit(word, width)
        if made and width_of(made[-1]) + len(between) + width_of(word) <= width:
            made[-1] = line(made[-1], between, word)
        else:
            made.append(word)
    return made


def words_of(text: str, style: str = "") -> list[Line]:
    return [line(ink(word, style)) for word in text.split()]


# Columns


@dataclass(frozen=True)
class Column:
    least: int = 0
    """Its minimum width; 0 if it may not be cut."""
    right: bool = False
    """Whether it is right-aligned."""
    spare: int = 0
    """Columns with higher numbers are left out first if the rows are too wide; 0 is never left out."""
    gap: int = 2
    """Spaces before it."""
    end: bool = False
    """Whether it is cut at its end instead of its middle."""
    words: bool = False
    """Whether it is cut between words, because a part of a number is another number."""


def wants(rows: Sequence[Sequence[Line]], shape: Sequence[Column]) -> int:
    """Returns the width of the complete rows."""
    return _total(_kept(rows, shape))


def columns(rows: Sequence[Sequence[Line]], shape: Sequence[Column], width: int) -> list[Line]:
    """Returns the aligned rows. A row may have fewer cells; an empty column takes no room."""
    kept = _kept(rows, shape)
    while _total(kept) > width and any(column.spare for column, _ in kept) and _narrowest(kept) > width:
        kept.remove(max(kept, key=lambda each: each[0].spare))
    widths = _widths(kept, width)
    return [_row(kept, widths, number, width) for number in range(len(rows))]


Kept = list[tuple[Column, tuple[Line, ...]]]


def _kept(rows: Sequence[Sequence[Line]], shape: Sequence[Column]) -> Kept:
    return [
        (column, texts)
        for column, texts in zip(shape, zip_longest(*rows, fillvalue=()), strict=False)
        if any(texts)
    ]


def _total(kept: Kept) -> int:
    return sum(max(map(width_of, texts)) + column.gap for column, texts in kept) - (
        kept[0][0].gap if kept else 0
    )


def _narrowest(kept: Kept) -> int:
    """Returns the width with every column cut to its minimum."""
    wide = [max(map(width_of, texts)) for _, texts in kept]
    needs = [
        min(most, column.least or most) + column.gap for most, (column, _) in zip(wide, kept, strict=True)
    ]
    return sum(needs) - (kept[0][0].gap if kept else 0)


def _widths(kept: Kept, width: int) -> list[int]:
    """Those that may become narrower do, the widest first."""
    widths = [max(map(width_of, texts)) for _, texts in kept]
    excess = _total(kept) - width
    while excess > 0:
        wide = [
            index for index, (column, _) in enumerate(kept) if column.least and widths[index] > column.least
        ]
        if not wide:
            break
        widest = max(wide, key=lambda index: widths[index])
        widths[widest] -= 1
        excess -= 1
    return widths


def _row(kept: Kept, widths: Sequence[int], number: int, width: int) -> Line:
    made: Line = ()
    for index, ((column, texts), wide) in enumerate(zip(kept, widths, strict=True)):
        gap = " " * column.gap if index else ""
        short = (clip if column.end else by_words if column.words else fit)(texts[number], wide)
        made = line(made, gap, padded(short, wide, column.right))
    return clip(trimmed(made), width)


def trimmed(text: Line) -> Line:
    """Without spaces at its end."""
    while text and not text[-1].text.rstrip(" "):
        text = text[:-1]
    return (*text[:-1], Ink(text[-1].text.rstrip(" "), text[-1].style)) if text else text


# Out


def printed(lines: Iterable[Line], color: bool = False) -> str:
    """Returns the text, with a newline at its end."""
    return "".join(
        "".join(_coded(part) if color else part.text for part in trimmed(each)) + "\n" for each in lines
    )


def _coded(part: Ink) -> str:
    return (
        f"\x1b[{CODES[part.style]}m{part.text}\x1b[0m" if part.style and part.text.strip(" ") else part.text
    )


SIGNS, PLAIN = "│┆─┘┐┤└┌├┴┬┼╭╮╯╰═·…", "|:-+++++++++++++=.~"


def in_encoding(text: str, encoding: str) -> str:
    """Returns the picture for a stream, with ASCII characters if its encoding has no box drawing."""
    try:
        SIGNS.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return text.translate(str.maketrans(SIGNS, PLAIN))
    return text
