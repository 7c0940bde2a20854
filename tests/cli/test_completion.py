"""Shell completion: the candidates at the cursor, their format for each shell, and completion in real shells,
if they are installed."""

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.main import get_command
from typer.testing import CliRunner

from meshctl.cli.app import app
from meshctl.cli.completion.line import BREAKS, answer, complete, typed
from meshctl.cli.completion.shells import FOLDER, shells
from meshctl.cli.completion.words import candidates
from meshctl.diagnostics.codes import codes
from meshctl.recipe.compose.composition import compose
from meshctl.recipe.compose.folders import config_folders
from tests.examples import examples

RECIPE = """\
defaults:
  - layout@components.actor.parallel: fsdp
  - data@_global_: small
  - _self_
groups:
  rollout: {ranks: 2, device_type: cpu}
  train: {ranks: 8, device_type: cuda, env: {A: 1}}
components:
  prompts: {_target_: arithmetic.Prompts, group: rollout}
  sampler: {_target_: arithmetic.Sampler, group: rollout, args: {max_new_tokens: 16}}
  actor: {_target_: arithmetic.Actor, group: train}
pipeline:
  batch: {call: prompts.next, samples: 64}
  rollouts: {call: sampler.sample, in: batch}
  metrics: {call: actor.update, in: rollouts}
  publish: {sync: actor, to: sampler}
run: {steps: 170, checkpoint: {every: 50}}
"""
CODE = """\
import a_module_that_does_not_exist
from meshctl import Component, endpoint

class Prompts(Component):
    @endpoint
    def next(self, samples): ...

class Sampler(Component):
    @endpoint
    def sample(self, batch): ...

    @endpoint
    def greedy(self, batch): ...

class Actor(Component):
    @endpoint
    def update(self, batch): ...
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a recipe, its class, and its config group."""
    (tmp_path / "grpo.yaml").write_text(RECIPE)
    (tmp_path / "arithmetic.py").write_text(CODE)
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / ".hidden.yaml").write_text("")
    (tmp_path / "conf" / "data").mkdir(parents=True)
    for size in ("small", "large"):
        (tmp_path / "conf" / "data" / f"{size}.yaml").write_text(f"# {size} problems\nvars: {{{size}: 1}}\n")
    (tmp_path / "my runs").mkdir()
    (tmp_path / "my runs" / "a recipe.yaml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def bash(line: str, point: int | None = None) -> list[str]:
    return list(
        answer(
            "bash", [], {"COMP_LINE": line, "COMP_POINT": str(len(line.encode()) if point is None else point)}
        )
    )


def texts(line: str) -> list[str]:
    """Returns the whole words, as for zsh and fish."""
    *before, word = line.split(" ")
    return [one.text for one in candidates(before, word) if one.text.startswith(word)]


# Commands, options and what they take


def test_commands() -> None:
    known = texts("")
    assert {"validate", "launch", "explain", "schema", "completion"} <= set(known)
    assert known == [name for name, command in get_command(app).commands.items() if not command.hidden]
    assert bash("meshctl val") == ["validate "]


def test_options() -> None:
    assert bash("meshctl launch --dr") == ["--dry-run "]
    assert texts("--v") == ["--version"] and "--help" in texts("explain --")
    assert texts("show-topology --format sv") == ["svg"] == texts("show-topology -f sv")
    assert texts("show-topology --format=sv") == ["--format=svg"]
    assert bash("meshctl show-topology --format=sv") == ["svg "]


def test_options_describe_what_they_do() -> None:
    assert [one.description for one in candidates(["launch"], "--dry")] != [""]


OPTIONS = [
    (name, option)
    for name, command in get_command(app).commands.items()
    for one in command.params
    for option in one.opts
    if option.startswith("-") and not getattr(one, "is_flag", False)
]
WITHOUT_CANDIDATES = {"--ranks", "--node", "--samples", "--group", "--head"}


@pytest.mark.parametrize(("command", "option"), OPTIONS)
def test_every_option_can_be_asked_for_its_values(command: str, option: str, place: Path) -> None:
    before = [command, *([] if command in ("init", "schema", "agent") else ["grpo.yaml"]), option]
    found = [one.text for one in candidates(before, "")]
    assert all(found) and bool(found) == (option not in WITHOUT_CANDIDATES)


def test_the_value_of_an_option_is_no_recipe(place: Path) -> None:
    assert texts("launch --only nothing grpo.yaml run.ste") == ["run.steps="]
    assert texts("launch --dry-run grpo.yaml run.ste") == ["run.steps="]


def test_names_of_the_recipe_for_options(place: Path) -> None:
    assert sorted(texts("show-topology grpo.yaml --component ")) == ["actor", "prompts", "sampler"]
    assert bash("meshctl show-topology grpo.yaml --rank tr") == ["train:"]
    dims = texts("show-topology grpo.yaml --dim ")
    assert "tp" in dims and "ulysses" in dims and "vpp" not in dims


def test_codes_in_whatever_case() -> None:
    assert texts("explain MC41") == [code for code in codes() if code.startswith("MC41")]
    assert "mc410" in texts("explain mc4")


# Files


def test_recipes(place: Path) -> None:
    assert texts("launch ") == ["conf/", "grpo.yaml", "my runs/"]
    assert texts("launch .") == [".hidden.yaml"]
    assert texts("launch conf/data/s") == ["conf/data/small.yaml"]
    assert texts("launch nowhere/x") == []


def test_bash_gets_them_quoted_as_they_were_begun(place: Path) -> None:
    assert bash("meshctl launch my") == ["my\\ runs/"]
    assert bash("meshctl launch my\\ runs/") == ["my\\ runs/a\\ recipe.yaml "]
    assert bash("meshctl launch 'my runs/") == ["my runs/a recipe.yaml"]
    assert bash('meshctl launch "my runs/a recipe.yaml" groups.rol') == ["groups.rollout."]


def test_home_is_understood(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(place))
    assert texts("launch ~/grpo.y") == ["~/grpo.yaml"]
    assert texts("launch ~/grpo.yaml groups.t") == ["groups.train."]


def test_validate_accepts_several_recipes(place: Path) -> None:
    found = texts("validate grpo.yaml ")
    assert "grpo.yaml" in found and "groups." in found
    assert texts("validate grpo.yaml groups.t") == ["groups.train."]


# Overrides


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        (
            "",
            [
                "groups.",
                "components.",
                "pipeline.",
                "run.",
                "vars.",
                "name=",
                "seed=",
                "cluster.",
                "data@",
                "layout@",
            ],
        ),
        ("se", ["seed="]),
        ("groups.", ["groups.rollout.", "groups.train."]),
        ("groups.train.dev", ["groups.train.device_type="]),
        ("groups.train.env.", ["groups.train.env.A="]),
        ("components.actor.p", ["components.actor.parallel.", "components.actor.parallel="]),
        ("components.actor.parallel.f", ["components.actor.parallel.fsdp_size="]),
        ("components.sampler.args.", ["components.sampler.args.max_new_tokens="]),
        ("components.critic.", []),
        ("layout@components.a", ["layout@components.actor.parallel="]),
        ("data@", ["data@_global_="]),
        ("pipeline.publish.t", ["pipeline.publish.to="]),
        ("run.checkpoint.", [f"run.checkpoint.{key}" for key in ("best.", "best=", "every=", "keep=")]),
        ("cluster.", ["cluster.nodes=", "cluster.devices_per_node=", "cluster.devices_per_node."]),
        ("cluster.devices_per_node.c", ["cluster.devices_per_node.cuda="]),
    ],
)
def test_keys(word: str, expected: list[str], place: Path) -> None:
    assert sorted(texts(f"launch grpo.yaml {word}")) == sorted(expected)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("+groups.judge.r", ["+groups.judge.ranks="]),
        ("+groups.train.ra", []),
        ("+groups.train.co", ["+groups.train.colocate="]),
        ("+groups.train.en", ["+groups.train.env."]),
        ("++groups.train.ra", ["++groups.train.ranks="]),
        ("~", ["~groups.", "~components.", "~pipeline.", "~run", "~vars.", "~layout@", "~data@"]),
        ("~pipeline.m", ["~pipeline.metrics"]),
        ("~groups.train.d", ["~groups.train.device_type"]),
        ("~layout@", ["~layout@components.actor.parallel"]),
        ("+da", ["+data@"]),
    ],
)
def test_keys_that_are_added_or_deleted(word: str, expected: list[str], place: Path) -> None:
    assert sorted(texts(f"launch grpo.yaml {word}")) == sorted(expected)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("layout@components.actor.parallel=hs", ["hsdp", "hsdp_tp"]),
        ("data@_global_=", ["large", "small"]),
        ("groups.train.device_type=c", ["cuda", "cpu"]),
        ("components.actor.group=", ["rollout", "train"]),
        ("components.prompts.parallel=", ["sampler"]),
        ("components.actor.parallel.tp_size=", ["1", "2", "4", "8", "auto"]),
        ("components.sampler.frozen=", ["true", "false"]),
        ("groups.train.colocate=", ["rollout"]),
        ("pipeline.metrics.in=", ["batch", "rollouts", "publish"]),
        ("pipeline.metrics.in=[rollouts,b", ["[rollouts,batch"]),
        ("pipeline.metrics.in=[rollouts,r", []),
        ("pipeline.metrics.collect=me", ["mean"]),
        ("pipeline.metrics.execute=", ["all", "first", "peer"]),
        ("pipeline.metrics.dispatch=sl", ["slice_dp", "slice"]),
        ("pipeline.metrics.when=", ["start", "end", "checkpoint"]),
        ("pipeline.rollouts.call=", ["prompts.", "sampler.", "actor."]),
        ("pipeline.rollouts.call=sampler.", ["sampler.sample", "sampler.greedy"]),
        ("pipeline.publish.to=s", ["sampler"]),
        ("run.show=[me", ["[metrics."]),
        ("run.stop.on=me", ["metrics."]),
        ("run.checkpoint.best.on=me", ["metrics."]),
        ("run.checkpoint.best.mode=", ["min", "max"]),
        ("run.steps=", ["170"]),
        ("run.steps=1", ["170"]),
        ("run.dir=", []),
    ],
)
def test_values(word: str, expected: list[str], place: Path) -> None:
    key = word.partition("=")[0]
    assert sorted(texts(f"launch grpo.yaml {word}")) == sorted(f"{key}={value}" for value in expected)


def test_the_folder_of_a_run_is_a_recipe(place: Path) -> None:
    (place / "runs").mkdir()
    shutil.copy("grpo.yaml", "runs/recipe.yaml")
    assert texts("launch runs groups.t") == ["groups.train."]


def test_a_pipe_in_a_config_group_is_not_opened(place: Path) -> None:
    os.mkfifo(place / "conf" / "data" / "huge.yaml")
    assert texts("launch grpo.yaml data@_global_=") == ["data@_global_=large", "data@_global_=small"]


def test_the_values_of_included_files(place: Path) -> None:
    (place / "more.yaml").write_text(
        "defaults: [./grpo, base, data@vars.mine: large]\ngroups: {judge: {ranks: 1}}\n"
    )
    assert texts("launch more.yaml groups.") == ["groups.rollout.", "groups.train.", "groups.judge."]
    assert texts("launch more.yaml run.grace=") == ["run.grace=30"]
    (place / "more.yaml").write_text("defaults:\n  - ./grpo\n  - data@vars.mine: large\n")
    assert texts("launch more.yaml vars.mine.vars.") == ["vars.mine.vars.large="]


HALF = [
    "",
    "- a",
    "groups: {train: ",
    "a: &a [*a]",
    "groups: {a: !!python/object/apply:os.abort []}",
    "\xff",
    "defaults: [./bad]",
]


@pytest.mark.parametrize("text", HALF)
def test_a_recipe_that_is_being_written(text: str, place: Path) -> None:
    (place / "bad.yaml").write_bytes(text.encode("latin-1"))
    assert "run." in texts("launch bad.yaml ") and texts("launch bad.yaml run.ste") == ["run.steps="]


def test_a_bomb_is_cut(place: Path) -> None:
    lines = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    (place / "bomb.yaml").write_text("\n".join(["a0: &a0 [1]", *lines, "run: {steps: 3}"]))
    assert "seed=" in texts("launch bomb.yaml ")


def test_descriptions(place: Path) -> None:
    found = {one.text: one.description for one in candidates(["launch", "grpo.yaml"], "")}
    assert found["groups."].startswith("Device groups by name")
    named = {one.text: one.description for one in candidates(["launch", "grpo.yaml"], "components.")}
    assert named["components.actor."] == "arithmetic.Actor"


def every(word: str = "") -> Iterator[str]:
    """Yields all overrides that completion can propose, with values."""
    for one in candidates(["launch", "grpo.yaml"], word):
        if not one.text.startswith(word) or one.text == word:
            continue
        if one.text.endswith((".", "=", "@")):
            yield from every(one.text)
        elif "=" in one.text:
            yield one.text


@pytest.mark.hypothesis
def test_what_is_proposed_is_accepted(place: Path) -> None:
    """Every candidate is an existing key, option or package. A third of them is tried, and all in the nightly
    tests."""
    proposed = list(every())
    assert len(proposed) > 100
    for text in proposed[:: examples(3, 1)]:
        found = compose(place / "grpo.yaml", [text], place, config_folders(place, ())).found
        assert not [one for one in found if one.primary and one.primary.file.startswith("override")], (
            text,
            found,
        )


# Lines


@pytest.mark.parametrize(
    ("line", "words", "last", "rest"),
    [
        ("m a b", ("m", "a"), "b", "b"),
        ("m a ", ("m", "a"), "", ""),
        ("m a=b", ("m",), "a=b", "b"),
        ("m a@b=c:d", ("m",), "a@b=c:d", "d"),
        ("m a@b", ("m",), "a@b", "@b"),
        ("m 'a b", ("m",), "a b", "a b"),
        ("m x'a b", ("m",), "xa b", "a b"),
        ('m "a \\" b', ("m",), 'a " b', 'a " b'),
        ("m a\\ b", ("m",), "a b", "a b"),
        ("m '' x", ("m", ""), "x", "x"),
        ("m a\\", ("m",), "a", "a"),
    ],
)
def test_a_line_of_bash(line: str, words: tuple[str, ...], last: str, rest: str) -> None:
    at = typed(line)
    assert (at.words, at.last, at.last[at.kept :]) == (words, last, rest)


def test_other_word_breaks() -> None:
    assert typed("m a=b", " ").kept == 0 and "=" in BREAKS


def test_the_cursor_may_stand_inside(place: Path) -> None:
    assert bash("meshctl val grpo.yaml", 11) == ["validate "]


def test_each_shell_is_answered_in_its_terms(place: Path) -> None:
    output = "Number of steps after which the run ends. Default: it ends with the data."
    assert list(answer("zsh", ["launch", "grpo.yaml", "run.ste"], {})) == [f"run.steps=\t{output}\t0"]
    assert list(answer("fish", ["launch", "grpo.yaml", "run.ste"], {})) == [f"run.steps=\t{output}"]
    assert list(answer("fish", ["launch", "grpo"], {})) == ["grpo.yaml"]
    assert list(answer("zsh", ["launch", "grpo"], {})) == ["grpo.yaml\t\t1"]


@given(st.lists(st.text(max_size=12), max_size=5), st.text(max_size=30))
def test_nothing_that_is_typed_makes_it_fail(words: list[str], line: str) -> None:
    os.environ["MESHCTL_DEBUG"] = "1"
    try:
        assert all("\n" not in one for one in answer("fish", ["launch", "x.yaml", *words], {}))
        list(
            answer(
                "bash", [], {"COMP_LINE": "meshctl launch x.yaml " + line, "COMP_POINT": str(22 + len(line))}
            )
        )
    finally:
        del os.environ["MESHCTL_DEBUG"]


def test_what_goes_wrong_is_an_empty_answer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshctl.cli.completion.line.candidates", lambda *_: 1 / 0)
    assert complete(["fish", "x"]) == 0 and capsys.readouterr().out == ""


# What it costs, and what it never does

WATCH = """
import sys
seen = []
sys.addaudithook(lambda event, given: seen.append((event, given)) if watching else None)
watching = True
from meshctl.cli.main import main
sys.argv = ["meshctl", "complete", "fish", *sys.argv[1:]]
try:
    main()
except SystemExit:
    pass
watching = False
wrote = [given for event, given in seen if event == "open" and isinstance(given[1], str) and set(given[1]) & set("wax+")]
acted = [event for event, given in seen if event.startswith(("subprocess", "socket", "os.system", "os.exec", "os.fork", "os.mkdir"))]
print("SEEN", wrote, acted, sorted({"rich", "torch", "numpy", "arithmetic"} & set(sys.modules)))
"""


@pytest.mark.parametrize(
    "word", ["groups.train.", "pipeline.rollouts.call=sampler.", "layout@components.actor.parallel=", "~"]
)
def test_a_recipe_is_read_and_nothing_else_happens(word: str, place: Path) -> None:
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", WATCH, "launch", "grpo.yaml", word], capture_output=True, text=True, env=env
    )
    assert done.stdout.splitlines()[-1] == "SEEN [] [] []", done.stderr
    assert len(done.stdout.splitlines()) > 1


# The shells themselves


def test_scripts_are_printed() -> None:
    for shell in shells():
        done = CliRunner().invoke(app, ["completion", shell])
        assert (done.exit_code, done.stdout) == (0, (FOLDER / f"meshctl.{shell}").read_text())


def test_the_shell_may_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert "fish completes" in CliRunner().invoke(app, ["completion"]).stdout
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    done = CliRunner().invoke(app, ["completion"])
    assert (done.exit_code, done.stderr) == (
        2,
        "error: shell `tcsh` is not supported; available: `bash`, `fish` and `zsh`\n",
    )


@pytest.mark.parametrize("shell", shells())
def test_scripts_are_right_to_their_shells(shell: str) -> None:
    program = shutil.which(shell) or pytest.skip(f"{shell} is not here")
    assert subprocess.run([program, "-n", FOLDER / f"meshctl.{shell}"], capture_output=True).returncode == 0


ARGV = {"bash": ["--norc", "--noprofile", "-i"], "zsh": ["-f", "-i"], "fish": ["--no-config", "-i"]}
BEGIN = {
    "bash": 'eval "$(meshctl completion bash)"',
    "zsh": 'autoload -Uz compinit; compinit -u -D; eval "$(meshctl completion zsh)"',
    "fish": "meshctl completion fish | source",
}
TYPED = (
    ("meshctl vali\tgr\t run.ste\t3", "validate grpo.yaml run.steps=3"),
    (
        "meshctl launch grpo.yaml layout@components.act\thsdp_\t",
        "launch grpo.yaml layout@components.actor.parallel=hsdp_tp",
    ),
    (
        "meshctl launch grpo.yaml pipeline.rollouts.call=sampler.g\t",
        "launch grpo.yaml pipeline.rollouts.call=sampler.greedy",
    ),
    (
        "meshctl launch my\ta\tgroups.tr\tdev\tcu\t",
        "launch my runs/a recipe.yaml groups.train.device_type=cuda",
    ),
)


@pytest.mark.slow
@pytest.mark.parametrize("shell", ARGV)
def test_in_a_real_shell(shell: str, place: Path) -> None:
    """Presses Tab in an interactive shell. A fake `meshctl` prints the arguments with which it is called."""
    program = shutil.which(shell) or pytest.skip(f"{shell} is not here")
    binary = place / "bin" / "meshctl"
    binary.parent.mkdir()
    answers = f'case "$1" in complete|completion) exec {sys.executable} -m meshctl "$@";; esac'
    binary.write_text(f'#!{shutil.which("bash")}\n{answers}\necho "$@" >> {place}/calls\n')
    binary.chmod(0o755)
    lines, expected = zip(*TYPED, strict=True)
    assert in_terminal([program, *ARGV[shell]], BEGIN[shell], lines, binary.parent, place / "calls") == list(
        expected
    )


def in_terminal(argv: list[str], begin: str, lines: Sequence[str], path: Path, calls: Path) -> list[str]:
    """Returns the arguments of `meshctl` for each line. A line is typed after the command of the previous one
    has run."""
    env = {"PATH": f"{path}:{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(sys.path)}
    env |= {"TERM": "dumb", "HOME": str(path), "LANG": "C.UTF-8"}
    child, terminal = pty.fork()
    if not child:
        os.execve(argv[0], argv, env)
    try:
        settle(terminal)
        os.write(terminal, f"{begin}; echo rea''dy\n".encode())
        settle(terminal, until=b"ready")
        for number, line in enumerate(lines, 1):
            for part in re.findall("[^\t]+\t?|\t", line):
                os.write(terminal, part.encode())
                settle(terminal)
            os.write(terminal, b"\n")
            end = time.monotonic() + 30
            while (
                len(calls.read_text().splitlines()) if calls.exists() else 0
            ) < number and time.monotonic() < end:
                settle(terminal)
        return calls.read_text().splitlines() if calls.exists() else []
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.close(terminal)


def settle(terminal: int, until: bytes = b"", quiet: float = 0.2) -> None:
    """Reads until there has been output, followed by a pause."""
    seen, end = b"", time.monotonic() + 30
    while time.monotonic() < end:
        if select.select([terminal], [], [], quiet)[0]:
            try:
                seen += os.read(terminal, 1 << 16)
            except OSError:
                return
        elif until in seen:
            return
