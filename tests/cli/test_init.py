"""`meshctl init`: every written recipe is valid, those on cpu run and learn, and every answer and name is
handled."""

from __future__ import annotations

import io
import itertools
import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshctl.cli import init as command
from meshctl.cli.init import Options, init
from meshctl.cli.load import plan_of
from meshctl.cli.validate import checked
from meshctl.recipe import templates
from meshctl.recipe.editor_schema import schema
from meshctl.recipe.templates import (
    DEVICES,
    KINDS,
    LAYOUTS,
    Choice,
    WrongChoice,
    layouts,
    module_of,
    quoted,
    stem_of,
)
from tests.cli.commands import MAIN
from tests.command_server import call


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory on a machine without accelerators, and no terminal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "machine", lambda: ("cpu", 0))
    monkeypatch.setattr("sys.stdin", io.StringIO())
    return tmp_path


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} - {
        "recipe.schema.json"
    }


def validated(recipe: str) -> str:
    """Returns the output of `validate`, which is one line."""
    out = io.StringIO()
    assert checked(recipe, [], out) == 0, out.getvalue()
    assert out.getvalue().count("\n") == 1, out.getvalue()
    return out.getvalue()


# Every choice makes a recipe


def choices() -> Iterator[Choice]:
    for kind, device, ranks in itertools.product(KINDS, DEVICES, (1, 2, 3, 8)):
        for layout in ("", *LAYOUTS):
            choice = Choice(kind, device, ranks, layout)
            try:
                templates.check(choice)
            except WrongChoice:
                continue
            yield choice


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("device", DEVICES)
def test_every_choice_validates_without_a_warning(kind: str, device: str, here: Path) -> None:
    tried = [choice for choice in choices() if (choice.kind, choice.device) == (kind, device)]
    assert len(tried) >= (1 if device == "mps" else 4)
    for number, choice in enumerate(tried):
        asked = Options(kind, device, choice.ranks, choice.layout)
        assert init(f"r{number}", asked) == 0
        output = validated(f"r{number}.yaml")
        plan = plan_of(f"r{number}.yaml", []).plan
        assert plan.job_size == choice.workers and f"{choice.workers} worker" in output
        if kind != "script" and choice.trained > 1:
            mesh = next(
                component
                for component in plan.components
                if component.name in ("trainer", "actor", "student")
            ).mesh
            assert {"dp": mesh.size("dp") > 1, "fsdp": mesh.size("fsdp") > 1} == {
                "dp": choice.layout in ("dp", "hsdp"),
                "fsdp": (choice.layout or layouts(choice)[0]) != "dp"
                and not (choice.layout == "hsdp" and choice.trained == 2),
            }


def test_one_device_is_shared(here: Path) -> None:
    assert init("r", Options("grpo", "cuda", 1)) == 0
    plan = plan_of("r.yaml", []).plan
    assert plan.group("train").colocate == "rollout" and plan.group("judge").device_type == "cpu"


def test_two_groups_share_the_devices_between_them(here: Path) -> None:
    assert init("r", Options("distill", "npu", 7)) == 0
    plan = plan_of("r.yaml", []).plan
    assert (plan.group("teacher").workers, plan.group("student").workers) == (3, 4)


LEARNED = {
    "train": ("metrics.accuracy", 0.9),
    "grpo": ("scored.reward", 0.5),
    "distill": ("metrics.agrees", 0.8),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_on_cpu_it_runs_and_learns(kind: str, here: Path) -> None:
    """Runs `init`, then the command that it proposes, as a user would."""
    assert init("first", Options(kind)) == 0
    done = call(here, "launch", "first.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = here.glob("runs/first/*")
    if kind == "script":
        output = (run / "logs" / "train" / "0.log").read_text()
        assert float(output.split()[-1]) > 0.9, output
        return
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    key, least = LEARNED[kind]
    assert lines[0][key] < 0.7 and lines[-1][key] > least, (lines[0], lines[-1])
    assert (run / "checkpoints" / "latest").is_dir()


# What is written


def test_what_is_printed_and_written(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init("jobs/first", Options("grpo")) == 0
    output, wrong = capsys.readouterr()
    assert wrong == "" and output == (
        "wrote jobs/first.yaml          3 workers: rollout, train, judge\n"
        "wrote jobs/first.py            its classes, to edit\n"
        "wrote jobs/recipe.schema.json  the keys of recipes, for editors\n"
        "\nnext:\n"
        "  meshctl validate jobs/first.yaml\n"
        "  meshctl show-topology jobs/first.yaml\n"
        "  meshctl launch jobs/first.yaml\n"
    )
    assert names(here) == {"jobs/first.yaml", "jobs/first.py", "jobs/recipe.schema.json"}
    assert (
        (here / "jobs" / "first.yaml")
        .read_text()
        .startswith("# yaml-language-server: $schema=recipe.schema.json\n")
    )
    assert not re.search("@[A-Z]+@", (here / "jobs" / "first.yaml").read_text())
    assert json.loads((here / "jobs" / "recipe.schema.json").read_text())["properties"]["groups"]


def test_a_machine_that_lacks_the_devices_is_reported(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init("r", Options(device="GPU", ranks=4)) == 0
    assert (
        "It needs 4 cuda devices, but this machine has no accelerator: launch it on a machine that has them.\n"
        in capsys.readouterr().out
    )


def test_what_is_usual_is_what_the_machine_has(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "machine", lambda: ("cuda", 6))
    assert init("r", Options(yes=True)) == 0
    group = plan_of("r.yaml", []).plan.group("train")
    assert (group.device_type, group.workers) == ("cuda", 6)


def test_machine_counts_what_the_environment_leaves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    monkeypatch.setattr("meshctl.engines.checks.device_files.ROOT", tmp_path)
    monkeypatch.setattr("meshctl.recipe.load.detected", lambda: "cuda")
    (tmp_path / "dev").mkdir()
    for number in range(4):
        (tmp_path / "dev" / f"nvidia{number}").touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert command.machine() == ("cuda", 4)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert command.machine() == ("cuda", 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert command.machine() == ("cpu", 0)


def test_ones_own_script_is_named_and_not_written(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "my train.py").write_text("print('mine')\n")
    assert init("jobs/mine", Options(script="my train.py", ranks=3)) == 0
    assert names(here) == {"my train.py", "jobs/mine.yaml", "jobs/recipe.schema.json"}
    validated("jobs/mine.yaml")
    program = plan_of("jobs/mine.yaml", []).plan.group("train").program
    assert program is not None and program.argv == ("../my train.py",)


@pytest.mark.parametrize("there", ["first.yaml", "first.py"])
def test_nothing_is_written_over(there: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / there).write_text("mine")
    assert init("first", Options("train")) == 2
    output, wrong = capsys.readouterr()
    assert (output, wrong) == (
        "",
        f"error: `{there}` already exists: choose another NAME, or use `--force` to overwrite it\n",
    )
    assert names(here) == {there} and (here / there).read_text() == "mine"
    assert init("first", Options("train", force=True)) == 0
    assert "mine" not in (here / there).read_text()


def test_a_folder_in_the_way_is_not_forced(here: Path) -> None:
    (here / "first.yaml").mkdir()
    assert init("first", Options("train", force=True)) == 2
    assert names(here) == set()


def test_somebody_elses_schema_stays(here: Path) -> None:
    (here / "recipe.schema.json").write_text("[]")
    assert init("first", Options()) == 0
    assert (here / "recipe.schema.json").read_text() == "[]"
    (here / "recipe.schema.json").write_text('{"title": "meshctl recipe"}')
    assert init("second", Options()) == 0
    assert "properties" in (here / "recipe.schema.json").read_text()


def test_one_schema_serves_all_recipes_of_a_folder(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init("first", Options()) == 0 and "wrote recipe.schema.json " in capsys.readouterr().out
    assert init("日本", Options()) == 0
    assert capsys.readouterr().out.startswith(
        "wrote 日本.yaml  2 workers: train\nwrote job___.py  its classes, to edit\n\n"
    )
    (here / "recipe.schema.json").write_text(json.dumps({"title": schema()["title"]}))
    assert init("second", Options()) == 0 and "wrote recipe.schema.json " in capsys.readouterr().out
    assert json.loads((here / "recipe.schema.json").read_text()) == schema()


def test_both_files_or_none(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(path: Path, text: str) -> None:
        if path.suffix == ".py":
            raise OSError(28, "No space left on device", str(path))
        path.write_text(text)

    monkeypatch.setattr(command, "write_whole", full)
    assert init("first", Options("train")) == 2
    assert capsys.readouterr().err == "error: `.` cannot be written to: no space left on device\n"
    assert names(here) == set()


def test_a_folder_that_cannot_be_written_to(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "file").touch()
    assert init("file/first", Options()) == 2
    assert capsys.readouterr().err == "error: `file` cannot be written to: not a directory\n"
    assert init(f"{'x' * 300}/first", Options()) == 2
    assert capsys.readouterr().err.endswith("` cannot be written to: file name too long\n")


# Names


@pytest.mark.parametrize(
    ("name", "recipe", "module"),
    [
        ("first.yaml", "first.yaml", "first"),
        ("grpo.v2", "grpo.v2.yaml", "grpo_v2"),
        ("a-b", "a-b.yaml", "a_b"),
        ("7b", "7b.yaml", "job_7b"),
        ("torch", "torch.yaml", "torch_job"),
        ("meshctl", "meshctl.yaml", "meshctl_job"),
        ("random", "random.yaml", "random_job"),
        ("class", "class.yaml", "class_job"),
        ("größe", "größe.yaml", "gr__e"),
        ("no", "no.yaml", "no"),
        ("1e3", "1e3.yaml", "job_1e3"),
        ("it's here/x", "it's here/x.yaml", "x"),
        ("./x", "x.yaml", "x"),
        ("x/", "x/train.yaml", "train"),
        ("there", "there/train.yaml", "train"),
        (".", "train.yaml", "train"),
    ],
)
def test_names(name: str, recipe: str, module: str, here: Path) -> None:
    (here / "there").mkdir()
    assert init(name, Options("train")) == 0
    target = here / recipe
    assert names(here) - {str(Path(recipe).parent / "recipe.schema.json")} == {
        recipe,
        str(Path(recipe).with_name(f"{module}.py")),
    }
    validated(str(target))
    plan = plan_of(str(target), []).plan
    assert plan.name == target.stem and plan.component("trainer").target == f"{module}.Trainer"


def test_a_package_of_the_same_name_does_not_hide_its_classes(here: Path) -> None:
    (here / "first").mkdir()
    (here / "first" / "__init__.py").touch()
    assert init("./first.yaml", Options("train")) == 0
    assert plan_of("first.yaml", []).plan.component("trainer").target == "first_job.Trainer"


@pytest.mark.parametrize(
    "name",
    ["a b", "-x", "a\nb", "a=b", "~x", "x" * 300, "a\0b", "\x1b[31m", "..yaml", "*", "+a", "@", "a:b", "'"],
)
def test_odd_names_are_answered(name: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init(name, Options()) == 2
    output, wrong = capsys.readouterr()
    assert output == "" and wrong.startswith("error: ") and wrong.count("\n") == 1 and "\x1b" not in wrong
    assert names(here) == set()


def test_a_name_is_proposed() -> None:
    with pytest.raises(WrongChoice, match=r"is not a valid name of a run: .*, like `my-run-1`"):
        stem_of("my run, 1!")
    assert module_of("a.b", ["a_b"]) == "a_b_job"


ODD_TEXTS = [
    "no",
    "On",
    "1",
    "1e3",
    "a b",
    'a"b',
    "a\\b",
    "a\tb",
    "null",
    "~",
    "",
    "a: b",
    "#a",
    ".inf",
    "é",
    "12:30",
    "-",
    "0x1f",
    "./-x",
]


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_text_stays_text_in_yaml(text: str) -> None:
    import yaml

    assert yaml.safe_load(f"[{quoted(text)}]") == [text]


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (Options("grop"), "kind `grop` does not exist; available: `train`, `grpo`, `distill` and `script`"),
        (Options(device="tpu"), "device `tpu` does not exist; available: `cpu`, `cuda`, `npu` and `mps`"),
        (Options(ranks=0), "the number of ranks must be from 1 to 100,000, not 0"),
        (Options(layout="tp"), "layout `tp` does not exist; available: `fsdp`, `dp` and `hsdp`"),
        (
            Options("grpo", ranks=1),
            "grpo has the groups `rollout` and `train`: on cpu it needs at least 2 ranks",
        ),
        (
            Options("grpo", ranks=2, layout="fsdp"),
            "fsdp does not fit the 1 rank of `train` on cpu; available: `dp`",
        ),
        (
            Options("train", ranks=3, layout="hsdp"),
            "hsdp does not fit the 3 ranks of `train` on cpu; available: `fsdp` and `dp`",
        ),
        (Options(device="mps", ranks=2), "a machine has one mps device, not 2"),
        (Options("script", layout="dp"), "a script has a layout of its own: do not give one"),
        (Options("train", script="x.py"), "a script is only for the kind `script`, not train"),
        (Options(script="none.py"), "script `none.py` does not exist"),
        (Options(script="a\0b"), "script `a?b` does not exist"),
    ],
)
def test_choices_that_make_no_recipe(
    asked: Options, why: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init("first", asked) == 2
    assert capsys.readouterr() == ("", f"error: {why}\n")
    assert names(here) == set()


# Questions


def answered(
    *answers: str, name: str = "", has: command.Machine = ("cpu", 0), force: bool = False
) -> tuple[Choice, str]:
    given = iter(answers)

    def ask(prompt: str) -> str:
        try:
            return next(given)
        except StopIteration:
            raise EOFError from None

    found = command.questions(name, has, force, ask)
    assert next(given, None) is None
    return found


def test_enter_accepts_the_default(here: Path) -> None:
    assert answered("", "", "", "", "") == (Choice("train", "cpu", 2, "fsdp"), "train")
    assert answered("", "", "", "", name="x", has=("cuda", 8)) == (Choice("train", "cuda", 8, "fsdp"), "x")


def test_answers_are_numbers_or_words(here: Path) -> None:
    (here / "mine.py").touch()
    assert answered("2", "cuda", "16", "HSDP", "first") == (Choice("grpo", "cuda", 16, "hsdp"), "first")
    assert answered("distill", "1", "2", "jobs/d") == (Choice("distill", "cpu", 2), "jobs/d")
    assert answered("script", "mine.py", "2", "8", "s") == (Choice("script", "cuda", 8, "", "mine.py"), "s")
    assert answered("1", "mps", "m") == (Choice("train", "mps", 1), "m")


def test_a_wrong_answer_is_asked_again(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert answered("9", "what", "grpo", "cpu", "1", "many", "2", "a b", "fine") == (
        Choice("grpo", "cpu", 2),
        "fine",
    )
    output = capsys.readouterr().out
    assert output.count("  a number from 1 to 4, or a word: train, grpo, distill, script\n") == 2
    assert (
        "on cpu it needs at least 2 ranks" in output
        and "  an integer\n" in output
        and "is not a valid name of a run" in output
    )


def test_missing_and_existing_files_are_reported_at_once(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "mine.py").touch()
    (here / "script.yaml").touch()
    assert answered("script", "mien.py", "mine.py", "cpu", "2", "", "other") == (
        Choice("script", "cpu", 2, "", "mine.py"),
        "other",
    )
    output = capsys.readouterr().out
    assert "  script `mien.py` does not exist\n" in output and "  `script.yaml` already exists\n" in output
    assert answered("script", "", "cpu", "2", "", force=True) == (Choice("script", "cpu", 2), "script")


def test_questions_fit_a_terminal(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for kind, has in ((kind, has) for kind in KINDS for has in (("cpu", 0), ("cuda", 8))):
        answered(
            kind,
            *([""] if kind == "script" else []),
            *["", "100000"],
            *([""] if kind != "script" else []),
            "",
            has=has,
        )
    output = capsys.readouterr().out
    assert (
        "processes; this machine has no accelerator\n" in output and max(map(len, output.splitlines())) < 80
    )


class Terminal:
    """`meshctl init` in a pseudo-terminal."""

    def __init__(self, folder: Path, *words: str) -> None:
        self._own, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", MAIN, "init", *words], cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            preexec_fn=take_terminal,
        )  # fmt: skip
        os.close(theirs)
        self.output = ""

    def until(self, text: str) -> Terminal:
        end = time.monotonic() + 60
        while text not in self.output:
            assert select.select([self._own], [], [], end - time.monotonic())[0], self.output
            try:
                self.output += os.read(self._own, 4096).decode()
            except OSError:  # the other end has closed
                raise AssertionError(self.output) from None
        return self

    def type(self, text: str) -> None:
        self.output = ""
        os.write(self._own, text.encode())

    def end(self) -> int:
        try:
            while part := os.read(self._own, 4096):
                self.output += part.decode()
        except OSError:
            pass
        os.close(self._own)
        return self.process.wait(60)


def take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_on_a_terminal_it_asks(here: Path) -> None:
    terminal = Terminal(here)
    for answer in ("3", "cpu", "2", "jobs/mine"):
        terminal.until("]: ").type(f"{answer}\r")
    assert terminal.end() == 0, terminal.output
    assert "meshctl launch jobs/mine.yaml" in terminal.output
    assert names(here) == {"jobs/mine.yaml", "jobs/mine.py", "jobs/recipe.schema.json"}


@pytest.mark.parametrize("words", [("first", "--yes"), ("first", "--kind", "grpo")])
def test_a_stated_answer_is_not_asked_for(words: tuple[str, ...], here: Path) -> None:
    terminal = Terminal(here, *words)
    assert terminal.end() == 0 and "?" not in terminal.output
    assert names(here) == {"first.yaml", "first.py"}


@pytest.mark.parametrize(
    ("key", "code", "word"), [("\x03", 130, "nothing was written"), ("\x04", 2, "no answer was given")]
)
def test_ctrl_c_and_the_end_of_input_write_nothing(key: str, code: int, word: str, here: Path) -> None:
    terminal = Terminal(here)
    terminal.until("]: ").type("grpo\r")
    terminal.until("]: ").type(key)
    assert terminal.end() == code, terminal.output
    assert word in terminal.output and "Traceback" not in terminal.output
    assert names(here) == set()


def test_a_closed_standard_input_is_no_terminal(here: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", '"$@" <&-', "-", sys.executable, "-c", MAIN, "init"],
        cwd=here,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "") and names(here) == {"train.yaml", "train.py"}


def test_without_a_terminal_it_asks_nothing(here: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MAIN, "init"], cwd=here, input="", capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and done.stderr == "" and names(here) == {"train.yaml", "train.py"}
