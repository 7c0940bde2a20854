"""The English of messages: counts with their noun, lists of quoted words, and "did you mean".

counted(2, "rank")                     "2 ranks"
listed(["a", "b", "c"])                "`a`, `b` and `c`"
did_you_mean("trian", ["train"])       "did you mean `train`?"
did_you_mean("x", ["train", "test"])   "available: `train` and `test`"
abbreviated("a_long_name", 7)          "a_lo..."
in_units(7200.0)                       "2h"
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches

MAX_LISTED = 12
"""Maximum number of words in a list of a message. A longer list ends with the number of the other words."""
MAX_LETTERS = 80
"""Maximum length in characters of a word that is compared with others, and to which messages cut it."""
MIN_SIMILARITY = 0.6
"""The lowest ratio of `difflib.SequenceMatcher` at which two words are similar."""
MAX_MEANT = 3
"""Maximum number of equally similar options that are proposed for a word."""
HOUR_S, MINUTE_S = 3600.0, 60.0
MAX_COMPARED = 1000
"""Maximum number of options with which a word is compared."""


def abbreviated(text: str, length: int = MAX_LETTERS) -> str:
    """Returns a text of at most `length` characters, which ends with `...` if it was cut."""
    return text if len(text) <= length else f"{text[: length - 3]}..."


def counted(count: int, noun: str) -> str:
    """Returns a count with its noun: `1 rank`, `2 ranks`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def in_units(seconds: float) -> str:
    """Returns a time as recipes write it: 90s, 30m or 2h."""
    for unit, length in (("h", HOUR_S), ("m", MINUTE_S)):
        if seconds >= length and not seconds % length:
            return f"{seconds / length:g}{unit}"
    return f"{seconds:g}s"


def listed(words: Iterable[str], conjunction: str = "and") -> str:
    """Returns quoted words as an English list; a long list ends with the number of the remaining words."""
    return in_words([f"`{word}`" for word in words], conjunction)


def in_words(quoted: list[str], conjunction: str = "and") -> str:
    """Returns texts as an English list; a long list ends with the number of the remaining texts."""
    if len(quoted) > MAX_LISTED:
        remaining = len(quoted) - MAX_LISTED + 1
        return f"{', '.join(quoted[: MAX_LISTED - 1])} {conjunction} {remaining} more"
    if len(quoted) < 2:
        return "".join(quoted)
    return f"{', '.join(quoted[:-1])} {conjunction} {quoted[-1]}"


def nearest(word: str, options: Iterable[str]) -> str:
    """Returns the option that is spelled most like a word, regardless of case; empty if none is similar."""
    return next(iter(all_nearest(word, options)), "")


def all_nearest(word: str, options: Iterable[str]) -> list[str]:
    """Returns the options that are spelled most like a word, regardless of case; several if they are equally
    similar, and none of very many."""
    by_lower_case = {option.lower(): option for option in reversed(list(options))}
    if len(word) > MAX_LETTERS or len(by_lower_case) > MAX_COMPARED:
        return []
    close = get_close_matches(word.lower(), by_lower_case, n=MAX_MEANT, cutoff=MIN_SIMILARITY)
    ratios = [SequenceMatcher(None, option, word.lower()).ratio() for option in close]
    return [by_lower_case[option] for option, ratio in zip(close, ratios, strict=True) if ratio == ratios[0]]


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """Returns a help text that names the options nearest to an unknown word, or else all options; empty
    without options."""
    options = list(options)
    if word and (meant := all_nearest(word, options)):
        return f"did you mean {listed(meant, 'or')}?"
    if not options:
        return ""
    return f"available: {listed(options)}"


def size(count: float) -> str:
    """Returns bytes with decimal units."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= 1000
    return f"{count:.3g} TB"
