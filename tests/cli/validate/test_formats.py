"""`meshctl validate`: several recipes, formats, colors and standard input."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from meshctl.cli.load import plan_of
from meshctl.cli.output import has_color
from tests.cli.validate.validated import meshctl, run
from tests.paths import RECIPE_GOLDEN as GOLDEN


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
    done = subprocess.run(command, input="字: 1\n".encode(), capture_output=True, env=environ)
    assert (
        done.returncode == 1
        and b"error[MC101]: a recipe has no key `?`" in done.stdout
        and done.stderr == b""
    )
