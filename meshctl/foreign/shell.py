"""Reads the command lines of a shell script as keys: overrides of Hydra, and options.

    python3 -m verl.trainer.main_ppo actor.lr=1e-6     `actor.lr`
    trl sft --learning_rate 1e-5 --packing             `learning_rate`, and `packing` with the value true
    accelerate launch --debug train.py --lr 1          `lr` is also in `training_script_args`

Assignments of literals in the same file are put in for variables, the literal of `${N:-8}`, `~` for `$HOME`,
and numbers for `$((1024 * 2))`. Another expansion makes a value unknown. Nothing is executed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from meshctl.diagnostics import Diagnostic, Span
from meshctl.foreign.formula import Formula
from meshctl.foreign.model import Given, Unreadable
from meshctl.recipe.compose import yaml_reader
from meshctl.recipe.compose.yaml_scalars import scalar
from meshctl.recipe.compose.yaml_tree import plain

NESTED = r"\$\((?:[^()]|\([^()]*\)|\((?:[^()]|\([^()]*\))*\))*\)"
"""A command or an arithmetic expression in a word of a shell."""
WORD = re.compile(rf"""(?:{NESTED}|[^\s"'\\#;&|()<>]|\\.|"(?:[^"\\]|\\.)*"|'[^']*'|(?<=\S)\#)+""", re.DOTALL)
"""A word of a shell."""
ASSIGNMENT = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=(.*)", re.DOTALL)
BRACES = r"\$\{(?:[^{}]|\$\{[^{}]*\})*\}"
VARIABLE = re.compile(rf"\$\{{([A-Za-z_]\w*)\}}|\$([A-Za-z_]\w*)|{NESTED}|{BRACES}|\$\S")
USUAL = re.compile(r"\$\{([A-Za-z_]\w*):?-(.*)\}", re.DOTALL)
"""A variable with the value that it has if nothing else is assigned."""
QUOTED = re.compile(r"(\$\{\w+:?-)\"([^\"]*)\"\}")
OVERRIDE = re.compile(r"(\+{0,2}|~)([A-Za-z_][\w./@-]*)=(.*)", re.DOTALL)
OPTION = re.compile(r"--([A-Za-z][\w.-]*)(?:=(.*))?", re.DOTALL)
LAUNCHERS = ("accelerate launch", "accelerate-launch", "accelerate.commands.launch")
"""The ends of commands that start a script, whose own words follow it."""
SWITCHES = {
    *("cpu", "multi_gpu", "tpu", "use_deepspeed", "use_fsdp", "use_parallelism_config", "use_megatron_lm"),
    *("enable_cpu_affinity", "dynamo_use_fullgraph", "dynamo_use_dynamic", "same_network", "module", "debug"),
    *("dynamo_use_regional_compilation", "no_python", "tpu_cluster", "no_tpu_cluster", "tpu_use_sudo"),
    *("quiet", "downcast_bf16", "fp8_use_autocast_during_eval"),
}
"""Options of these commands that have no value."""
ALL = ("$@", "$*")
"""The arguments of the script itself."""
SCRIPT_ARGS = "training_script_args"
SHORT = {"-m": "module", "-q": "quiet"}


class _Word(NamedTuple):
    text: str
    unknown: str
    span: Span
    raw: str


def read_shell(text: str, name: str) -> tuple[list[Given], list[str]]:
    """Returns the keys of overrides and options of all commands, and the other words. Assignments of literals
    are put in for variables; another expansion makes a value unknown. Raises `Unreadable`."""
    commands, variables = [list[_Word]()], {"HOME": "~"}
    for line, column, raw, is_first, depth in _words(text):
        if is_first and commands[-1]:
            commands.append([])
        assigned = ASSIGNMENT.fullmatch(raw) if is_first else None
        value, unknown = _expanded(assigned[2] if assigned else raw, variables)
        span = Span(name, line, column, len(raw.splitlines()[0]))
        is_key = OPTION.fullmatch(raw) or (OVERRIDE.fullmatch(raw) and "." in raw.partition("=")[0])
        if is_first and not depth and is_key:
            reason = "begins a command: the line before it is a comment, or has no `\\` at its end"
            raise Unreadable(Diagnostic("MC800", f"`{raw}` {reason}", span))
        if assigned is None:
            commands[-1].append(_Word(value, unknown, span, raw))
        elif unknown:
            variables.pop(assigned[1], None)
        else:
            variables[assigned[1]] = value
    found = [_of_command(command) for command in commands]
    return [one for given, _ in found for one in given], [word for _, words in found for word in words]


def _of_command(command: Sequence[_Word]) -> tuple[list[Given], list[str]]:
    """Returns the keys of a command, and its other words."""
    read = _Command(command)
    return [replace(one, command=" ".join(read.words)) for one in read.given], read.words


class _Command:
    """Reads the words of one command. An option has the words behind it as its value, a list if they are
    several, up to the next option, override or Python file."""

    def __init__(self, command: Sequence[_Word]) -> None:
        self.given, self.words = list[Given](), list[str]()
        self._option: _Word | None = None
        self._values = list[_Word]()
        for number, word in enumerate(command):
            named, override = OPTION.fullmatch(word.text), OVERRIDE.fullmatch(word.text)
            if named or (self._is_launcher and word.text in SHORT):
                self._begin(word, named)
            elif override and not (self._takes(word) and not OVERRIDE.fullmatch(word.raw)):
                self._end()
                self._add_override(word, override)
            elif self._takes(word):
                self._values.append(word)
            elif word.text:
                self._end()
                if self._is_launcher:
                    self._add_script(word, command[number + 1 :])
                    break
                self.words.append(word.text)
        self._end()

    @property
    def _is_launcher(self) -> bool:
        return " ".join(self.words[-2:]).endswith(LAUNCHERS)

    def _takes(self, word: _Word) -> bool:
        """Returns whether a word is a value of the option before it."""
        if self._option is None or word.text.endswith(".py") or word.text in ALL:
            return False
        return not self._is_launcher or not (self._values or self._option.text in SWITCHES)

    def _begin(self, word: _Word, named: re.Match[str] | None) -> None:
        self._end()
        self._option = word._replace(text=named[1].replace("-", "_") if named else SHORT[word.text])
        if named and named[2] is not None:
            self._values = [word._replace(text=named[2])]
            self._end()

    def _end(self) -> None:
        """Ends the value of an option."""
        if self._option is not None:
            values = [_value(one.text) for one in self._values]
            value = True if not values else values[0] if len(values) == 1 else values
            first = self._values[0] if self._values else self._option
            unknown = next((one.unknown for one in self._values if one.unknown), "")
            self.given.extend(_given(self._option.text, value, first.span, unknown))
        self._option, self._values = None, []

    def _add_override(self, word: _Word, override: re.Match[str]) -> None:
        begin, span = len(word.raw.partition("=")[0]) + 1, word.span
        place = Span(span.file, span.line, span.column + begin, max(1, span.width - begin))
        self.given.extend(_given(override[2], _value(override[3]), place, word.unknown))

    def _add_script(self, script: _Word, rest: Sequence[_Word]) -> None:
        """Adds the script that the command starts, and its own words, also as keys."""
        self.given.append(Given("training_script", script.text, script.span, script.unknown))
        if rest:
            self.given.append(Given(SCRIPT_ARGS, [one.text for one in rest], rest[0].span))
        own, further = _of_command(rest)
        self.given += [replace(one, is_of_script=True) for one in own]
        self.words += [script.text, *further]


def _given(key: str, value: Any, span: Span, unknown: str) -> Iterator[Given]:
    """Yields a key, or those of a mapping below it."""
    if isinstance(value, Mapping) and value and not unknown:
        for name, item in value.items():
            yield from _given(f"{key}.{name}", item, span, "")
    else:
        yield Given(key, value, span, unknown)


def _words(text: str) -> Iterator[tuple[int, int, str, bool, int]]:
    """Yields (line, column, word, whether it is the first of a command, depth in parentheses) of a script."""
    line_starts = [0, *(found.end() for found in re.finditer("\n", text))]
    at, is_first, line, depth = 0, True, 1, 0
    while at < len(text):
        while line < len(line_starts) and line_starts[line] <= at:
            line += 1
        if text.startswith("\\\n", at):
            at += 2
        elif text[at] == "\n" or text[at] in ";&|()":
            depth = max(0, depth + {"(": 1, ")": -1}.get(text[at], 0))
            at, is_first = at + 1, True
        elif text[at] == "#":
            at = text.find("\n", at)
            at = len(text) if at < 0 else at
        elif (found := WORD.match(text, at)) and found.end() > at:
            is_assignment = is_first and bool(ASSIGNMENT.fullmatch(found[0]))
            yield line, at - line_starts[line - 1] + 1, found[0], is_first, depth
            at, is_first = found.end(), is_assignment or (is_first and found[0] == "export")
        else:
            at += 1


def _expanded(raw: str, variables: Mapping[str, str]) -> tuple[str, str]:
    """Returns a word without quotes and with its variables, and the first expansion that is not known."""
    unknown = ""

    def known(found: re.Match[str]) -> str:
        nonlocal unknown
        name = found[1] or found[2]
        if name in variables:
            return variables[name]
        usual, number = USUAL.fullmatch(found[0]), _computed(found[0], variables)
        value, rest = _expanded(usual[2], variables) if usual else (str(number), found[0] * (number is None))
        if not rest:
            return variables.get(usual[1], value) if usual else value
        unknown = unknown or found[0]
        return found[0]

    pieces = list[str]()
    raw = QUOTED.sub(r"\1\2}", raw)
    for piece in re.findall(r"""'[^']*'|"(?:[^"\\]|\\.)*"|(?:[^'"\\]|\\.)+""", raw, re.DOTALL):
        if piece[0] == "'":
            pieces.append(piece[1:-1])
            continue
        inner = piece[1:-1] if piece[0] == '"' else piece
        inner = VARIABLE.sub(known, inner)
        unknown = unknown or ("`...`" if "`" in inner else "")
        pieces.append(re.sub(r"\\\n|\\(.)", lambda found: found[1] or "", inner, flags=re.DOTALL))
    return "".join(pieces), unknown


def _computed(text: str, variables: Mapping[str, str]) -> Any:
    """Returns the number of `$((...))`; None for something else."""
    inner = re.sub(r"[${}]", "", text[3:-2]).replace("/", "//") if text.startswith("$((") else "null"
    with suppress(ValueError):
        return Formula(inner)({name: scalar(value) for name, value in variables.items()})


def _value(text: str) -> Any:
    """Returns the value of a word, as YAML and Hydra read it."""
    if text[:1] in "[{" and text[:1]:
        parsed = yaml_reader.read(text.encode(), "")
        return plain(parsed.tree) if parsed.tree is not None and not parsed.found else text
    return scalar(text)
