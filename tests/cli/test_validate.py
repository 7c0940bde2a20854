"""`meshctl validate`: its output and exit codes, and that it executes nothing that a recipe names."""

import io
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from meshctl.cli.color import has_color
from meshctl.cli.fix import fix
from meshctl.cli.hydra_flags import answer
from meshctl.cli.load import CheckResult, Unreadable, check, plan_of
from meshctl.cli.validate import Options, checked, validate
from meshctl.diagnostics import RecipeError
from meshctl.run.directory import RunDir, Start
from tests.paths import RECIPE_GOLDEN as GOLDEN

RIGHT = str(GOLDEN / "base_of_all.yaml")


def validated(recipe: str, *overrides: str) -> tuple[int, str]:
    out = io.StringIO()
    code = checked(recipe, list(overrides), out)
    return code, out.getvalue()


def test_a_right_recipe_is_one_line() -> None:
    code, output = validated(RIGHT)
    assert code == 0
    assert (
        output.startswith("ok: arithmetic: 2 groups, 6 workers, 3 components, 4 stages; plan ")
        and output.count("\n") == 1
    )


def test_a_wrong_recipe_exits_with_1_and_counts() -> None:
    code, output = validated(RIGHT, "components.actor.parallel.tp_size=3", "seed=x")
    assert code == 1
    assert (
        "error[MC410]: `tp_size` 3 does not fit the 4 ranks of group `train`\n --> override 1:1:35" in output
    )
    assert output.endswith("base_of_all.yaml: 2 errors\n")


UNREADABLE = ["absent.yaml", ".", "open.yaml", "latin.yaml", "list.yaml", "two.yaml"]


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_cannot_be_read_exits_with_3(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(GOLDEN)
    code, output = validated(name)
    assert code == 3 and output.startswith("error[MC00") and "Traceback" not in output


def test_a_recipe_without_permission_exits_with_3(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.mkdir()
    (recipe / "x.yaml").write_text("a: 1\n")
    assert "give a recipe in it" in validated(str(recipe))[1]
    code, output = validated(str(tmp_path / "recipe.yaml" / "x.yaml" / "y.yaml"))
    assert code == 3 and "MC001" in output


def test_warnings_do_not_fail(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(
        "groups: {a: {ranks: 02, device_type: cpu, program: {module: json.tool}}}\n"
    )
    code, output = validated(str(tmp_path / "r.yaml"))
    assert code == 0 and output.startswith("warning[MC105]") and "ok: r: 1 group, 2 workers; plan" in output


def test_the_chain_describes_the_fault_by_its_exceptions() -> None:
    with pytest.raises(RecipeError) as wrong:
        plan_of(RIGHT, ["seed=x"])
    assert [found.code for found in wrong.value.report.errors] == ["MC102"]
    with pytest.raises(Unreadable):
        plan_of("absent.yaml", [])


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
    run.plan.unlink()
    with pytest.raises(Unreadable, match=r"not a run: it has no plan\.json"):
        plan_of(str(run.path), [])


WATCHED = """
import json, sys
seen = []
def watch(event, args):
    if event in ("subprocess.Popen", "os.system", "os.exec", "os.fork", "socket.connect", "os.posix_spawn"):
        seen.append(event)
    if event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+"):
        seen.append(f"open {args[0]} {args[1]}")
from meshctl.cli.validate import checked
sys.addaudithook(watch)
code = checked(sys.argv[1], sys.argv[2:])
modules = [name for name in ("torch", "numpy", "rich", "arithmetic", "evil", "hydra_plugins") if name in sys.modules]
print(json.dumps({"code": code, "seen": seen, "modules": modules}))
"""
EVIL = "import pathlib\npathlib.Path(__file__).with_name('ran').write_text('x')\nfrom meshctl import Component\nclass E(Component): ...\n"


@pytest.mark.parametrize(
    "override",
    ["seed=1", "components.actor._target_=evil.E", "hydra.searchpath=[pkg://evil]", "+evil@vars.x=y"],
)
def test_nothing_that_a_recipe_names_is_imported_or_run(tmp_path: Path, override: str) -> None:
    for name in ("base_of_all.yaml", "arithmetic.py"):
        (tmp_path / name).write_text((GOLDEN / name).read_text())
    (tmp_path / "evil.py").write_text(EVIL)
    (tmp_path / "conftest.py").write_text(EVIL)
    command = [sys.executable, "-B", "-c", WATCHED, "base_of_all.yaml", override]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    parsed = json.loads(result.stdout.splitlines()[-1])
    assert parsed["seen"] == [] and parsed["modules"] == []
    assert not (tmp_path / "ran").exists() and result.stderr == ""


def test_color_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    checked(RIGHT, ["seed=x"], out)
    assert "\x1b[" in out.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    checked(RIGHT, ["seed=x"], out)
    assert "\x1b[" not in out.getvalue()


ODD_PATHS = ["", "x" * 300, "a/" * 2000, "a\nb.yaml", "\x1b[31m", "/dev/null/x", "~", "recipe.yaml/"]


@pytest.mark.parametrize("path", ODD_PATHS)
def test_no_path_ends_in_a_traceback(path: str) -> None:
    code, output = validated(path)
    assert code == 3 and output.startswith("error[MC001]") and "\x1b" not in output


def test_names_too_long_for_the_disk_are_only_unknown() -> None:
    code, output = validated(
        RIGHT,
        f"layout@components.actor.parallel={'x' * 300}",
        f"{'y' * 300}@vars.x=1",
        f"components.actor._target_=a.{'z' * 300}.B",
    )
    assert code == 1 and "MC201" in output and "MC202" in output and "MC501" in output


# Several recipes, formats, standard input


def run(capfd: pytest.CaptureFixture[str], *arguments: str, **asked: Any) -> tuple[int, str, str]:
    """Returns (exit code, stdout, stderr)."""
    code = validate(arguments, Options(**asked))
    return code, *capfd.readouterr()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a correct recipe."""
    for name in ("base_of_all.yaml", "arithmetic.py"):
        (tmp_path / name).write_text((GOLDEN / name).read_text())
    monkeypatch.chdir(tmp_path)
    for name in ("GITHUB_ACTIONS", "GITHUB_WORKSPACE", "NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_several_recipes_have_a_line_each_and_the_worst_code(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "lr=1.yaml").write_text("defaults: [./base_of_all, _self_]\nnam: x\n")
    code, output, _ = run(capfd, "base_of_all.yaml", "lr=1.yaml", "run.steps=7", "absent.yaml")
    assert code == 3
    first, *_ = output.splitlines()
    assert first.startswith("base_of_all.yaml: ok: arithmetic: 2 groups")
    assert (
        "\nlr=1.yaml: 1 error; --fix can change it\n" in output
        and "\nabsent.yaml: cannot be read\n" in output
    )
    assert output.endswith("\n3 recipes, 1 right\n")
    code, output, _ = run(capfd, "base_of_all.yaml", "lr=1.yaml", "~nam")
    assert (
        code == 1
        and "`nam` cannot be deleted: it is not in the recipe" in output
        and output.endswith("\n2 recipes, 1 right\n")
    )


def test_wrong_usage_exits_with_2(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(capfd, "seed=1")[::2] == (2, "error: no recipe is given; `seed=1` is an override\n")
    assert run(capfd, "base_of_all.yaml", format="xml")[::2] == (
        2,
        "error: format `xml` does not exist; available: `text`, `concise`, `json`, `github` and `sarif`\n",
    )
    assert run(capfd, "base_of_all.yaml", color="red")[0] == 2


@pytest.mark.parametrize("format", ["json", "sarif"])
@pytest.mark.parametrize(
    ("recipe", "code"), [("base_of_all.yaml", 0), ("absent.yaml", 3), (".", 3), ("wrong.yaml", 1)]
)
def test_nothing_but_the_document_is_on_stdout(
    folder: Path, capfd: pytest.CaptureFixture[str], format: str, recipe: str, code: int
) -> None:
    (folder / "wrong.yaml").write_text("nam: x\n")
    got, output, err = run(capfd, recipe, format=format, color="always")
    data = json.loads(output)
    assert got == code and err == ""
    assert (data["exit_code"] if format == "json" else data["runs"][0]["invocations"][0]["exitCode"]) == code


def test_json_states_what_would_run(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (one,) = json.loads(run(capfd, "base_of_all.yaml", format="json")[1])["recipes"]
    digest = plan_of("base_of_all.yaml", []).plan.digest
    assert one["plan"] == {
        "name": "arithmetic",
        "digest": digest,
        "groups": 2,
        "workers": 6,
        "components": 3,
        "stages": 4,
    }


def test_a_bug_is_reported_in_the_document_too(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("oh")

    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    monkeypatch.setattr("meshctl.plan.resolve.resolve", fails)
    code, output, err = run(capfd, "base_of_all.yaml", "absent.yaml", format="json")
    assert (
        code == 70
        and "error[MC900]: a bug in meshctl: RuntimeError (" in err
        and "oh" not in err
        and "Traceback" not in err
    )
    found = [[found["code"] for found in one["diagnostics"]] for one in json.loads(output)["recipes"]]
    assert found == [["MC900"], ["MC001"]]


def test_github_is_spoken_to_by_itself(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "r.yaml").write_text("nam: x\n")
    monkeypatch.chdir(folder / "sub")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(folder))
    assert run(capfd, "r.yaml")[1].startswith(
        "::error file=sub/r.yaml,line=1,col=1,endColumn=4,title=MC101::a recipe has no key `nam`"
    )
    assert run(capfd, "r.yaml", format="text")[1].startswith("error[MC101]")


def test_strict_lets_no_warning_pass(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "r.yaml").write_text(
        "groups: {a: {ranks: 02, device_type: cpu, program: {module: json.tool}}}\n"
    )
    code, output, _ = run(capfd, "r.yaml", strict=True)
    assert code == 1 and output.endswith("\nr.yaml: 1 warning; --strict treats warnings as errors\n")
    assert run(capfd, "base_of_all.yaml", strict=True)[0] == 0


@pytest.mark.parametrize(
    ("when", "environ", "terminal", "expected"),
    [
        ("auto", {}, True, True),
        ("auto", {}, False, False),
        ("auto", {"TERM": "dumb"}, True, False),
        ("auto", {"CLICOLOR": "0"}, True, False),
        ("auto", {"NO_COLOR": "1", "FORCE_COLOR": "1"}, True, False),
        ("auto", {"NO_COLOR": ""}, True, True),
        ("auto", {"FORCE_COLOR": "1"}, False, True),
        ("auto", {"FORCE_COLOR": "0"}, False, False),
        ("auto", {"CLICOLOR_FORCE": "1", "TERM": "dumb"}, False, True),
        ("always", {"NO_COLOR": "1"}, False, True),
        ("never", {"FORCE_COLOR": "1"}, True, False),
    ],
)
def test_color_where_it_is_wanted(when: str, environ: dict[str, str], terminal: bool, expected: bool) -> None:
    class Stream(io.StringIO):
        def isatty(self) -> bool:
            return terminal

    assert has_color(Stream(), when, environ) is expected


def meshctl(*arguments: str, data: bytes = b"", closed: bool = False) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "meshctl", "validate", *arguments]
    if closed:
        command = ["sh", "-c", f"exec {shlex.join(command)} <&-"]
    return subprocess.run(
        command, input=None if closed else data, capture_output=True, cwd=GOLDEN, timeout=60
    )


def test_standard_input_is_a_recipe_of_the_working_directory() -> None:
    done = meshctl("-", "run.steps=9", data=(GOLDEN / "base_of_all.yaml").read_bytes())
    assert done.returncode == 0 and done.stdout.startswith(b"ok: arithmetic: 2 groups")
    done = meshctl("-", "--format", "concise", data=b"defaults: [./base_of_all, _self_]\nnam: x\n")
    assert (done.returncode, done.stdout, done.stderr) == (
        1,
        b"<stdin>:2:1: MC101 a recipe has no key `nam`\n",
        b"",
    )


JUNK = {
    "binary": (b"\xff\xfe\x00\x01" * 99, b"<stdin>:1:1: MC002 "),
    "nul": (b"a: \0", b"<stdin>:1:4: MC003 "),
    "endless": (b"#" * (3 << 20), b"<stdin>:1:1: MC001 `<stdin>` is larger than 1 MiB"),
    "nothing": (b"", b"<stdin>:1:1: MC004 "),
}


@pytest.mark.parametrize("name", JUNK)
def test_junk_on_standard_input_is_answered(name: str) -> None:
    data, output = JUNK[name]
    done = meshctl("-", "-f", "concise", data=data)
    assert done.returncode in (1, 3) and done.stdout.startswith(output) and done.stderr == b""


def test_closed_streams_are_answered() -> None:
    done = meshctl("-", closed=True)
    assert done.returncode == 3 and done.stdout.startswith(b"error[MC001]: standard input is closed")
    assert meshctl("absent.yaml", "-f", "json", closed=True).returncode == 3


def test_a_pipe_or_a_device_is_no_file(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(folder / "pipe.yaml")
    for path, kind in (("pipe.yaml", "a pipe"), ("/dev/zero", "a device"), ("/dev/tty", "a device")):
        code, output, _ = run(capfd, path)
        assert code == 3 and output.startswith(f"error[MC001]: `{path}` is {kind}, not a file")
    (folder / "r.yaml").write_text("defaults: [./pipe, _self_]\nname: x\n")
    assert run(capfd, "r.yaml", format="concise")[1].startswith(
        "r.yaml:1:12: MC201 config `pipe` does not exist"
    )


def test_a_huge_file_is_not_read(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with open(folder / "huge.yaml", "wb") as file:
        file.truncate(1 << 40)
    code, output, _ = run(capfd, "huge.yaml")
    assert code == 3 and "`huge.yaml` is larger than 1 MiB" in output


def test_a_stream_that_knows_few_letters_gets_them_replaced() -> None:
    command = [sys.executable, "-m", "meshctl", "validate", "-"]
    environ = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, input="字: 1\n".encode(), capture_output=True, env=environ, timeout=60)
    assert (
        done.returncode == 1
        and b"error[MC101]: a recipe has no key `?`" in done.stdout
        and done.stderr == b""
    )


# --fix


WRONG = "\ufeff# 字 rank\r\ndefaults: [./base_of_all, _self_]\r\ngroups: {train: {rank: 4.0}}  # rank: 4.0\r\nrun: {max_steps: 1e3}"
FIXED = WRONG.replace("{rank: 4.0}", "{ranks: 4}").replace("max_steps: 1e3", "steps: 1000")


def test_fix_writes_certain_changes_and_reports_them(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    recipe = folder / "r.yaml"
    recipe.write_bytes(WRONG.encode())
    recipe.chmod(0o640)
    code, output, err = run(capfd, "r.yaml", fix=True)
    assert (
        code == 0 and output.startswith("ok: arithmetic: 2 groups") and recipe.read_bytes() == FIXED.encode()
    )
    assert err.splitlines() == [
        "fixed r.yaml:3:18: `rank` -> `ranks`",
        "fixed r.yaml:4:7: `max_steps` -> `steps`",
        "fixed r.yaml:4:18: `1e3` -> `1000`",
        "fixed r.yaml:3:25: `4.0` -> `4`",
    ]
    assert recipe.stat().st_mode & 0o777 == 0o640
    assert {path.name for path in folder.iterdir()} == {"arithmetic.py", "base_of_all.yaml", "r.yaml"}
    assert run(capfd, "r.yaml", fix=True)[2] == ""


def test_fix_keeps_comments_line_ends_and_rights_and_is_done_at_once(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = "# mine\r\nseed: 1\r\nseed: 1  # twice\r\ngroups: {a: {rank: 2, device_type: cpu, program: {module: json.tool}}}\r\n"
    (folder / "crlf.yaml").write_bytes(b"\xef\xbb\xbf" + text.encode())
    (folder / "crlf.yaml").chmod(0o640)
    assert validate(["crlf.yaml"], Options(fix=True)) == 0
    right = text.replace("seed: 1  # twice", "  # twice").replace("rank:", "ranks:").encode()
    there = folder / "crlf.yaml"
    assert there.read_bytes() == b"\xef\xbb\xbf" + right and there.stat().st_mode & 0o777 == 0o640
    output = capfd.readouterr().err
    assert output == "fixed crlf.yaml:3:1: `seed: 1` removed\nfixed crlf.yaml:4:14: `rank` -> `ranks`\n"
    before = there.stat()
    assert validate(["crlf.yaml"], Options(fix=True)) == 0 and capfd.readouterr().err == ""
    assert (there.stat().st_ino, there.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_fix_that_changes_nothing_states_why(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "r.yaml").write_text("defaults: [./base_of_all, _self_]\nseed: many\n")
    code, _, err = run(capfd, "r.yaml", fix=True)
    assert (code, err) == (1, "fixed nothing: no finding has exactly one safe correction\n")
    assert "many" in (folder / "r.yaml").read_text()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["run.steps", "10"], "`run.steps` is neither a recipe nor an override: write run.steps=10"),
        (["run.steps 10"], "`run.steps 10` is neither a recipe nor an override: write run.steps=10"),
        (["run.steps"], "`run.steps` is neither a recipe nor an override: write run.steps=VALUE"),
    ],
)
def test_an_override_without_its_sign_is_answered_with_the_right_one(
    folder: Path, arguments: list[str], line: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert validate(["base_of_all.yaml", *arguments], Options()) == 2
    assert capfd.readouterr().err == f"error: {line}\n"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["launch", "a.yaml", "--run.steps=3"], "overrides are written without dashes: run.steps=3"),
        (["validate", "a.yaml", "-run.steps", "3"], "overrides are written without dashes: run.steps=3"),
        (["config", "a.yaml", "--vars.x"], "overrides are written without dashes: vars.x=VALUE"),
        (["launch", "a.yaml", "--dry-run"], ""),
        (["init", "--run.steps=3"], ""),
    ],
)
def test_an_override_with_dashes_is_answered_with_the_right_one(arguments: list[str], line: str) -> None:
    assert answer(arguments) == line


def test_fix_reports_what_is_left(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "r.yaml").write_text("defaults: [./base_of_all, _self_]\nnam: x\nseed: y\n")
    code, output, _ = run(capfd, "r.yaml", fix=True, format="json")
    (one,) = json.loads(output)["recipes"]
    assert code == 1 and [found["message"] for found in one["diagnostics"]] == [
        "`seed` must be an integer of at least 0, not the text `y`"
    ]
    assert one["fixed"] == [
        {
            **{"code": "MC101", "message": "a recipe has no key `nam`"},
            "fixes": [
                {"file": "r.yaml", "line": 2, "column": 1, "end_column": 4, "was": "nam", "text": "name"}
            ],
        }
    ]


def test_fix_prints_an_override_as_it_should_be(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(
        capfd, "base_of_all.yaml", "+run.steps=2", "components.acter.group=train", "+vars.x=a b", fix=True
    )
    assert code == 1 and err == "override 2 must be changed to: components.actor.group=train\n"
    assert (folder / "base_of_all.yaml").read_text() == (GOLDEN / "base_of_all.yaml").read_text()


def test_fix_changes_own_files_only(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    home, away = folder / "home", folder / "away"
    (home / "conf" / "layout").mkdir(parents=True)
    away.mkdir()
    for name in ("base_of_all.yaml", "arithmetic.py"):
        (folder / name).rename(home / name)
    (home / "conf" / "layout" / "own.yaml").write_text("fsdp: 4\n")
    (away / "linked.yaml").write_text("vars: {n: 1}\nnam: x\n")
    (home / "linked.yaml").symlink_to(away / "linked.yaml")
    (home / "r.yaml").write_text(
        "defaults: [./base_of_all, ./linked, layout@components.actor.parallel: own, _self_]\nsed: 3\n"
    )
    code, _, err = run(capfd, "home/r.yaml", fix=True)
    assert code == 1 and (home / "conf" / "layout" / "own.yaml").read_text() == "fsdp_size: 4\n"
    assert (home / "r.yaml").read_text().endswith("\nseed: 3\n") and (
        away / "linked.yaml"
    ).read_text() == "vars: {n: 1}\nnam: x\n"
    assert (
        "not fixed home/linked.yaml:2:1: `nam` -> `name`: the file is not in the folder of home/r.yaml" in err
    )


def test_fix_goes_through_a_link_that_is_named(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "real").mkdir()
    (folder / "real" / "r.yaml").write_text("defaults: [./base_of_all, _self_]\nnam: x\n")
    (folder / "link.yaml").symlink_to("real/r.yaml")
    assert run(capfd, "link.yaml", fix=True)[0] == 0
    assert (folder / "link.yaml").is_symlink() and (folder / "real" / "r.yaml").read_text().endswith(
        "\nname: x\n"
    )


def test_what_cannot_be_written_is_reported_and_remains_wrong(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    (folder / "r.yaml").write_text("nam: x\n")
    monkeypatch.setattr("tempfile.mkstemp", full)
    code, output, err = run(capfd, "r.yaml", fix=True)
    assert (
        code == 1
        and "has no key `nam`" in output
        and err.startswith("error: `")
        and "cannot be written: no space left on device" in err
    )
    assert (folder / "r.yaml").read_text() == "nam: x\n" and err.count("\n") == 1


def test_a_file_that_somebody_else_changes_is_left_alone(folder: Path) -> None:
    (folder / "r.yaml").write_text("nam: x\n")

    def looks(held: Mapping[str, bytes]) -> CheckResult:
        found = check("r.yaml", [], held)
        if held:
            (folder / "r.yaml").write_text("nam: y\n")
        return found

    looked, done = fix("r.yaml", looks, {})
    assert done == () and looked.code == 1 and (folder / "r.yaml").read_text() == "nam: y\n"


def test_fix_of_standard_input_prints_its_text() -> None:
    done = meshctl("-", "--fix", data=WRONG.encode())
    assert done.returncode == 0 and done.stdout == FIXED.encode()
    first, *_, last = done.stderr.splitlines()
    assert first == b"fixed <stdin>:3:18: `rank` -> `ranks`" and last.startswith(b"ok: arithmetic: 2 groups")
    for data in (b"\xff", b"a: [", (GOLDEN / "base_of_all.yaml").read_bytes()):
        assert meshctl("-", "--fix", data=data).stdout == data
    assert (
        meshctl("-", "--fix", data=b"#" * (2 << 20)).stdout == b""
    )  # half of it would be worse than nothing


def test_the_recipe_of_a_run_is_not_fixed(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    ready = plan_of("base_of_all.yaml", [])
    run_dir = RunDir.create(folder, "arithmetic", "now")
    run_dir.write_start(Start(ready.path))
    run_dir.recipe.write_text(ready.composed + "sed: 1\n")
    run_dir.plan.write_text(ready.plan.to_json())
    code, _, err = run(capfd, "arithmetic/now", fix=True)
    assert (
        code == 1
        and ": the recipe of a run is not changed\n" in err
        and run_dir.recipe.read_text().endswith("sed: 1\n")
    )


def test_source_that_is_huge_is_not_read(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with open(folder / "arithmetic.py", "wb") as file:
        file.truncate(1 << 40)
    code, output, _ = run(capfd, "base_of_all.yaml", format="concise")
    assert code == 0 and output.count("MC504 note: ") == 3 and "arithmetic.py` is larger than 4 MiB" in output
