"""The contract with users and scripts: `tests/contract/contract.json` lists what changes only by addition.

Each section of the contract names what one interface offers: recipe keys, diagnostic codes, commands, members
of public classes, files of a run directory, fields of events, keys of JSON output. The test collects the
same sections from the present code, as far as possible from outside (the command line, real runs, `import
meshctl`), and fails when an entry of the contract is missing. An entry that is new does not fail it. The
following command adds the new entries to the contract:

    python -m tests.test_contract

`tests/contract/mistakes.yaml` fixes the meaning of diagnostic codes, and `tests/contract/runs` contains run
directories that earlier versions wrote.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml

import meshctl

ROOT = Path(__file__).parent.parent
PACKAGE = Path(str(meshctl.__file__)).parent
DATA = Path(__file__).parent / "contract"
CONTRACT_FILE = DATA / "contract.json"
CONTRACT: dict[str, Any] = json.loads(CONTRACT_FILE.read_text()) if CONTRACT_FILE.exists() else {}
MISTAKES: dict[str, Any] = yaml.safe_load((DATA / "mistakes.yaml").read_text())
COMPANIONS: dict[str, str] = MISTAKES.pop("companions")

RETIRED = ("MC561",)
"""Codes that the design allows to be retired."""
UNFINISHED = ("MC104",)
"""MC104 reports keys that are not supported yet. Its example becomes correct once the key is supported."""
GROUPS = "rollout|train|script"
TIMEOUT_S = 120
WAIT_S = 110
PARALLEL = 2

Json = Any
Done = subprocess.CompletedProcess[str]


# Comparison


def missing(pinned: Json, found: Json, place: str = "") -> Iterator[str]:
    """Yields each entry of the contract that was not found. Lists are compared as sets."""
    if isinstance(pinned, dict):
        for key, value in pinned.items():
            inner = f"{place}.{key}" if place else str(key)
            if not isinstance(found, dict) or key not in found:
                yield inner
            else:
                yield from missing(value, found[key], inner)
    elif isinstance(pinned, list):
        yield from (
            f"{place}: {entry}" for entry in pinned if not isinstance(found, list) or entry not in found
        )
    elif pinned != found:
        yield f"{place}: {pinned!r} is now {found!r}"


def extended(pinned: Json, found: Json) -> Json:
    """Returns the contract with the new entries added."""
    if isinstance(pinned, dict) and isinstance(found, dict):
        keys = sorted({*pinned, *found})
        return {
            key: extended(pinned.get(key, found.get(key)), found.get(key, pinned.get(key))) for key in keys
        }
    if isinstance(pinned, list) and isinstance(found, list):
        return sorted({*pinned, *found})
    return pinned


# Processes


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


SERVER = """\
import contextlib, importlib.metadata, json, os, sys
import hydra.core.override_parser.overrides_parser, omegaconf, rich.console, typer, yaml
(script,) = importlib.metadata.entry_points(group="console_scripts", name="meshctl")
main = script.load()
sys.argv[:] = ["meshctl", "show-topology", "run.yaml"]
try:
    with open(os.devnull, "w") as null, contextlib.redirect_stdout(null), contextlib.redirect_stderr(null):
        main()
except SystemExit:
    pass
for line in sys.stdin:
    call = json.loads(line)
    pid = os.fork()
    if not pid:
        for number, name in enumerate(("/dev/null", call["stdout"], call["stderr"])):
            os.dup2(os.open(name, os.O_RDWR | os.O_CREAT, 0o644), number)
        os.chdir(call["folder"])
        os.environ.update(call["variables"])
        sys.argv[:] = ["meshctl", *call["words"]]
        exec(call["program"])
        try:
            code = main()
        except SystemExit as end:
            code = end.code
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code or 0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    print(code, flush=True)
"""
"""Runs one command for each line of its standard input, each in a fork. A first command does the imports."""


def answered(calls: Mapping[str, Call], scratch: Path) -> dict[str, Done]:
    """Runs commands that start no run, some at a time."""
    prepared(scratch)
    names = list(calls)
    with ThreadPoolExecutor(PARALLEL) as pool:
        shares = [names[number::PARALLEL] for number in range(PARALLEL)]
        found = pool.map(lambda share: served({name: calls[name] for name in share}, scratch), shares)
        return {name: done for each in found for name, done in each.items()}


def served(calls: Mapping[str, Call], scratch: Path) -> dict[str, Done]:
    """Runs commands one after another."""
    files = {
        name: [str(scratch / f"{quote(name, safe='')}.{end}") for end in ("out", "err")] for name in calls
    }
    requests = [
        json.dumps(
            {
                "folder": str(call.folder),
                "program": call.program,
                "stderr": files[name][1],
                "stdout": files[name][0],
                "variables": dict(call.variables),
                "words": call.words,
            }
        )
        for name, call in calls.items()
    ]
    server = subprocess.run(
        [sys.executable, "-c", SERVER],
        cwd=scratch,
        env=environment(XDG_STATE_HOME=str(scratch)),
        input="\n".join(requests) + "\n",
        stdout=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    found = {}
    for (name, call), code in zip(calls.items(), server.stdout.split(), strict=True):
        out, err = (Path(file).read_text() for file in files[name])
        found[name] = subprocess.CompletedProcess(call.words, int(code), out, err)
    return found


def launch(folder: Path, *words: str, **variables: str) -> Done:
    """Launches a run and waits for its end."""
    return subprocess.run(
        [sys.executable, "-m", "meshctl", "launch", *words],
        cwd=folder,
        env=environment(XDG_STATE_HOME=str(folder), **variables),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        stdin=subprocess.DEVNULL,
    )


def in_parallel(calls: Mapping[str, Callable[[], Run]]) -> dict[str, Run]:
    with ThreadPoolExecutor(PARALLEL) as pool:
        futures = {name: pool.submit(call) for name, call in calls.items()}
        return {name: future.result() for name, future in futures.items()}


# Commands that start nothing

COMMANDS = (
    "init",
    "validate",
    "config",
    "show-topology",
    "launch",
    "doctor",
    "explain",
    "schema",
    "completion",
    "agent",
)
"""The commands whose help is read. A new command is found in `meshctl --help`."""

JSON_COMMANDS: dict[str, tuple[str, ...]] = {
    "config": ("config", "run.yaml", "--format", "json"),
    "config --origins": ("config", "keys.yaml", "vars.length=1024", "--origins", "--format", "json"),
    "doctor": ("doctor", "run.yaml", "--format", "json"),
    "show-topology": ("show-topology", "keys.yaml", "--format", "json"),
    "show-topology --component": ("show-topology", "keys.yaml", "--component", "sampler", "--format", "json"),
    "show-topology --diff": (
        "show-topology",
        "keys.yaml",
        "--diff",
        "groups.judge.ranks=4",
        "--format",
        "json",
    ),
    "show-topology --dim": ("show-topology", "keys.yaml", "--dim", "dp", "--format", "json"),
    "show-topology --node": ("show-topology", "keys.yaml", "--node", "0", "--format", "json"),
    "show-topology --rank": ("show-topology", "keys.yaml", "--rank", "rollout:0", "--format", "json"),
    "validate": ("validate", "keys.yaml", "wrong.yaml", "--format", "json"),
    "validate --fix": ("validate", "fixable.yaml", "--fix", "--format", "json"),
    "validate sarif": ("validate", "keys.yaml", "wrong.yaml", "--format", "sarif"),
}
CHOICES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "completion SHELL": (("completion",), ("bash", "fish", "zsh")),
    "config --format": (("config", "run.yaml", "--format"), ("json", "text")),
    "init --kind": (
        ("init", "made", "--device", "cpu", "--yes", "--force", "--kind"),
        ("distill", "grpo", "train"),
    ),
    "init --layout": (
        ("init", "made", "--device", "cpu", "--yes", "--force", "--layout"),
        ("dp", "fsdp", "hsdp"),
    ),
    "show-topology --format": (
        ("show-topology", "run.yaml", "--format"),
        ("html", "json", "mermaid", "svg", "text"),
    ),
    "validate --color": (("validate", "run.yaml", "--color"), ("always", "auto", "never")),
    "validate --format": (
        ("validate", "run.yaml", "--format"),
        ("concise", "github", "json", "sarif", "text"),
    ),
}
"""Options with a fixed set of words: the command before the word, and the words that are tried."""

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
    calls = {
        "bug": Call(recipes, ("schema",), CRASH, (("XDG_STATE_HOME", str(folder)),)),
        "bug with MESHCTL_DEBUG": Call(
            recipes, ("schema",), CRASH, (("XDG_STATE_HOME", str(folder)), ("MESHCTL_DEBUG", "1"))
        ),
        "done": Call(recipes, ("validate", "run.yaml")),
        "errors": Call(recipes, ("validate", "wrong.yaml")),
        "explain": Call(recipes, ("explain",)),
        "help": Call(recipes, ("--help",)),
        "mistakes": Call(
            mistakes, ("validate", *(f"{code}/recipe.yaml" for code in plain), "--format", "json")
        ),
        "refused": Call(recipes, ("launch", "run.yaml", "groups.rollout.device_type=npu", "--dry-run")),
        "schema": Call(recipes, ("schema",)),
        "unreadable": Call(recipes, ("validate", "absent.yaml")),
        "usage": Call(recipes, ("validate", "run.yaml", "--no-such-option")),
        "version": Call(recipes, ("--version",)),
    }
    for name in COMMANDS:
        calls[f"help {name}"] = Call(recipes, (name, "--help"))
    for name, words in JSON_COMMANDS.items():
        calls[name] = Call(recipes, words)
    for option, (before, choices) in CHOICES.items():
        for choice in choices:
            calls[f"{option}={choice}"] = Call(recipes, (*before, choice))
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


# Runs


@dataclass(frozen=True)
class Run:
    """One launch that has ended."""

    path: Path
    """The run directory."""
    code: int
    stdout: str
    stderr: str
    titles: frozenset[str] = frozenset()
    """The process titles seen while the run was held."""
    since: float = 0.0
    """When it was launched, in seconds since the epoch; earlier events are those of an old version."""

    @property
    def events(self) -> list[dict[str, Json]]:
        every = [event for file in sorted(self.path.glob("events/*.jsonl")) for event in json_lines(file)]
        return [event for event in every if event.get("time", self.since) >= self.since]

    @property
    def metrics(self) -> list[dict[str, Json]]:
        return json_lines(self.path / "metrics.jsonl")


def json_lines(path: Path) -> list[dict[str, Json]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def runs_of(folder: Path) -> dict[str, Run]:
    """Launches the recipe of the contract: interrupted, with a failure, replayed, and resumed."""
    calls: dict[str, Callable[[], Run]] = {
        "SIGINT": partial(interrupted, prepared(folder / "interrupted"), signal.SIGINT, workers=3),
        "failed": partial(failed, prepared(folder / "failed")),
        "replayed": partial(replayed, prepared(folder / "replayed")),
    }
    calls |= {
        f"resumed {version}": partial(resumed, prepared(folder / version), version) for version in old_runs()
    }
    return in_parallel(calls)


def old_runs() -> list[str]:
    return sorted(path.name for path in (DATA / "runs").iterdir() if path.is_dir())


def ended(path: Path, done: Done, since: float = 0.0) -> Run:
    return Run(path, done.returncode, done.stdout, done.stderr, since=since)


def run_directory_of(folder: Path) -> Path:
    """Returns the only run directory. Where a launch made none, the path does not exist."""
    return next(folder.glob("runs/contract/*"), folder / "runs" / "contract" / "none")


def failed(folder: Path) -> Run:
    """Lets the trainer raise an exception in step 5.

    Its class is one that also means the loss of a peer. The supervisor then waits for a better cause, so the
    other group has the time to report that it lost the trainer.
    """
    (folder / "fail").write_text("ConnectionResetError")
    done = launch(folder, "run.yaml", MESHCTL_TRANSPORT="tcp", MESHCTL_DEVICES="cpu")
    return ended(run_directory_of(folder), done)


def replayed(folder: Path) -> Run:
    """Runs one group alone, on what an old run has recorded, and ends it early with SIGTERM."""
    source = DATA / "runs" / old_runs()[0]
    words = ("--only", "train", "--replay", f"rollouts={source}")
    return interrupted(folder, signal.SIGTERM, *words, workers=2)


def resumed(folder: Path, version: str) -> Run:
    """Resumes a copy of an old run, after replacing the recorded path of the recipe's folder."""
    path = folder / "run"
    shutil.copytree(DATA / "runs" / version, path, symlinks=True)
    start = path / "start.json"
    start.write_text(start.read_text().replace("/tmp/meshctl-contract", str(folder)))
    since = time.time()
    return ended(path, launch(folder, "run"), since)


def interrupted(folder: Path, number: signal.Signals, *words: str, workers: int) -> Run:
    """Holds a run in step 2, reads the process titles, sends a signal, and lets the run reach its end."""
    (folder / "hold").touch()
    stdout, stderr = folder / "stdout", folder / "stderr"
    command = [sys.executable, "-m", "meshctl", "launch", "run.yaml", *words]
    variables = environment(XDG_STATE_HOME=str(folder))
    with stdout.open("wb") as out, stderr.open("wb") as err:
        launcher = subprocess.Popen(command, cwd=folder, env=variables, stdout=out, stderr=err)
    seen: set[str] = set()

    def is_held() -> bool:
        seen.update(titles_below(launcher.pid))
        return len(events_of(folder, "step")) >= workers  # each worker has ended step 1

    try:
        assert wait_for(is_held, launcher), stderr.read_text() or "no worker reached step 2 in time"
        launcher.send_signal(number)
        wait_for(lambda: bool(events_of(folder, "stopping")), launcher)
        (folder / "hold").unlink()
        code = launcher.wait(TIMEOUT_S)
    finally:
        if launcher.poll() is None:
            launcher.kill()
            launcher.wait()
    path = run_directory_of(folder)
    return Run(path, code, stdout.read_text(), stderr.read_text(), frozenset(seen))


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> bool:
    """Whether the condition became true before the process ended."""
    end = time.monotonic() + WAIT_S
    while process.poll() is None and time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


def events_of(folder: Path, name: str) -> list[Json]:
    """Returns the events of one name in a run that is still running."""
    texts = [file.read_text() for file in folder.glob("runs/*/*/events/*.jsonl")]
    whole = [line for text in texts for line in text.rpartition("\n")[0].splitlines()]
    return [event for event in map(json.loads, whole) if event["name"] == name]


def titles_below(pid: int) -> set[str]:
    """Returns the titles of all processes that descend from a process."""
    titles: set[str] = set()
    for task in Path(f"/proc/{pid}/task").glob("*"):
        try:
            children = [int(child) for child in (task / "children").read_text().split()]
        except OSError:  # the process has ended
            continue
        for child in children:
            try:
                titles.add(Path(f"/proc/{child}/comm").read_text().rstrip("\n"))
            except OSError:
                continue
            titles |= titles_below(child)
    return titles


# Collection: one function for each section of the contract


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
    texts = {"(meshctl)": "help", **{name: f"help {name}" for name in names if name in COMMANDS}}
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
        option: [word for word in words if found.answers[f"{option}={word}"].returncode == 0]
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


OPERATORS = ("__contains__", "__eq__", "__getitem__", "__hash__", "__iter__", "__len__")
EXAMPLES: dict[str, Callable[[], object]] = {
    "Batch": lambda: meshctl.Batch({}),
    "Collective": lambda: meshctl.Collective(),
    "Component": lambda: meshctl.Component(),
    "DeviceMesh": lambda: meshctl.DeviceMesh.from_sizes(),
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
    received = json.loads((found.runs["SIGINT"].path / "logs" / "script" / "0.log").read_text())
    return {
        "known to meshctl": sorted(named),
        "received by programs": received["names"],
        "run_dir is filled in arguments": received["run_dir_is_filled"],
    }


def process_titles(found: Found) -> Json:
    forms = {
        rf"mesh ({GROUPS})/\d+": "mesh GROUP/NODE",
        r"(rollout|train):\d+": "GROUP:RANK",
        "meshctl-fork": "meshctl-fork",
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
        (r"recorded/rollouts/step-\d+/\d+-of-\d+\.safetensors", "recorded/STAGE/step-N/K-of-M.safetensors"),
        (r"(recipe\.yaml|plan\.json|start\.json|metrics\.jsonl)", ""),
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


BENCHMARKS: dict[str, str] = {
    "busiest_process": "bytes goal name ok others total value what",
    "checks_cost": "goal name ok others value what",
    "collect_ranks": "goal name ok value",
    "data_plane": "goal load name ok others value what",
    "empty_step": "cpu goal load name ok others value what",
    "launch_time": "goal name ok others value workers",
    "long_run": "files goal name ok steps value what",
    "overlap": "goal load name ok value",
    "topology_scale": "goal name ok others value what",
    "validate_time": "goal name ok others value what",
    "weight_sync": "case goal load most ms name ok others value",
    "worker_memory": "goal name ok value",
}
"""The keys of the last line that each benchmark prints. They are searched in its source."""


def benchmarks(_: Found) -> Json:
    found = {}
    for name, keys in BENCHMARKS.items():
        path = ROOT / "benchmarks" / f"{name}.py"
        if path.is_file() and "__main__" in path.read_text():
            texts, written, options = words_of(path)
            found[name] = {
                "keys": [key for key in keys.split() if key in written],
                "name": name if name in texts else "",
                "options": sorted(options),
            }
    return found


@cache
def words_of(path: Path) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """Returns the texts of a module, the keys that it and the modules it imports write, and its options."""
    texts, written, options = set[str](), set[str](), set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Constant(value=str(text)):
                texts.add(text)
            case ast.Dict(keys=names):
                written |= {
                    key.value for key in names if isinstance(key, ast.Constant) and isinstance(key.value, str)
                }
            case ast.Call(
                func=ast.Attribute(attr="add_argument"), args=[ast.Constant(value=str(option)), *_]
            ):
                options.add(option)
            case ast.Call(keywords=named):
                written |= {keyword.arg for keyword in named if keyword.arg}
            case ast.ImportFrom(module=str(module)) if module.startswith("benchmarks."):
                neighbour = ROOT / f"{module.replace('.', '/')}.py"
                written |= words_of(neighbour)[1] if neighbour.is_file() else frozenset()
    return frozenset(texts), frozenset(written), frozenset(options)


SECTIONS: dict[str, Callable[[Found], Json]] = {
    "benchmarks": benchmarks,
    "choices": choices,
    "codes": codes,
    "commands": commands,
    "events": events,
    "exit codes": exit_codes,
    "json": json_keys,
    "keywords": keywords,
    "lines": lines,
    "metrics": metrics,
    "process titles": process_titles,
    "public bases": public_bases,
    "public members": public_members,
    "public names": public_names,
    "recipe keys": recipe_keys,
    "recipe words": recipe_words,
    "run directory": run_directory,
    "variables": variables,
}


# Tests


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    folder = tmp_path_factory.mktemp("contract")
    return Found(answers_of(folder), runs_of(folder))


@pytest.mark.parametrize("section", SECTIONS)
def test_nothing_of_the_contract_is_missing(section: str, found: Found) -> None:
    present, pinned = SECTIONS[section](found), CONTRACT[section]
    if section == "codes":  # titles may be reworded; other tests fix what a code means
        present, pinned = (
            {code: title.split(":")[0] for code, title in each.items()} for each in (present, pinned)
        )
    gone = list(missing(pinned, present))
    assert not gone, "\n".join(["missing:", *gone])


def test_the_contract_has_all_sections() -> None:
    assert CONTRACT.keys() == {*SECTIONS, "old runs"} and list(CONTRACT) == sorted(CONTRACT)


def test_no_code_has_the_title_of_another_one(found: Found) -> None:
    owners = {title: code for code, title in CONTRACT["codes"].items()}
    assert {
        code: owners[title] for code, title in codes(found).items() if owners.get(title, code) != code
    } == {}


def test_each_code_is_reported_for_its_example(found: Found) -> None:
    reports = json.loads(found.answers["mistakes"].stdout)["recipes"]
    reported = {
        Path(each["recipe"]).parent.name: {one["code"] for one in each["diagnostics"]} for each in reports
    }
    for code, example in MISTAKES.items():
        if "arguments" in example:
            (report,) = json.loads(found.answers[f"mistake {code}"].stdout)["recipes"]
            reported[code] = {one["code"] for one in report["diagnostics"]}
    assert {code: sorted(reported[code]) for code in MISTAKES if code not in reported[code]} == {}
    assert CONTRACT["codes"].keys() - MISTAKES.keys() == {"MC002", "MC900", *UNFINISHED}


def test_a_recipe_with_all_keys_is_correct(found: Found) -> None:
    report = next(
        each
        for each in json.loads(found.answers["validate"].stdout)["recipes"]
        if each["recipe"] == "keys.yaml"
    )
    assert (report["errors"], report["plan"] is None) == (0, False), report["diagnostics"]


def test_the_version_is_printed(found: Found) -> None:
    assert re.fullmatch(r"meshctl \d+\.\d+\S*\n", found.answers["version"].stdout)


@pytest.mark.parametrize("version", old_runs())
def test_an_old_run_is_resumed_exactly_or_refused_in_one_line(version: str, found: Found) -> None:
    resumed = found.runs[f"resumed {version}"]
    if CONTRACT["old runs"][version] == "refused":
        (line,) = resumed.stderr.splitlines()
        assert resumed.code == 4 and line.startswith("error: ") and re.search(rf"0\.1\.0|{version}", line)
        return
    assert resumed.code == 0, resumed.stderr
    assert without_time(resumed.metrics) == without_time(expected_metrics(version))
    assert [event["step"] for event in resumed.events if event["name"] == "resumed"] == [3]


def expected_metrics(version: str) -> list[dict[str, Json]]:
    """Returns the metrics of the same run by the same version, without an interruption."""
    return json_lines(DATA / "runs" / f"{version}.expected.jsonl")


def without_time(rows: Sequence[Mapping[str, Json]]) -> list[dict[str, Json]]:
    return [{key: value for key, value in row.items() if key != "time"} for row in rows]


def test_a_recording_of_an_old_run_is_replayed(found: Found) -> None:
    momentum = [row["metrics.momentum"] for row in found.runs["replayed"].metrics]
    known = [row["metrics.momentum"] for row in expected_metrics(old_runs()[0])]
    assert 2 <= len(momentum) <= 5 and momentum == known[: len(momentum)], found.runs["replayed"].stderr


# New entries


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        found = Found(answers_of(Path(name)), runs_of(Path(name)))
        present = {section: collect(found) for section, collect in SECTIONS.items()}
    present["old runs"] = dict.fromkeys(old_runs(), "resumed")
    CONTRACT_FILE.write_text(json.dumps(extended(CONTRACT, present), indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
