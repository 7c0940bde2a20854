"""What is no override, in the words of whoever typed it: where in the text it goes wrong, and what to type
instead.

Hydra's grammar says where a lexer gave up; here is looked at what stands there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from meshctl.diagnostics import Diagnostic, Fix, Span

FORM = "an override is KEY=VALUE; +KEY=VALUE adds a key, ~KEY deletes one"
QUOTE = "quote a value that is not plain: key='a value'"
PAIRS = {"(": ")", "[": "]", "{": "}"}
CASTS = "`int`, `float`, `bool`, `str` and `json_str`"


@dataclass(frozen=True)
class _Why:
    column: int
    """From 0."""
    width: int
    reason: str
    help: str


def wrong(text: str, file: str, error: BaseException | None = None) -> Diagnostic:
    """What to say of a text that is no override; `file` is what it is called in diagnostics."""
    why = next(_reasons(text, error))
    span = Span(file, 1, why.column + 1, max(1, why.width))
    message = f"this is no override: {why.reason}" if why.reason else "this is no override"
    return Diagnostic("MC206", message, span, help=why.help, fixes=tuple(_written_right(text, file)))


def _reasons(text: str, error: BaseException | None) -> Iterator[_Why]:
    """The most telling first; the last always holds."""
    whole = len(text)
    key = text.partition("=")[0]
    if not text.strip():
        yield _Why(0, whole, "it is empty", FORM)
    if text[:1] in "'\"" and text[-1:] == text[:1] and "=" in text:
        yield _Why(
            0, 1, "it is quoted as a whole", f"quote the value alone: {_with_quoted_value(text[1:-1])}"
        )
    if dashes := re.match(r"-+", text):
        yield _Why(0, dashes.end(), "", f"overrides have no dashes: {text[dashes.end() :]}")
    if "=" not in text:
        if colon := re.match(r"[\w.@/-]+ *(: *)\S", text):
            written = f"{text[: colon.start(1)].rstrip()}={text[colon.end(1) :]}"
            yield _Why(colon.start(1), 1, "a `:` is YAML's, here it is a `=`", f"write {written}")
        yield from _empty_part(key)
        yield _Why(0, whole, "it has no `=`", FORM)
    if sign := re.match(r"[+~]*[\w.@/-]+?\s*(:=|!=|==|\+=|-=|\*=)", text):
        yield _Why(
            sign.start(1),
            2,
            f"`{sign[1]}` is no sign of overrides",
            f"write {text[: sign.start(1)].rstrip()}={text[sign.end() :]}",
        )
    if "[" in key:
        yield _Why(key.index("["), 1, "", "items of a list are numbered with dots: key.0=value")
    if gap := re.search(r"\s+", key.lstrip("+~ ").rstrip("\n")):
        start = key.index(gap[0], len(key) - len(key.lstrip("+~ ")))
        yield _Why(
            start,
            len(gap[0]),
            "a key has no spaces in it, nor before its `=`",
            f"write {''.join(key.split())}={text[len(key) + 1 :]}",
        )
    yield from _empty_part(key)
    yield from _in_value(text, len(key) + 1, error)
    column = _gave_up(text, error)
    if column is None:
        yield _Why(0, whole, "", QUOTE)
    else:
        yield _Why(column, 1, f"`{text[column]}` cannot stand here", QUOTE)


def _empty_part(key: str) -> Iterator[_Why]:
    bare = key.lstrip("+~ ")
    before = len(key) - len(bare)
    if not bare.strip():
        yield _Why(0, max(1, len(key)), "it names no key", FORM)
    elif dot := re.search(r"^\.|\.(?=\.)|\.$", bare.rstrip()):
        yield _Why(
            before + dot.start(), 1, "a part of the key is empty", "parts are joined by one dot: run.steps=3"
        )


def _in_value(text: str, start: int, error: BaseException | None) -> Iterator[_Why]:
    if shell := re.search(r"\$\(", text[start:]):
        help = 'in double quotes the shell computes it: "key=$((...))"; another value of the recipe is ${key}'
        yield _Why(start + shell.start(), 2, "it has a `$(` that no shell has seen", help)
    if function := re.search(r"Unknown function '(\w+)'", str(error)):
        column = text.find(f"{function[1]}(", start)
        yield _Why(
            max(start, column),
            len(function[1]),
            f"there is no function `{function[1]}`",
            f"there are {CASTS}; {QUOTE}",
        )
    open, quote = list[int](), -1
    for column in range(start, len(text)):
        character = text[column]
        if quote >= 0:
            quote = -1 if character == text[quote] and text[column - 1] != "\\" else quote
        elif character in "'\"":
            quote = column
        elif character in PAIRS:
            open.append(column)
        elif character in PAIRS.values():
            if not open or PAIRS[text[open[-1]]] != character:
                yield _Why(column, 1, f"this `{character}` closes nothing", QUOTE)
                return
            open.pop()
    if quote >= 0:
        yield _Why(
            quote,
            1,
            f"this {text[quote]} is not closed",
            "close it; a quote that belongs to the value is written \\'",
        )
    elif open:
        yield _Why(
            open[-1],
            1,
            f"this `{text[open[-1]]}` is not closed",
            "close it, or quote the value: key='a value'",
        )


def _gave_up(text: str, error: BaseException | None) -> int | None:
    """Where the grammar did, as far as it says."""
    cause = getattr(error, "__cause__", None)
    token = getattr(cause, "offendingToken", None)
    column = token.column if token is not None else getattr(cause, "startIndex", None)
    return column if isinstance(column, int) and 0 <= column < len(text) else None


def _with_quoted_value(text: str) -> str:
    key, _, value = text.partition("=")
    return f"{key}={value}" if re.fullmatch(r"[\w./:-]+", value) else f"{key}='{value}'"


def _written_right(text: str, file: str) -> Iterator[Fix]:
    """`--key=value` and `key[0]=value` have one meaning."""
    if dashes := re.match(r"--+(?=[A-Za-z_][\w.@/-]*=)", text):
        yield Fix(Span(file, 1, 1, dashes.end()), dashes[0], "")
    elif re.fullmatch(r"[\w.]+(\[\d+\])+(\.\w+|\[\d+\])*", text.partition("=")[0]):
        for item in re.finditer(r"\[(\d+)\]", text.partition("=")[0]):
            yield Fix(Span(file, 1, item.start() + 1, len(item[0])), item[0], f".{item[1]}")
