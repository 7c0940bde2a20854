"""Answers command lines that are written for Hydra, that a shell has split at spaces, or that contain
typographic dashes.

launch --config-name recipe                a flag of Hydra
launch --run.steps=3 recipe.yaml           overrides have no dashes
launch my recipe.yaml                      quote the name of a file that contains spaces
launch recipe.yaml run.steps = 3           an override is one word
launch recipe.yaml run.show=[a.b, c.d]     quote an override that contains spaces
launch run.steps=3 recipe.yaml             the recipe comes first
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import zip_longest

COMMANDS = ("launch", "validate", "config", "show-topology", "doctor")
HYDRA = {
    **dict.fromkeys(("--config-name", "-cn", "--config-path", "-cp", "--config-dir", "-cd"), "launch RECIPE"),
    **{
        "--run": "launch RECIPE",
        "--experimental-rerun": "launch RUN_DIRECTORY",
        "--hydra-help": "launch --help",
    },
    **dict.fromkeys(("--shell-completion", "-sc"), "completion"),
}
"""Flag of Hydra -> the equivalent meshctl command."""
DASHED = re.compile(r"--?((?:cluster|groups|components|pipeline|run|vars)(?:\.[\w-]+)+)(?:=(.*))?", re.DOTALL)
"""An override with dashes before it."""
DASHES = re.compile("[\u2010-\u2015\u2212]{1,2}-?(?=[A-Za-z])")
KEY = r"[+~]*[A-Za-z_][\w@/-]*(\.[\w@/-]+)*"


def answer(arguments: Sequence[str]) -> str:
    """Returns the message for a command line whose words are not the intended ones; empty for others."""
    if not arguments or arguments[0] not in COMMANDS:
        return ""
    found = next(_problems(arguments[0], arguments[1:]), "")
    if not found:
        return ""
    from meshctl.text.redaction import redact

    return redact(found)


def _problems(command: str, arguments: Sequence[str]) -> Iterator[str]:
    for argument, following in zip_longest(arguments, arguments[1:], fillvalue="VALUE"):
        name = argument.partition("=")[0]
        if name in HYDRA and command != "doctor":
            yield f"`{name}` is a flag of Hydra; the same is: meshctl {HYDRA[name]}"
        if found := DASHED.fullmatch(argument):
            value = following if found[2] is None else found[2]
            yield f"overrides are written without dashes: {found[1]}={value}"
        if dash := DASHES.match(argument):
            is_long = len(dash[0]) > 1 or len(argument) > 2
            right = f"--{argument[dash.end() :]}" if is_long else f"-{argument[1:]}"
            yield f"`{argument}` begins with a typographic dash: write {right}"
    # The word after an option may be its value.
    pairs = zip(["", *arguments], arguments, strict=False)
    words = [word for before, word in pairs if not before.startswith("-") and not word.startswith("-")]
    yield from _around_equals(words)
    yield from _split(words)
    begins_with_override = words and re.match(f"{KEY}=", words[0]) and not os.path.lexists(words[0])
    recipe = next((word for word in words[1:] if os.path.isfile(word)), "")
    if begins_with_override and recipe and command != "validate":
        whole = shlex.join([recipe, *(word for word in words if word != recipe)])
        yield f"the recipe comes before its overrides: meshctl {command} {whole}"


def _around_equals(words: Sequence[str]) -> Iterator[str]:
    for index, word in enumerate(words[:-1]):
        following = words[index + 1]
        if re.fullmatch(KEY, word) and "." in word and following.startswith("="):
            value = following[1:] or next(iter(words[index + 2 :]), "")
        elif re.fullmatch(f"{KEY}=", word) and "=" not in following and not os.path.lexists(following):
            word, value = word[:-1], following
        else:
            continue
        yield f"an override is one word: write {shlex.quote(f'{word}={value}')}"


def _split(words: Sequence[str]) -> Iterator[str]:
    """Yields what to write for neighbouring words that are one override or the name of one file."""
    for start in range(len(words)):
        for stop in range(start + 2, len(words) + 1):
            whole = " ".join(words[start:stop])
            if "=" in words[start] and _open_brackets(words[start]) > 0 and not _open_brackets(whole):
                yield f"quote an override that contains spaces: {shlex.quote(whole)}"
            if not os.path.lexists(words[start]) and os.path.isfile(whole):
                yield f"quote the name of a file that contains spaces: {shlex.quote(whole)}"


def _open_brackets(text: str) -> int:
    return sum(map(text.count, "([{")) - sum(map(text.count, ")]}"))
