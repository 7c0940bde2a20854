"""Answers command lines that a shell has split at spaces, or that contain typographic dashes.

launch my recipe.yaml                      quote the name of a file that contains spaces
launch recipe.yaml run.steps = 3           an override is one word
launch recipe.yaml run.show=[a.b, c.d]     quote an override that contains spaces
launch run.steps=3 recipe.yaml             the recipe comes first
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

COMMANDS = ("launch", "validate", "config", "show-topology", "doctor")
DASHES = re.compile("[\u2010-\u2015\u2212]{1,2}-?(?=[A-Za-z])")
KEY = r"[+~]*[A-Za-z_][\w@/-]*(\.[\w@/-]+)*"


def answer_split(arguments: Sequence[str]) -> str:
    """Returns the message for a command line whose words are not the intended ones, or an empty string."""
    if not arguments or arguments[0] not in COMMANDS:
        return ""
    found = next(_problems(arguments[0], arguments[1:]), "")
    if not found:
        return ""
    from meshctl.text.redaction import redact

    return redact(found)


def _problems(command: str, arguments: Sequence[str]) -> Iterator[str]:
    for argument in arguments:
        if dash := DASHES.match(argument):
            right = (
                f"--{argument[dash.end() :]}" if len(dash[0]) > 1 or len(argument) > 2 else f"-{argument[1:]}"
            )
            yield f"`{argument}` begins with a typographic dash: write {right}"
    words = _without_options(arguments)
    yield from _around_equals(words)
    yield from _in_brackets(words)
    yield from _names(words)
    if command != "validate":
        yield from _overrides_first(command, words)


def _without_options(arguments: Sequence[str]) -> list[str]:
    """Returns the arguments without options and without the word after each option, perhaps its value."""
    pairs = zip(["", *arguments], arguments, strict=False)
    return [word for before, word in pairs if not before.startswith("-") and not word.startswith("-")]


def _around_equals(words: Sequence[str]) -> Iterator[str]:
    for index, word in enumerate(words[:-1]):
        following = words[index + 1]
        if re.fullmatch(KEY, word) and "." in word and following.startswith("="):
            value = following[1:] or next(iter(words[index + 2 :]), "")
        elif re.fullmatch(f"{KEY}=", word) and "=" not in following and not os.path.lexists(following):
            word, value = word[:-1], following
        else:
            continue
        yield f"an override is one word: write {_quoted(f'{word}={value}')}"


def _in_brackets(words: Sequence[str]) -> Iterator[str]:
    for index, word in enumerate(words):
        if "=" in word and _open_brackets(word) > 0:
            for stop in range(index + 2, len(words) + 1):
                whole = " ".join(words[index:stop])
                if _open_brackets(whole) == 0:
                    yield f"quote an override that contains spaces: {_quoted(whole)}"


def _names(words: Sequence[str]) -> Iterator[str]:
    for index, word in enumerate(words):
        for stop in range(index + 2, len(words) + 1):
            whole = " ".join(words[index:stop])
            if not os.path.lexists(word) and os.path.isfile(whole):
                yield f"quote the name of a file that contains spaces: {_quoted(whole)}"


def _overrides_first(command: str, words: Sequence[str]) -> Iterator[str]:
    begins_with_override = words and re.match(f"{KEY}=", words[0]) and not os.path.lexists(words[0])
    recipe = next((word for word in words[1:] if os.path.isfile(word)), "") if begins_with_override else ""
    if recipe:
        others = " ".join(_quoted(word) for word in words if word != recipe)
        yield f"the recipe comes before its overrides: meshctl {command} {_quoted(recipe)} {others}"


def _open_brackets(text: str) -> int:
    return sum(map(text.count, "([{")) - sum(map(text.count, ")]}"))


def _quoted(word: str) -> str:
    import shlex

    return shlex.quote(word)
