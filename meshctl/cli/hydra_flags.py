"""Answers command lines that are written for other tools: flags of Hydra, and overrides with dashes."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence

COMMANDS = ("launch", "validate", "config", "show-topology")
CONFIG, ORIGINS, LAUNCH = "config {recipe}", "config {recipe} --origins", "launch {recipe}"
EQUIVALENTS = {
    **{"--cfg": CONFIG, "-c": CONFIG, "--package": CONFIG, "-p": CONFIG},
    **{"--resolve": ORIGINS, "--info": ORIGINS, "-i": ORIGINS},
    **{"--config-name": LAUNCH, "-cn": LAUNCH, "--config-path": LAUNCH, "-cp": LAUNCH},
    **{"--config-dir": LAUNCH, "-cd": LAUNCH, "--run": LAUNCH, "-r": LAUNCH},
    **{"--experimental-rerun": "launch RUN_DIRECTORY", "--hydra-help": "launch --help"},
    **{"--shell-completion": "completion", "-sc": "completion"},
}
"""Flag of Hydra -> the equivalent meshctl command."""
KINDS = ("job", "hydra", "all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
"""The words that can follow `--cfg` and `--info`."""
NAMES, FOLDERS = ("--config-name", "-cn"), ("--config-path", "-cp", "--config-dir", "-cd")
DASHED = re.compile(r"--?((?:cluster|groups|components|pipeline|run|vars)(?:\.[\w-]+)+)(?:=(.*))?", re.DOTALL)
"""An override with dashes before it."""
TAKE_VALUE = (*NAMES, *FOLDERS, "--package", "-p", "--experimental-rerun")


def answer(arguments: Sequence[str]) -> str:
    """Returns the message for a command line that contains flags of Hydra or overrides with dashes, or an
    empty string."""
    if not arguments or arguments[0] not in COMMANDS:
        return ""
    return _flag_of_hydra(arguments) or _dashed_override(arguments)


def _dashed_override(arguments: Sequence[str]) -> str:
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        if found := DASHED.fullmatch(argument):
            value = following if found[2] is None else found[2]
            from meshctl.text.redaction import redact

            return redact(f"overrides are written without dashes: {found[1]}={value or 'VALUE'}")
    return ""


def _flag_of_hydra(arguments: Sequence[str]) -> str:
    given = [argument.partition("=")[0] for argument in arguments]
    flag = next((name for name in given if name in EQUIVALENTS), "")
    if not flag:
        return ""
    import shlex

    from meshctl.text.redaction import redact

    words = _recipe(arguments[1:]) or ["RECIPE"]
    if EQUIVALENTS[flag] == LAUNCH:
        words += [word for word in arguments[1:] if word in ("-m", "--multirun", "--dry-run")]
    same = EQUIVALENTS[flag].format(recipe=shlex.join(words))
    return redact(f"`{flag}` is a flag of Hydra; the same is: meshctl {same}")


def _recipe(arguments: Sequence[str]) -> list[str]:
    """Returns the recipe and the overrides of a command line, without its flags."""
    words, flags = list[str](), dict[str, str]()
    for index, argument in enumerate(arguments):
        previous = arguments[index - 1] if index else ""
        name, _, value = argument.partition("=")
        if previous in TAKE_VALUE:
            flags[previous] = argument
        elif name in EQUIVALENTS:
            flags[name] = value
        elif not argument.startswith("-") and not (previous in EQUIVALENTS and argument in KINDS):
            words.append(argument)
    file = next((flags[name] for name in NAMES if flags.get(name)), "")
    folder = next((flags[name] for name in FOLDERS if flags.get(name)), "")
    if file:
        words.insert(0, posixpath.join(folder, f"{file.removesuffix('.yaml')}.yaml"))
    return words
