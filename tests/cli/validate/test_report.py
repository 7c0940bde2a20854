"""`meshctl validate`: exit codes, formats, what it reads, and that it imports and runs nothing."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from meshctl.cli.load import Unreadable, plan_of
from meshctl.cli.output import has_color
from meshctl.cli.validate import Options, validate
from meshctl.run.directory import RunDir, Start
from tests.cli.validate.conftest import meshctl, run
from tests.paths import RECIPE_GOLDEN as GOLDEN

Capture = pytest.CaptureFixture[str]
RIGHT = str(GOLDEN / "base_of_all.yaml")
WRONG = "defaults: [./base_of_all, _self_]\nnam: x\n"
WARNED = "groups: {a: {ranks: 02, device_type: cpu, program: {module: json.tool}}}\n"


def validated(recipe: str, *overrides: str) -> tuple[int, str]:
    with redirect_stdout(io.StringIO()) as out:
        return validate([recipe, *overrides], Options("text")), out.getvalue()


def test_a_recipe_is_right_or_has_errors_or_warnings(folder: Path, capfd: Capture) -> None:
    code, output = validated(RIGHT)
    assert code == 0 and output.count("\n") == 1
    assert output.startswith("ok: arithmetic: 2 groups, 6 workers, 3 components, 4 stages; plan ")
    code, output = validated(RIGHT, "components.actor.parallel.tp_size=3", "seed=x")
    first = "error[MC410]: `tp_size` 3 does not fit the 4 ranks of group `train`\n --> override 1:1:35"
    assert code == 1 and first in output and output.endswith("base_of_all.yaml: 2 errors\n")
    (folder / "r.yaml").write_text(WARNED)
    code, output = validated("r.yaml")
    assert code == 0 and output.startswith("warning[MC105]") and "ok: r: 1 group, 2 workers; plan" in output
    code, output, _ = run(capfd, "r.yaml", strict=True)
    assert code == 1 and output.endswith("\nr.yaml: 1 warning; --strict treats warnings as errors\n")
    assert run(capfd, "base_of_all.yaml", strict=True)[0] == 0


UNREADABLE = ["absent.yaml", ".", "open.yaml", "latin.yaml", "list.yaml", "two.yaml", "base_of_all.yaml/x"]
UNREADABLE += ["", "x" * 300, "a/" * 2000, "a\nb.yaml", "\x1b[31m", "/dev/null/x", "absent.yaml/"]


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_cannot_be_read_exits_with_3(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(GOLDEN)
    code, output = validated(name)
    assert code == 3 and output.startswith("error[MC00") and "\x1b" not in output


@pytest.mark.parametrize(("path", "kind"), [("pipe.yaml", "a pipe"), ("/dev/zero", "a device")])
def test_a_pipe_or_a_device_is_no_file(path: str, kind: str, folder: Path) -> None:
    os.mkfifo(folder / "pipe.yaml")
    code, output = validated(path)
    assert code == 3 and output.startswith(f"error[MC001]: `{path}` is {kind}, not a file")
    (folder / "r.yaml").write_text("defaults: [./pipe, _self_]\nname: x\n")
    assert "error[MC201]: config `pipe` does not exist\n --> r.yaml:1:12" in validated("r.yaml")[1]


def test_a_huge_file_is_not_read(folder: Path) -> None:
    for name in ("huge.yaml", "arithmetic.py"):
        with open(folder / name, "wb") as file:
            file.truncate(1 << 40)
    code, output = validated("huge.yaml")
    assert code == 3 and "`huge.yaml` is larger than 1 MiB" in output
    code, output = validated("base_of_all.yaml")
    assert code == 0 and output.count("note[MC504]") == 3 and "arithmetic.py` is larger than 4 MiB" in output


def test_names_too_long_for_the_disk_are_only_unknown() -> None:
    code, output = validated(
        RIGHT,
        f"layout@components.actor.parallel={'x' * 300}",
        f"{'y' * 300}@vars.x=1",
        f"components.actor._target_=a.{'z' * 300}.B",
    )
    assert code == 1 and "MC201" in output and "MC202" in output and "MC501" in output


def test_a_run_directory_is_a_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ready = plan_of(RIGHT, [])
    run = RunDir.create(tmp_path, "arithmetic", "now")
    run.write_start(Start(ready.path))
    run.recipe.write_text(ready.composed)
    run.plan.write_text(ready.plan.to_json())
    monkeypatch.chdir(tmp_path)
    again = plan_of(str(run.path), [])
    assert again.resume == run and again.plan == ready.plan and again.path == ready.path
    changed = plan_of("arithmetic/now", ["layout@components.actor.parallel=hsdp", "run.steps=9"])
    assert changed.plan.component("actor").mesh.size("dp") == 2 and changed.plan.run.steps == 9
    with pytest.raises(Unreadable) as folder_of_runs:
        plan_of("arithmetic", [])
    [found] = folder_of_runs.value.report.diagnostics
    assert found.help == "give a recipe, or the folder of a run (runs/NAME/TIME)"
    run.plan.unlink()
    with pytest.raises(Unreadable, match=r"not a run: it has no `plan\.json`"):
        plan_of(str(run.path), [])


WATCHED = """
import json, sys
seen = []
def watch(event, args):
    if event in ("subprocess.Popen", "os.system", "os.exec", "os.fork", "socket.connect", "os.posix_spawn"):
        seen.append(event)
    if event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+"):
        seen.append(f"open {args[0]} {args[1]}")
from meshctl.cli.validate import Options, validate
sys.addaudithook(watch)
code = validate(sys.argv[1:], Options("text"))
modules = [name for name in ("torch", "numpy", "rich", "arithmetic", "evil", "hydra_plugins") if name in sys.modules]
print(json.dumps({"code": code, "seen": seen, "modules": modules}))
"""
EVIL = "import pathlib\npathlib.Path(__file__).with_name('ran').write_text('x')\nfrom meshctl import Component\nclass E(Component): ...\n"


def test_nothing_that_a_recipe_names_is_imported_or_run(folder: Path) -> None:
    (folder / "evil.py").write_text(EVIL)
    (folder / "conftest.py").write_text(EVIL)
    overrides = ["components.actor._target_=evil.E", "+evil@vars.x=y", "hydra.searchpath=[pkg://evil]"]
    command = [sys.executable, "-B", "-c", WATCHED, "base_of_all.yaml", *overrides]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    parsed = json.loads(result.stdout.splitlines()[-1])
    assert parsed["seen"] == [] and parsed["modules"] == []
    assert not (folder / "ran").exists() and result.stderr == ""


# Several recipes, formats and colors


def test_several_recipes_have_a_line_each_and_the_worst_code(folder: Path, capfd: Capture) -> None:
    (folder / "lr=1.yaml").write_text(WRONG)
    code, output, _ = run(capfd, "base_of_all.yaml", "lr=1.yaml", "run.steps=7", "absent.yaml")
    assert code == 3 and output.startswith("base_of_all.yaml: ok: arithmetic: 2 groups")
    assert "\nlr=1.yaml: 1 error; --fix can change it\n" in output
    assert "\nabsent.yaml: cannot be read\n" in output and output.endswith("\n3 recipes, 1 right\n")
    code, output, _ = run(capfd, "base_of_all.yaml", "lr=1.yaml", "~nam")
    assert code == 1 and "`nam` cannot be deleted: it is not in the recipe" in output
    assert output.endswith("\n2 recipes, 1 right\n")


def test_wrong_usage_exits_with_2(folder: Path, capfd: Capture) -> None:
    formats = "`text`, `concise`, `json`, `github` and `sarif`"
    error = f"error: format `xml` does not exist; available: {formats}\n"
    assert run(capfd, "seed=1")[::2] == (2, "error: no recipe is given; `seed=1` is an override\n")
    assert run(capfd, "base_of_all.yaml", format="xml")[::2] == (2, error)
    assert run(capfd, "base_of_all.yaml", color="red")[0] == 2


@pytest.mark.parametrize("format", ["json", "sarif"])
@pytest.mark.parametrize(("recipe", "code"), [("base_of_all.yaml", 0), (".", 3), ("wrong.yaml", 1)])
def test_nothing_but_the_document_is_on_stdout(
    folder: Path, capfd: Capture, format: str, recipe: str, code: int
) -> None:
    (folder / "wrong.yaml").write_text("nam: x\n")
    got, output, err = run(capfd, recipe, format=format, color="always")
    data = json.loads(output)
    assert got == code and err == ""
    assert (data["exit_code"] if format == "json" else data["runs"][0]["invocations"][0]["exitCode"]) == code
    if (format, code) == ("json", 0):
        counts = {"groups": 2, "workers": 6, "components": 3, "stages": 4}
        digest = plan_of("base_of_all.yaml", []).plan.digest
        assert data["recipes"][0]["plan"] == {"name": "arithmetic", "digest": digest, **counts}


def test_a_bug_is_reported_in_the_document_too(
    folder: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("oh")

    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    monkeypatch.setattr("meshctl.plan.resolve.resolve", fails)
    code, output, err = run(capfd, "base_of_all.yaml", "absent.yaml", format="json")
    assert code == 70 and "error[MC900]: a bug in meshctl: RuntimeError (" in err
    assert "oh" not in err and "Traceback" not in err
    found = [[found["code"] for found in one["diagnostics"]] for one in json.loads(output)["recipes"]]
    assert found == [["MC900"], ["MC001"]]


def test_github_is_spoken_to_by_itself(folder: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "r.yaml").write_text("nam: x\n")
    monkeypatch.chdir(folder / "sub")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(folder))
    line = "::error file=sub/r.yaml,line=1,col=1,endColumn=4,title=MC101::a recipe has no key `nam`"
    assert run(capfd, "r.yaml")[1].startswith(line)
    assert run(capfd, "r.yaml", format="text")[1].startswith("error[MC101]")


class Stream(io.StringIO):
    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self.isatty = lambda: is_terminal  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("when", "environ", "terminal", "expected"),
    [
        ("auto", {}, True, True),
        ("auto", {}, False, False),
        ("auto", {"TERM": "dumb"}, True, False),
        ("auto", {"NO_COLOR": "1", "FORCE_COLOR": "1"}, True, False),
        ("auto", {"FORCE_COLOR": "1"}, False, True),
        ("auto", {"CLICOLOR_FORCE": "1", "TERM": "dumb"}, False, True),
        ("always", {"NO_COLOR": "1"}, False, True),
        ("never", {"FORCE_COLOR": "1"}, True, False),
    ],
)
def test_color_where_it_is_wanted(when: str, environ: dict[str, str], terminal: bool, expected: bool) -> None:
    assert has_color(Stream(terminal), when, environ) is expected


# Standard input


def test_standard_input_is_a_recipe_of_the_working_directory() -> None:
    done = meshctl("-", "--format", "concise", data=WRONG.encode())
    expected = (1, b"<stdin>:2:1: MC101 a recipe has no key `nam`\n", b"")
    assert (done.returncode, done.stdout, done.stderr) == expected
    done = meshctl("-", closed=True)
    assert done.returncode == 3 and done.stdout.startswith(b"error[MC001]: standard input is closed")


@pytest.mark.parametrize(
    ("data", "output"),
    [
        (b"\xff\xfe\x00\x01" * 99, "<stdin>:1:1: MC002 "),
        (b"#" * (3 << 20), "<stdin>:1:1: MC001 `<stdin>` is larger than 1 MiB"),
    ],
    ids=["binary", "endless"],
)
def test_junk_on_standard_input_is_answered(
    data: bytes, output: str, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    code, found, err = run(capfd, "-", format="concise")
    assert code in (1, 3) and found.startswith(output) and err == ""


def test_a_stream_that_knows_few_letters_gets_them_replaced() -> None:
    done = meshctl("-", data="字: 1\n".encode(), env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 1 and b"error[MC101]: a recipe has no key `?`" in done.stdout
    assert done.stderr == b""
