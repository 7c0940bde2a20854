"""The commands whose answers are part of the contract. They start no run."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.command_server import Done, server
from tests.contract.pinned import COMPANIONS, DATA, MISTAKES


def environment(**more: str) -> dict[str, str]:
    """Returns the environment of the commands, without variables that change what they do."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MESHCTL_")}
    return {**kept, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "NO_COLOR": "1", **more}


@dataclass(frozen=True)
class Call:
    """One meshctl command to run."""

    folder: Path
    words: tuple[str, ...]
    program: str = ""
    """Python source that runs before the command."""
    variables: tuple[tuple[str, str], ...] = ()


def answered(calls: Mapping[str, Call], state: Path) -> dict[str, Done]:
    """Runs commands one after another. `state` is the folder for the user's state."""
    return {
        name: server().call(
            call.folder,
            *call.words,
            env=environment(**{"XDG_STATE_HOME": str(state), **dict(call.variables)}),
            program=call.program,
        )
        for name, call in calls.items()
    }


COMMANDS = (
    "init validate config show-topology launch runs status report watch logs stop restart doctor explain schema "
    "completion agent head"
)
"""The commands whose help is read. A new command is found in `meshctl --help`."""
RUNS = DATA / "runs"
RUN = sorted(RUNS.glob("*/"))[0]
JSON_COMMANDS = {
    "config": "config run.yaml",
    "config --origins": "config keys.yaml vars.length=1024 ~name --origins",
    "doctor": "doctor run.yaml",
    "runs": f"runs {shlex.quote(str(RUNS))}",
    "status": f"status {shlex.quote(str(RUN))}",
    "watch": f"watch {shlex.quote(str(RUN))}",
    "show-topology": "show-topology keys.yaml",
    "show-topology --component": "show-topology keys.yaml --component sampler",
    "show-topology --diff": "show-topology keys.yaml --diff groups.judge.ranks=4",
    "show-topology --dim": "show-topology keys.yaml --dim dp",
    "show-topology --node": "show-topology keys.yaml --node 0",
    "show-topology --rank": "show-topology keys.yaml --rank rollout:0",
    "validate": "validate keys.yaml wrong.yaml",
    "validate --fix": "validate fixable.yaml --fix",
    "validate sarif": "validate keys.yaml wrong.yaml --format sarif",
}
"""Commands that print JSON. One without `--format` gets `--format json`."""
INIT = "init made --device cpu --yes --force"
CHOICES = {
    "completion SHELL": ("completion", "bash fish zsh"),
    "config --format": ("config run.yaml --format", "json text"),
    "init --kind": (f"{INIT} --kind", "distill dpo grpo reward_model sft sft_lora train"),
    "init --layout": (f"{INIT} --layout", "dp fsdp hsdp"),
    "show-topology --format": ("show-topology run.yaml --format", "html json mermaid svg text"),
    "validate --color": ("validate run.yaml --color", "always auto never"),
    "validate --format": ("validate run.yaml --format", "concise github json sarif text"),
}
"""Options with a fixed set of words: the command before the word, and the words that an unknown one is answered with."""

WRONG = """\
groups:
  train: {ranks: 8, device_type: cuda}
components:
  trainer: {_target_: parts.Trainer, group: train, parallel: {dp_size: 2, tp_size: 3}}
pipeline:
  metrics: {cal: trainer.update}
"""
FIXABLE = """\
name: fixable
groups:
  train: {ranks: 2, device_typ: cpu, program: script.py}
"""
CRASH = """\
def broken(*words, **options):
    raise RuntimeError("a library is broken")
json.dumps = broken
"""
"""A bug in meshctl, made from outside: a library function raises what no command expects."""


PLAIN = {
    "done": "validate run.yaml",
    "errors": "validate wrong.yaml",
    "explain": "explain",
    "help": "--help",
    "refused": "launch run.yaml groups.rollout.device_type=npu --dry-run",
    "schema": "schema",
    "unreadable": "validate absent.yaml",
    "usage": "validate run.yaml --no-such-option",
    "version": "--version",
}


def prepared(folder: Path) -> Path:
    """Returns a folder with the recipes of the contract and their modules."""
    shutil.copytree(
        DATA / "recipe", folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", "runs")
    )
    (folder / "wrong.yaml").write_text(WRONG)
    (folder / "fixable.yaml").write_text(FIXABLE)
    return folder


def answers_of(folder: Path) -> dict[str, Done]:
    """Runs all commands that start no run, and returns what they printed."""
    recipes, mistakes = prepared(folder / "recipes"), folder / "mistakes"
    plain = {code: example for code, example in MISTAKES.items() if "arguments" not in example}
    write_files(mistakes, COMPANIONS)
    for code, example in plain.items():
        write_files(mistakes / code, example["files"])
    crash, state = (recipes, ("schema",), CRASH), ("XDG_STATE_HOME", str(folder))
    examples = (f"{code}/recipe.yaml" for code in plain)
    calls = {
        "bug": Call(*crash, (state,)),
        "bug with MESHCTL_DEBUG": Call(*crash, (state, ("MESHCTL_DEBUG", "1"))),
        "mistakes": Call(mistakes, ("validate", *examples, "--format", "json")),
    }
    calls |= {name: Call(recipes, tuple(words.split())) for name, words in PLAIN.items()}
    for name in COMMANDS.split():
        calls[f"help {name}"] = Call(recipes, (name, "--help"))
    for name, words in JSON_COMMANDS.items():
        format = () if "--format" in words else ("--format", "json")
        calls[name] = Call(recipes, (*shlex.split(words), *format))
    for option, (before, _) in CHOICES.items():
        calls[option] = Call(recipes, (*before.split(), "nonesuch"))
    for code in MISTAKES.keys() - plain.keys():
        write_files(folder / code, {**COMPANIONS, **MISTAKES[code]["files"]})
        calls[f"mistake {code}"] = Call(
            folder / code, ("validate", *MISTAKES[code]["arguments"], "--format", "json")
        )
    return answered(calls, folder / "answers")


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
