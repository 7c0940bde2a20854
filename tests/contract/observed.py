"""The sections of the contract, read from the package itself, from the answers of commands and from runs."""

from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import meshctl
from tests.command_server import Done
from tests.contract.answers import CHOICES, COMMANDS, JSON_COMMANDS
from tests.contract.launches import Run
from tests.contract.pinned import DATA, Json
from tests.log_text import output_of
from tests.paths import PACKAGE

RETIRED = ("MC104", "MC561")
"""Codes that the design allows to be retired."""
GROUPS = "rollout|train|script"


@dataclass(frozen=True)
class Found:
    answers: Mapping[str, Done]
    runs: Mapping[str, Run]


def recipe_sections(found: Found) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Reads the keys of all mappings, and the words that their values may be, from `meshctl schema`."""
    schema = json.loads(found.answers["schema"].stdout)
    keys: dict[str, set[str]] = {}
    words: dict[str, set[str]] = {}

    def walk(node: Json, path: str, above: tuple[str, ...]) -> None:
        if not isinstance(node, dict):
            return
        if (reference := node.get("$ref")) and reference not in above:
            walk(schema["$defs"][reference.rpartition("/")[2]], path, (*above, reference))
        for part in (*node.get("anyOf", ()), node.get("if"), node.get("then"), node.get("else")):
            walk(part, path, above)
        if isinstance(node.get("const"), str):
            words.setdefault(path, set()).add(node["const"])
        for key, value in node.get("properties", {}).items():
            if "if" not in above and value is not False and (path or node is schema):
                keys.setdefault(path or "(top)", set()).add(key)
            walk(value, f"{path}.{key}".lstrip("."), above)
        for name, mark in (("additionalProperties", ".*"), ("items", "[]")):
            walk(node.get(name), f"{path}{mark}", above)
        for value in node.get("patternProperties", {}).values():
            walk(value, f"{path}.layout" if path.startswith("defaults") else f"{path}.*", above)

    walk(schema, "", ())
    return as_lists(keys), as_lists(words)


def as_lists(sets: Mapping[str, set[str]]) -> dict[str, list[str]]:
    return {name: sorted(entries) for name, entries in sorted(sets.items())}


def recipe_keys(found: Found) -> Json:
    return recipe_sections(found)[0]


def recipe_words(found: Found) -> Json:
    return recipe_sections(found)[1]


def codes(found: Found) -> Json:
    """Reads severity and title of each code from `meshctl explain`."""
    entries = re.findall(
        r"^  (MC\d{3})  (?:(warning|note): )?(.+)$", found.answers["explain"].stdout, re.MULTILINE
    )
    return {
        code: f"{severity or 'error'}: {title}" for code, severity, title in entries if code not in RETIRED
    }


def commands(found: Found) -> Json:
    """Reads commands, their arguments and their options from their help."""
    listed = found.answers["help"].stdout.partition("Commands:")[2]
    names = re.findall(r"^  ([a-z-]+)  ", listed, re.MULTILINE)
    texts = {"(meshctl)": "help", **{name: f"help {name}" for name in names if name in COMMANDS.split()}}
    return {name: help_of(found.answers[key].stdout) for name, key in texts.items()}


def help_of(text: str) -> dict[str, list[str]]:
    usage = text.partition("[OPTIONS]")[2].partition("\n\n")[0]
    options = re.findall(
        r"^  (-\w), (--[a-z-]+)|^ +(--[a-z-]+)", text.partition("\nOptions:")[2], re.MULTILINE
    )
    return {
        "arguments": sorted(set(re.findall(r"[A-Z]+(?:=[A-Z]+)?", usage))),
        "options": sorted({option for each in options for option in each if option}),
    }


def choices(found: Found) -> Json:
    return {
        option: [word for word in words.split() if f"`{word}`" in found.answers[option].stderr]
        for option, (_, words) in CHOICES.items()
    }


def exit_codes(found: Found) -> Json:
    answers, runs = found.answers, found.runs
    return {
        "done": answers["done"].returncode,
        "the recipe has errors": answers["errors"].returncode,
        "wrong usage": answers["usage"].returncode,
        "the recipe cannot be read": answers["unreadable"].returncode,
        "the environment refuses the launch": answers["refused"].returncode,
        "the run failed": runs["failed"].code,
        "a bug in meshctl": answers["bug"].returncode,
        "interrupted by SIGINT": runs["SIGINT"].code,
        "interrupted by SIGTERM": runs["replayed"].code,
    }


def lines(found: Found) -> Json:
    """Reads the lines of the standard error that scripts look for."""
    failure = found.runs["failed"].stderr.partition("\n")[0]
    form = r"error: train:0 failed in stage metrics, step 5: ConnectionResetError: the batch is spoiled"
    bug = found.answers["bug"].stderr
    debug = found.answers["bug with MESHCTL_DEBUG"].stderr
    return {
        "a failure": "error: GROUP:RANK failed in stage STAGE, step N: TYPE: TEXT"
        if failure == form
        else failure,
        "a bug": bug.partition("]")[0] + "]",
        "a bug has a traceback where MESHCTL_DEBUG is 1": "Traceback" in debug and "Traceback" not in bug,
        "a log": "log: PATH"
        if re.search(r"^log: /.*/logs/train/0\.log$", found.runs["failed"].stderr, re.M)
        else "",
    }


def process_titles(found: Found) -> Json:
    forms = {
        rf"mesh ({GROUPS})/\d+": "mesh GROUP/NODE",
        r"(rollout|train):\d+": "GROUP:RANK",
        "meshctl-fork": "meshctl-fork",
        "meshctl-logs": "meshctl-logs",
    }
    titles = found.runs["SIGINT"].titles
    return sorted(
        {form for title in titles for pattern, form in forms.items() if re.fullmatch(pattern, title)}
    )


def run_directory(found: Found) -> Json:
    """Lists the paths of a run directory, with the words that the recipe gives replaced."""
    forms = [
        (rf"events/({GROUPS})-\d+\.jsonl", "events/GROUP-RANK.jsonl"),
        (rf"events/agent-({GROUPS})-\d+\.jsonl", "events/agent-GROUP-NODE.jsonl"),
        (rf"logs/({GROUPS})/\d+\.log", "logs/GROUP/RANK.log"),
        (rf"logs/({GROUPS})/agent-\d+\.log", "logs/GROUP/agent-NODE.log"),
        (r"checkpoints/latest", "checkpoints/latest -> step-N"),
        (rf"checkpoints/step-\d+/({GROUPS})\.json", "checkpoints/step-N/GROUP.json"),
        (r"checkpoints/step-\d+/trainer/.*", "checkpoints/step-N/COMPONENT/"),
        (r"checkpoints/step-\d+/checkpoint\.manifest\.json", "checkpoints/step-N/checkpoint.manifest.json"),
        (r"recorded/rollouts/step-\d+/\d+-of-\d+\.safetensors", "recorded/STAGE/step-N/K-of-M.safetensors"),
        (r"(recipe\.yaml|plan\.json|start\.json|state\.json|metrics\.jsonl|launches\.jsonl)", ""),
        (r"(events/launcher\.jsonl|logs/fork-server\.log)", ""),
    ]
    path = found.runs["SIGINT"].path
    entries = set()
    for file in path.rglob("*"):
        name = file.relative_to(path).as_posix()
        form = next((form or name for pattern, form in forms if re.fullmatch(pattern, name)), "")
        is_link = re.fullmatch(r"step-\d+", os.readlink(file)) is not None if file.is_symlink() else False
        if form and (file.is_file() or is_link) and ("->" not in form or is_link):
            entries.add(form)
    return sorted(entries)


def kind_of(value: Json) -> str:
    kinds = {bool: "boolean", int: "number", float: "number", str: "text", list: "list", dict: "mapping"}
    return kinds.get(type(value), "null")


def events(found: Found) -> Json:
    """Lists the fields of the values of events. Fields that all events have stand under `(all)`."""
    every = [event for each in found.runs.values() for event in each.events]
    fields: dict[str, set[str]] = {"(all)": set.intersection(*(set(event) for event in every))}
    for event in every:
        known = fields.setdefault(event["name"], set())
        known |= {f"{key}: {kind_of(value)}" for key, value in event["value"].items()}
    return as_lists(fields)


def metrics(found: Found) -> Json:
    return sorted({key for row in found.runs["SIGINT"].metrics for key in row})


def shape(value: Json, path: str = "") -> set[str]:
    """Returns the paths of a JSON value, each with the kind of what stands there."""
    if isinstance(value, dict):
        return {entry for key, item in value.items() for entry in shape(item, f"{path}.{key}".lstrip("."))}
    if isinstance(value, list):
        return {entry for item in value for entry in shape(item, f"{path}[]")}
    return {f"{path}: {kind_of(value)}"}


def json_keys(found: Found) -> Json:
    """Lists the keys of the commands that print JSON. A command that prints none is left out."""
    texts = {name: found.answers[name].stdout for name in JSON_COMMANDS}
    return {name: sorted(shape(json.loads(text))) for name, text in texts.items() if text.startswith("{")}


# The package itself

OPERATORS = ("__contains__", "__eq__", "__getitem__", "__hash__", "__iter__", "__len__")
RUN = next((DATA / "runs").glob("*/"))
"""A run of an earlier version."""
EXAMPLES: dict[str, Callable[[], object]] = {
    "Batch": lambda: meshctl.Batch({}),
    "Collective": lambda: meshctl.Collective(),
    "Component": lambda: meshctl.Component(),
    "DeviceMesh": lambda: meshctl.DeviceMesh.from_sizes(),
    "OpenedRun": lambda: meshctl.open_run(RUN),
    "Ragged": lambda: meshctl.Ragged.of([]),
}
INTERNAL_PARAMETERS = ("Batch.concat(cat)", "Batch(most)")
INTERNAL_CONSTRUCTORS = ("DeviceMesh",)
"""Users make a mesh with `DeviceMesh.from_sizes`."""


def public_names(_: Found) -> Json:
    return sorted(meshctl.__all__)


def public_members(_: Found) -> Json:
    """Lists the members of objects and not of classes, so that attributes are among them."""
    found = {}
    for name, example in EXAMPLES.items():
        made = example()
        operators = [operator for operator in OPERATORS if operator in vars(type(made))]
        found[name] = sorted([*operators, *(member for member in dir(made) if not member.startswith("_"))])
    return found


def public_bases(_: Found) -> Json:
    """Lists the built-in exceptions by which a caller may catch those of meshctl."""
    errors = [name for name in meshctl.__all__ if name.endswith("Error")]
    return {name: [base.__name__ for base in getattr(meshctl, name).__mro__[1:-1]] for name in errors}


def keywords(_: Found) -> Json:
    """Lists the parameters that callers pass by name: those with a default, and keyword-only ones."""
    callables: dict[str, Any] = {"endpoint": meshctl.endpoint}
    for name in EXAMPLES:
        cls = getattr(meshctl, name)
        if name not in INTERNAL_CONSTRUCTORS:
            callables[name] = cls
        members = [
            member for member in dir(cls) if not member.startswith("_") and callable(getattr(cls, member))
        ]
        callables |= {f"{name}.{member}": getattr(cls, member) for member in members}
    found = {}
    for name, each in callables.items():
        named = [
            parameter.name
            for parameter in inspect.signature(each).parameters.values()
            if parameter.kind is parameter.KEYWORD_ONLY
            or (
                parameter.kind is parameter.POSITIONAL_OR_KEYWORD and parameter.default is not parameter.empty
            )
        ]
        if kept := sorted(
            parameter for parameter in named if f"{name}({parameter})" not in INTERNAL_PARAMETERS
        ):
            found[name] = kept
    return found


def variables(found: Found) -> Json:
    """Lists the variables that the source names, and those that a program receives."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))]
    named = {name for text in texts for name in re.findall(r"\bMESHCTL_[A-Z_]*[A-Z]\b", text)}
    received = json.loads(output_of(found.runs["SIGINT"].path / "logs" / "script" / "0.log"))
    return {
        "known to meshctl": sorted(named),
        "received by programs": received["names"],
        "run_dir is filled in arguments": received["run_dir_is_filled"],
    }
